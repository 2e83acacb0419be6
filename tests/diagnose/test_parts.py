"""The parts: kinds of files, blocks, time stamps, secrets, the command line; and logs that are no logs at all."""

import gzip
import json
import os

import job_logs as logs
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.cli.diagnose import command
from msparallel.diagnose import reader
from msparallel.diagnose.diagnose import diagnose
from msparallel.diagnose.files import LogFile, kind_of, rank_of
from msparallel.diagnose.findings import findings
from msparallel.diagnose.reader import Unreadable, blocks
from msparallel.diagnose.rule import rules
from msparallel.diagnose.scan import scan
from msparallel.diagnose.secrets import without_secrets
from msparallel.diagnose.times import stamps
from msparallel.diagnose.wanted import Wanted
from msparallel.errors import UserError

pytestmark = pytest.mark.pure
WANTED = Wanted(rules())


@pytest.mark.parametrize(("name", "head", "kind"), [
    ("worker_12.log", b"", "worker"), ("scheduler.log", b"", "scheduler"), ("plog-7_20260301.log", b"", "plog"),
    ("device-7_20260301.log", b"", "plog"), ("messages.1", b"", "dmesg"), ("dmesg.txt", b"", "dmesg"),
    ("npu-smi_info.txt", b"", "npu_smi"), ("rank3.txt", b"", "worker"), ("train_worker_3.log", b"", "worker"),
    ("a.txt", b"Mar  1 10:00:00 host kernel: x\n", "dmesg"), ("a.txt", b"| npu-smi 25.2.1 |\n", "npu_smi"),
    ("a.txt", b"epoch 1\n", "log"), ("coworker.log", b"", "log"),
])  # fmt: skip
def test_kinds(name, head, kind):
    assert kind_of(name, head) == kind


def test_ranks_of_names(tmp_path):
    for name, rank in (("worker_12.log", 12), ("worker_3.log.gz", 3), ("host-1_worker_4.log", 4), ("rank_7/log.txt", 7),
                       ("scheduler.log", None), ("worker_1234567.log", None)):  # fmt: skip
        assert rank_of(tmp_path / name) == rank, name


