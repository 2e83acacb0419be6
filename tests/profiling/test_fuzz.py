"""Untrusted text: each parser gives a result or a reason, never a traceback, never a hang."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiling.made_cluster import EXAMPLE

from msparallel.errors import UserError
from msparallel.profiling.json_leaves import RECORD_KEYS, json_leaves
from msparallel.profiling.profile import judge
from msparallel.profiling.read import read_folder
from msparallel.profiling.table import Refused
from msparallel.profiling.view import view_of

pytestmark = pytest.mark.pure
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
STAT = "packet statistics:\nmac_tx_total_pkt_num:5\nmac_rx_bad_pkt_num:3\nroce_new_pkt_rty_num:10\n"
TEST = ("the minbytes is 8192\ndata_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
        "8192 | 764.55 | 0.00998 | success\n16384 | 858.8 | 0.01777 | failed\n")  # fmt: skip
OTHERS = {
    "stat.txt": STAT, "test.txt": TEST, "power.csv": "time,dev_id,power,freq,temp\n1,0,69,1000,42\n2,0,150,800,99\n",
    "op_statistic.csv": "Device_id,OP Type,Core Type,Count,Total Time(us)\n0,Cast,AI_VECTOR_CORE,240,23077.4\n",
    "memory_record.csv": "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB)\nAPP,1,2,3\n",
    "minddata_pipeline_summary_0.csv": "pipeline_ops,DeviceQueue(id=0),Batch(id=1)\nqueue_empty_freq_pct,-1,75\n",
    "minddata_pipeline_raw_0.csv": "op_id,op_type,num_workers,output_queue_usage_rate\n0,Batch,8,0.02\n",
    "series.csv": "timestamp,npu_index,mac_tx_total_pkt_num,mac_rx_bad_pkt_num\n1,0,5,0\n3,0,9,1\n",
    "step_trace_0.csv": "Device_id,Iteration ID,Iteration Time(us),Data Aug Bound(us)\n0,1,4200.0,100\n",
    "task_time.csv": "kernel_name,kernel_type,task_time(us),task_start(us)\na,AI_CPU,5,1\n",
}  # fmt: skip
PIECES = st.sampled_from([",", "\n", '"', "\t", "\0", "-1", "NaN", "1e400", "0", "{", "}", "[", ":", "\x1b[31m", "é",
                          "N/A", "\r", "9" * 400, "|", "(0, 1)", "step1", "Total Op Info", '"@"',
                          "x" * 3000])  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """Name -> text of a good file of each kind."""
    root = EXAMPLE.write(tmp_path_factory.mktemp("good"))
    folder = root / "rank_0" / "ASCEND_PROFILER_OUTPUT"
    return {**{file.name: file.read_text() for file in folder.iterdir()}, **OTHERS}


def broken(text: str, seed: int, piece: str) -> str:
    """A text with a piece of it lost, doubled, moved or replaced."""
    draw = random.Random(seed)
    a, b = sorted((draw.randrange(len(text) + 1), draw.randrange(len(text) + 1)))
    b = min(b, a + draw.choice((1, 3, 40, 400, len(text))))
    return draw.choice((text[:a] + text[b:], text[:a] + piece + text[b:], text[:b] + text[a:],
                        text[:a] + piece + text[a:], text[:a]))  # fmt: skip


def read_and_judge(folder: Path, name: str, text: str) -> None:
    """Every file of a folder is read or left out with a reason, and what was read can be judged and written down."""
    path = folder / name
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    found = read_folder(folder)
    assert sum(found.read.values()) + len(found.left_out) == 1
    assert all(reason for _, reason in found.left_out)
    from msparallel.cli.profile_json import profile_document
    from msparallel.cli.profile_text import profile_text

    judged = judge(view_of(found, plan=None, hardware=None))
    assert "\x1b" not in profile_text(judged, folder="x", width=100)
    json.dumps(profile_document(judged), allow_nan=False)
    path.unlink()


def check(files: dict[str, str], folder: Path, which: int, seed: int, piece: str) -> None:
    name = sorted(files)[which % len(files)]
    text = broken(files[name], seed, piece)
    read_and_judge(folder, name, broken(text, seed + 1, piece) if seed % 3 == 0 else text)


@QUICK
@given(which=st.integers(0, 50), seed=st.integers(0, 1 << 30), piece=PIECES)
def test_broken_files(files, tmp_path_factory, which, seed, piece):
    check(files, tmp_path_factory.mktemp("f"), which, seed, piece)


@pytest.mark.slow
@LONG
@given(which=st.integers(0, 50), seed=st.integers(0, 1 << 30), piece=PIECES)
def test_broken_files_2000(files, tmp_path_factory, which, seed, piece):
    check(files, tmp_path_factory.mktemp("f"), which, seed, piece)


@QUICK
@given(text=st.text(max_size=400), name=st.sampled_from([*OTHERS, "communication.json", "communication_matrix.json"]))
def test_any_text(tmp_path_factory, text, name):
    read_and_judge(tmp_path_factory.mktemp("t"), name, text.encode("utf-8", "replace").decode())


KEYS = st.text(alphabet='ab1-@ ":\\{é', max_size=6)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(st.none() | st.booleans() | NUMBERS | KEYS,
                      lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=3),
                      max_leaves=8)  # fmt: skip
RECORDS = st.builds(lambda key, value, rest: {key: value, **rest}, st.sampled_from(sorted(RECORD_KEYS)), VALUES,
                    st.dictionaries(KEYS, VALUES, max_size=2))  # fmt: skip
TREES = st.recursive(RECORDS | VALUES, lambda inside: st.dictionaries(KEYS, inside, max_size=4), max_leaves=10)


@QUICK
@given(tree=st.dictionaries(KEYS, TREES, max_size=5), indent=st.sampled_from([None, 0, 3]))
def test_records_are_those_that_a_whole_reader_finds(tmp_path_factory, tree, indent):
    """Against json.loads: the same records in the same order, unless nesting is deeper than is allowed."""

    def walk(value: dict, keys: tuple[str, ...]):
        for key, inside in value.items():
            if isinstance(inside, dict) and next(iter(inside), None) in RECORD_KEYS:
                yield (*keys, key), inside
            elif isinstance(inside, dict):
                yield from walk(inside, (*keys, key))

    path = tmp_path_factory.mktemp("j") / "a.json"
    path.write_text(json.dumps(tree, indent=indent))
    try:
        found = [(keys, record) for keys, record, _ in json_leaves(path)]
    except Refused as refused:
        assert "nested deeper" in str(refused)
        return
    assert found == list(walk(json.loads(path.read_text()), ()))


def test_a_folder_of_nothing_is_refused(tmp_path):
    from msparallel.profiling.profile import profile

    with pytest.raises(UserError, match="nothing here is a profile that can be read"):
        profile(tmp_path)
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(UserError, match="a.txt: is no profiler's output"):
        profile(tmp_path)
    with pytest.raises(UserError, match="there is no such folder or file"):
        profile(tmp_path / "absent")
