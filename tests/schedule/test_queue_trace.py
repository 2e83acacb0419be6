"""Traces: every column, every rule, any text."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.errors import RecipeError
from msparallel.schedule.queue import trace
from msparallel.schedule.queue.job import Cluster, Job
from msparallel.schedule.queue.synthetic import synthetic_trace
from msparallel.schedule.queue.trace import COLUMNS, parse_trace, read_trace
from msparallel.schedule.queue.write_trace import trace_text

pytestmark = pytest.mark.pure
CLUSTER = Cluster(nodes=4, devices_per_node=8)
HEADER = "job,submit_s,devices,duration_s"
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def problems(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(RecipeError) as caught:
        parse_trace(text, "t.csv", CLUSTER)
    assert all(problem.file == "t.csv" for problem in caught.value.problems)
    return [(problem.line, problem.key) for problem in caught.value.problems]


def message(text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_trace(text, "t.csv", CLUSTER)
    return str(caught.value)


def test_a_whole_row():
    text = (
        "# where it is from\n\n"
        "job,submit_s,nodes,devices_per_node,duration_s,class,priority,queue,gang,checkpoint_interval_s,restart_s,"
        "estimate_s\r\n"
        "a/b:1, 10.5 ,2,8,3600,evaluation,-3,team,yes,600,30,7200\r\n"
    )
    assert parse_trace(text, "t.csv", CLUSTER) == [
        Job(name="a/b:1", submit_s=10.5, nodes=2, devices_per_node=8, duration_s=3600, kind="evaluation", priority=-3,
            queue="team", gang=True, checkpoint_interval_s=600, restart_s=30, estimate_s=7200, line=4)
    ]  # fmt: skip


def test_defaults():
    (job,) = parse_trace(f"{HEADER}\na,0,4,60\n", "t.csv", CLUSTER)
    assert job == Job(name="a", submit_s=0, nodes=1, devices_per_node=4, duration_s=60, line=2)
    assert (job.kind, job.priority, job.queue, job.gang) == ("training", 0, "default", True)
    assert job.checkpoint_interval_s is None and job.limit_s == 60


@pytest.mark.parametrize(("devices", "shape"), [(1, (1, 1)), (8, (1, 8)), (16, (2, 8)), (32, (4, 8))])
def test_devices_are_within_a_node_or_whole_nodes(devices, shape):
    (job,) = parse_trace(f"{HEADER}\na,0,{devices},60\n", "t.csv", CLUSTER)
    assert (job.nodes, job.devices_per_node) == shape and job.pieces == (shape,)


@pytest.mark.parametrize(("cells", "pieces"), [("16,no,", 16), ("16,no,4", 4), ("640,no,8", 80)])
def test_replicas(cells, pieces):
    """More replicas than the cluster has room for at once are no problem: they come one by one."""
    devices, gang, least = cells.split(",")
    (job,) = parse_trace(f"{HEADER},gang,min_devices\na,0,{devices},60,{gang},{least}\n", "t.csv", CLUSTER)
    assert len(job.pieces) == pieces and len(set(job.pieces)) == 1


ROWS = {
    "a,0,33,60": "devices",  # more than a node, no whole nodes
    "a,0,40,60": "devices",  # more than the cluster
    "a,0,12,60": "devices",
    "a,0,0,60": "devices",
    "a,0,8.0,60": "devices",
    "a,0,1e1,60": "devices",
    "a,0,\u0668,60": "devices",  # a digit of another script
    "a,0,,60": "devices",
    "a,-1,8,60": "submit_s",
    "a,nan,8,60": "submit_s",
    "a,2026-01-01 00:00:00,8,60": "submit_s",
    "a,99999999999,8,60": "submit_s",
    "a,,8,60": "submit_s",
    "a,0,8,0": "duration_s",
    "a,0,8,inf": "duration_s",
    "a,0,8,1:00:00": "duration_s",
    ",0,8,60": "job",
    "a b,0,8,60": "job",
    "\x1b[31m,0,8,60": "job",
    f"{'a' * 129},0,8,60": "job",
    "a,0,8": "row",
    "a,0,8,60,1": "row",
    'a,"0,8,60': "row",
    'a,0,"8"x,60': "row",
}


@pytest.mark.parametrize(("row", "key"), ROWS.items())
def test_wrong_rows(row, key):
    assert problems(f"{HEADER}\nok,0,8,60\n{row}\n") == [(3, key)]


MORE = {
    ("class", "trainng"): "Try: class=training",
    ("class", "batch"): "It is one of training, inference, evaluation, interactive.",
    ("gang", "true"): "It is one of yes, no.",
    ("priority", "high"): "This is no whole number.",
    ("priority", "9999999999"): "from -1,000,000,000 to 1,000,000,000",
    ("queue", "a,b"): "columns",
    ("min_devices", "4"): "A gang has no fewer than all its devices.",
    ("checkpoint_interval_s", "0"): "It is from 0.001",
    ("restart_s", "soon"): "no plain number of seconds",
    ("estimate_s", "59"): "The job takes 60 s.",
    ("nodes", "2"): "not both",
    ("devices_per_node", "2"): "not both",
}


@pytest.mark.parametrize(("column", "value"), MORE)
def test_wrong_values_of_other_columns(column, value):
    text = message(f"{HEADER},{column}\na,0,8,60,{value}\n")
    assert "t.csv:2  " in text and MORE[column, value] in text


REPLICAS = {"4,no,3": "no whole number of replicas of 3", "16,no,16": "a node has 8 devices"}


@pytest.mark.parametrize("cells", REPLICAS)
def test_wrong_replicas(cells):
    devices, gang, least = cells.split(",")
    assert REPLICAS[cells] in message(f"{HEADER},gang,min_devices\na,0,{devices},60,{gang},{least}\n")


SHAPES = {"5,8": "The cluster has 4, so the job can never start.\n  Try: --nodes 5",
          "1,9": "A node of this cluster has 8 devices, so the job can never start.\n  Try: --devices-per-node 9",
          ",8": "nodes\n  It is missing", "2,": "devices_per_node\n  It is missing"}  # fmt: skip


@pytest.mark.parametrize("cells", SHAPES)
def test_wrong_shapes(cells):
    assert SHAPES[cells] in message(f"job,submit_s,nodes,devices_per_node,duration_s\na,0,{cells},60\n")


def test_a_name_stands_once_also_where_the_row_is_wrong():
    text = message(f"{HEADER}\na,0,8,60\nb,0,8,60\na,0,12,60\nb,1,1,1\n")
    assert "t.csv:4  job: a\n  Line 2 has this name already" in text and "t.csv:5  job: b" in text
    assert "t.csv:4  devices: 12" in text


HEADERS = {
    "": "The file is empty.",
    "# only remarks\n\n": "The file is empty.",
    f"{HEADER}\n": "No job below the header.",
    "job,submit_s,devices\na,0,1\n": "The header lacks duration_s.",
    "job,submit_s,duration_s,nodes\na,0,1,1\n": "The header lacks devices (or nodes and devices_per_node).",
    f"{HEADER},user\na,0,1,1,me\n": "t.csv:1  column: user\n  There is no such column",
    f"{HEADER},prioritty\na,0,1,1,1\n": "Is priority meant?",
    f"{HEADER},job\na,0,1,1,b\n": "It stands in the header 2 times.",
    '"job,submit_s\n': "This is no row of a CSV file",
}


@pytest.mark.parametrize("text", HEADERS)
def test_wrong_headers(text):
    assert HEADERS[text] in message(text)


def test_all_problems_at_once_but_not_without_end():
    told = message(HEADER + "\n" + "a,0,12,x\n" * 100)
    assert told.count("t.csv:") == trace.MOST_PROBLEMS and "more problems like these are not shown" in told


def test_limits(monkeypatch):
    monkeypatch.setattr(trace, "MOST_JOBS", 2)
    assert problems(f"{HEADER}\n" + "".join(f"j{n},0,1,1\n" for n in range(4))) == [(4, "trace")]
    monkeypatch.setattr(trace, "MOST_PIECES", 20)
    assert problems(f"{HEADER},gang\na,0,30,1,no\n") == [(None, "trace")]
    monkeypatch.setattr(trace, "MOST_QUEUES", 1)
    assert problems(f"{HEADER},queue\na,0,1,1,x\nb,0,1,1,y\n") == [(None, "queue")]


def test_files(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\na,0,1,1\n".encode())
    assert len(read_trace(path, CLUSTER)) == 1
    path.write_bytes(f"{HEADER}\na,0,1,1\n\xff".encode("latin-1"))
    with pytest.raises(RecipeError, match="t.csv:3.*\n.*not UTF-8"):
        read_trace(path, CLUSTER)
    with pytest.raises(RecipeError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", CLUSTER)
    with pytest.raises(RecipeError, match="not a regular file"):
        read_trace(tmp_path, CLUSTER)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_written_is_read_as_the_same(seed):
    jobs = synthetic_trace(seed, CLUSTER, days=3)
    read = parse_trace(trace_text(jobs, "made\x1b up\nby a test"), "t.csv", CLUSTER)
    assert [Job(**{**vars(job), "line": 0}) for job in read] == jobs


CELL = st.one_of(
    st.sampled_from(["", "0", "1", "8", "16", "12", "60", "yes", "no", "inference", "training", "a", "1e9", "-1",
                     "nan", '"', '""', "#", "\x00", "9" * 30, "0.0000001", "\u0661", "\ufeff", "1_000"]),
    st.text(max_size=6), st.integers(-2, 10**12).map(str),
)  # fmt: skip
ROW = st.lists(CELL, max_size=8).map(",".join)


@st.composite
def csv_text(draw) -> str:
    """Mostly a header and rows of its width, damaged here and there."""
    columns = draw(st.lists(st.sampled_from(COLUMNS), min_size=4, max_size=9, unique=True))
    rows = draw(st.lists(st.lists(CELL, min_size=len(columns), max_size=len(columns)).map(",".join), max_size=4))
    lines = [",".join(columns), *rows, *draw(st.lists(ROW, max_size=2))]
    return draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines)


def goes_well(text: str) -> None:
    """Jobs that fit the cluster, or a precise refusal."""
    try:
        jobs = parse_trace(text, "t.csv", CLUSTER)
    except RecipeError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        assert len(error.problems) <= trace.MOST_PROBLEMS + 1
        return
    assert jobs
    for job in jobs:
        for nodes, share in job.pieces[:1]:
            assert 1 <= nodes <= CLUSTER.nodes and 1 <= share <= CLUSTER.devices_per_node
        assert job.duration_s > 0 <= job.submit_s and job.limit_s >= job.duration_s


@settings(max_examples=300, **QUIET)
@given(csv_text() | st.text(max_size=80))
def test_any_text(text):
    goes_well(text)


@pytest.mark.slow
@settings(max_examples=2000, **QUIET)
@given(csv_text() | st.text(max_size=300))
def test_any_text_for_long(text):
    goes_well(text)


@settings(max_examples=100, **QUIET)
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "t.csv"
    path.write_bytes(data)
    try:
        read_trace(path, CLUSTER)
    except RecipeError as error:
        assert str(path) in str(error)