@pytest.mark.parametrize(("line", "gone"), [
    ("export HF_TOKEN=hf_abcdefghijklmnopqrst rest", "abcdefghij"), ("password: hunter2secret", "hunter2"),
    ('{"api_key": "0123456789abcdef"}', "0123456789"), ("Authorization: Bearer abc.def-ghi", "abc.def"),
    ("git clone https://me:pa55w0rd@host/x", "pa55w0rd"), ("run --auth-token abcdef0123", "abcdef0123"),
    ("AWS_SECRET_ACCESS_KEY='a b c d'", "a b c d"), ("sk-0123456789abcdefghij", "0123456789"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc", "eyJzdWIi"), ("PASSWD=x;y", "x"),
    ("-----BEGIN RSA PRIVATE KEY-----MIIEow", "MIIEow"),
])  # fmt: skip
def test_secrets_are_not_shown(line, gone):
    assert gone not in without_secrets(line) and "***" in without_secrets(line)


@pytest.mark.parametrize("line", [
    "tokens per second: 171.4, num_tokens=4096", "EI0006: Getting socket times out.", "rank[3], server[192.0.2.1]",
    "worker_3.log:64 step 12", "per_step_time: 812ms",
])  # fmt: skip
def test_ordinary_lines_stay_as_they_are(line):
    assert without_secrets(line) == line


def test_secrets_of_evidence_are_not_shown(tmp_path):
    (tmp_path / "worker_0.log").write_text("EI0005: differ; MY_TOKEN=abcdef0123456789 \x1b[31mred\n")
    for arguments in ([str(tmp_path)], [str(tmp_path), "--json"]):
        told = CliRunner().invoke(command, arguments, standalone_mode=False).output
        assert "abcdef0123" not in told and "\x1b" not in told and "***" in told


def test_stamps():
    assert stamps(b"x 2026-03-01-10:00:00.500.250 y 2026-03-01 10:00:01,750")[1][1] == pytest.approx(1772359201.75)
    assert stamps(b"2026-99-99 99:99:99") and not stamps(b"Mar  1 10:00:00 host x")
    assert stamps(b"Feb 29 10:00:00 host x", year=2000)


def test_blocks_hold_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 50)
    text = b"".join(b"line %d \xff\xfe\n" % number for number in range(100)) + b"no end"
    for name, content in (("a.log", text), ("a.log.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(content)
        found = list(blocks(tmp_path / name))
        assert b"".join(found) == text and all(block.endswith(b"\n") for block in found[:-1])


def test_a_gzip_that_unpacks_without_end_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MOST_UNPACKED_BYTES", 3 << 20)
    (tmp_path / "bomb.log").write_bytes(gzip.compress(b"\n" * (16 << 20)))
    with pytest.raises(Unreadable, match="unpacks"):
        list(blocks(tmp_path / "bomb.log"))


def test_json_has_the_fields_others_read(tmp_path):
    folder = logs.write_job(tmp_path, 4, 5, {2: logs.out_of_memory(2, 20)})
    done = CliRunner().invoke(command, [str(folder), "--json"], standalone_mode=False)
    assert done.return_value == 1
    finding = json.loads(done.output)["findings"][0]
    assert (finding["rule"], finding["severity"], finding["rank"]) == ("device_out_of_memory", "error", 2)
    assert set(finding["evidence"][0]) == {"file", "line", "text"} and finding["remedy"] and finding["root_cause"]


def test_the_text_names_cause_evidence_and_remedy(tmp_path):
    folder = logs.write_job(tmp_path, 4, 5, {2: logs.out_of_memory(2, 20), 0: logs.notify_timeout(0, 900, "unknown")})
    done = CliRunner().invoke(command, [str(folder)], standalone_mode=False)
    cause, _, rest = done.output.partition("Consequences")
    assert "device_out_of_memory, rank 2" in cause and "worker_2.log:9" in cause and "Do: " in cause
    assert "notify_timeout" in rest and "17_faults.md#device_out_of_memory" in cause
    clean = CliRunner().invoke(command, [str(logs.write_job(tmp_path / "clean", 2, 5, {}))], standalone_mode=False)
    assert clean.return_value == 0 and "No error found." in clean.output


@pytest.mark.parametrize("names", [[], ["model.ckpt", "logs.tar"], ["below/x.png"]])
def test_a_folder_without_a_log_is_wrong_input(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for words in ([str(tmp_path)], [str(tmp_path), "--json"]):
        done = CliRunner().invoke(command, words, standalone_mode=False)
        assert isinstance(done.exception, UserError) and done.exception.exit_code == 2 and not done.stdout
        told = str(done.exception)
        assert all(name in told for name in ("worker_N.log", "scheduler.log", "plog-*", "dmesg", ".err", *names)), told


PIECES = [example.text.encode() for rule in rules() for example in (*rule.examples, *rule.not_examples)]
LINES = st.one_of(st.sampled_from(PIECES), st.binary(max_size=60), st.sampled_from(
    [b"Mar 99 10:00:00 h k: x", b"2026-13-40-25:61:61.9", b"rankNum[8], rank[999999]", b"RankID:999999", b"\x00\xff",
     b"remote rank [" + b"9" * 30 + b"] the Notify record", b"Cluster Exception Location[IP/ID]:[",
     b"token=" * 40]))  # fmt: skip
NAMES = st.sampled_from(["worker_0.log", "worker_1.log", "scheduler.log", "plog-1_2.log", "dmesg.txt", "npu-smi.txt",
                         "a.txt", "b.log.gz"])  # fmt: skip
FILES = st.dictionaries(NAMES, st.lists(LINES, max_size=12), max_size=5)


def whole(files, folder):
    """Diagnose a folder of such files: no traceback, and what is told can be told."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, lines in files.items():
        text = b"\n".join(lines)
        (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") and len(text) % 2 else text)
    found = diagnose(folder)
    json.dumps([finding.to_json() for finding in found.findings])
    order = [(one.explained_by is not None, ["error", "warning", "info"].index(one.severity)) for one in found.findings]
    assert order == sorted(order)
    causes = {one.rule.id for one in found.findings}
    for one in found.findings:
        assert one.evidence and all(line.line >= 1 and len(line.text) < 500 for line in one.evidence)
        assert one.explained_by is None or one.explained_by in causes
    assert not found.findings or found.findings[0].explained_by is None, "something began it"
    above = {one.rule.id: one.explained_by for one in found.findings}
    for name in above:
        steps = 0
        while name is not None:
            name, steps = above[name], steps + 1
            assert steps <= len(above), "rules explain each other in a circle"
    done = CliRunner().invoke(command, [str(folder)], standalone_mode=False)
    assert done.exception is None or not found.files and "no log here" in str(done.exception), done.exception


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=FILES)
def test_any_bytes(files, tmp_path):
    whole(files, tmp_path / "job")


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=FILES)
def test_any_bytes_2000(files, tmp_path):
    whole(files, tmp_path / "job")


def test_no_regex_is_slow_on_a_long_line(tmp_path):
    path = tmp_path / "x.log"
    for piece in PIECES:
        path.write_bytes(piece + b" " + (piece[-20:] + b"\t a1[(=:") * 2000 + b"\n")
        found = scan(LogFile(path, path.name, "log", None), WANTED)
        assert found.lines and os.path.getsize(path) < reader.LONGEST_LINE_BYTES * 2
        findings([found], rules())
