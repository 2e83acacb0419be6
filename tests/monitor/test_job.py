"""What a run's folder says, whole, half written, gone, and full of anything."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from monitor.run_folder import write_checkpoint, write_log, write_rank
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from msparallel.cli.monitor_text import line_of, plain
from msparallel.launch.status import Heartbeat, WorkerStatus
from msparallel.monitor.job import SILENT_OTHER_S, SILENT_STEP_S, Expected, JobWatch
from msparallel.monitor.log_tail import KEPT_RECORDS, MOST_BYTES, MOST_LINE, LogTail
from msparallel.monitor.metrics import registry_of
from msparallel.monitor.snapshot import Snapshot, job_troubles, to_json
from msparallel.train.log import RunLog

pytestmark = pytest.mark.pure
NOW = 1_800_000_000.0


def watch(folder, **options):
    return JobWatch(folder, is_here=lambda pid: True, **options)


def test_a_run_at_work(tmp_path):
    write_log(tmp_path, now_s=NOW)
    write_rank(tmp_path, 0, now_s=NOW, step=42, age_s=1.0)
    write_rank(tmp_path, 1, now_s=NOW, step=42, age_s=1.5)
    os.utime(write_checkpoint(tmp_path, 20) / "state.json", (NOW - 50, NOW - 50))
    job = watch(tmp_path).at(NOW)
    assert (job.state, job.recipe, job.mesh, job.world_size, job.step, job.steps) == (
        "running", "tiny", "dp2 (2)", 2, 42, 100)  # fmt: skip
    assert job.losses[-1] == (40, 6.0) and job.losses[0] == (10, 7.5)
    assert job.step_s == pytest.approx(2.0) and job.left_s == pytest.approx(58 * 2.0)
    assert job.tokens_per_s == 4096.0 and job.evaluations == ((0, 8.0),)
    assert (job.checkpoint_step, job.checkpoint_age_s) == (20, 50.0)
    assert job.slowest is None and job.spread_s == pytest.approx(0.5)
    assert job_troubles(job) == []


def test_the_rank_that_is_behind_is_named(tmp_path):
    for rank, step in enumerate((42, 39, 42)):
        write_rank(tmp_path, rank, now_s=NOW, step=step)
    job = watch(tmp_path).at(NOW)
    assert (job.step, job.slowest) == (39, 1)
    assert [(trouble.where, trouble.text) for trouble in job_troubles(job)] == [("rank 1", "3 steps behind the first")]


@pytest.mark.parametrize(
    ("phase", "age_s", "silent"),
    [("step", SILENT_STEP_S - 1, False), ("step", SILENT_STEP_S + 1, True), ("compile", SILENT_STEP_S + 1, False),
     ("compile", SILENT_OTHER_S + 1, True), ("checkpoint", SILENT_STEP_S + 1, False), ("end", 1e6, False)],
)  # fmt: skip
def test_how_long_a_rank_may_say_nothing_depends_on_what_it_does(tmp_path, phase, age_s, silent):
    write_rank(tmp_path, 0, now_s=NOW, phase=phase, age_s=age_s)
    job = watch(tmp_path).at(NOW)
    assert job.ranks[0].silent is silent
    assert (job.state == "silent") is silent


def test_a_silent_rank_without_a_process_says_so_and_speed_is_not_told(tmp_path):
    write_log(tmp_path, now_s=NOW)
    write_rank(tmp_path, 0, now_s=NOW, age_s=500, pid=4711)
    job = JobWatch(tmp_path, is_here=lambda pid: False).at(NOW)
    assert job.state == "silent" and not job.live and job.left_s is None
    assert "process 4711 is not on this machine" in job_troubles(job)[0].text


def test_failed_done_and_not_started(tmp_path):
    assert watch(tmp_path / "none", expected=Expected(recipe="r", mesh="m", world_size=2, steps=9)).at(NOW).state == (
        "not started")  # fmt: skip
    write_rank(tmp_path / "failed", 0, now_s=NOW)
    write_rank(tmp_path / "failed", 1, now_s=NOW, state="failed", text="disk full")
    job = watch(tmp_path / "failed").at(NOW)
    assert job.state == "failed" and job_troubles(job)[0].text == "failed: disk full"
    write_rank(tmp_path / "done", 0, now_s=NOW, state="done", age_s=1e6)
    assert watch(tmp_path / "done").at(NOW).state == "done"
    write_log(tmp_path / "alone", now_s=NOW - 1e6, done=100, ended=True)
    job = watch(tmp_path / "alone").at(NOW)
    assert (job.state, job.step, job.live) == ("done", 100, False)


def test_one_process_without_heartbeat_is_judged_by_its_log(tmp_path):
    write_log(tmp_path, now_s=NOW, step_s=30.0, every=10)
    assert watch(tmp_path).at(NOW + 290).state == "running"  # a record is due every 300 s
    assert watch(tmp_path).at(NOW + 3001).state == "silent"


def test_what_the_run_itself_writes_is_read(tmp_path):
    """Not a copy of the format: the writers of `run`."""
    logs = tmp_path / "logs"
    logs.mkdir()
    WorkerStatus(logs, 0)
    beat = Heartbeat(logs, 0)
    beat(3, "step", 0.5, 5.5)
    log = RunLog(tmp_path / "log.jsonl", keep_steps=0)
    log.append("start", recipe="r", plan={"mesh": "dp1 (1)", "world_size": 1}, sections={"train": {"steps": 8}})
    log.train(3, losses=[5.7, 5.6, 5.5], grad_norm=0.5, learning_rate=0.1, tokens_per_s=64.0)
    log.evaluation(3, 5.4)
    job = JobWatch(tmp_path).at(time.time())
    assert (job.state, job.step, job.steps, job.losses[-1], job.evaluations) == (
        "running", 3, 8, (3, 5.5), ((3, 5.4),))  # fmt: skip
    assert job.ranks[0].file.loss == 5.5 and job.ranks[0].file.pid == os.getpid()


def test_a_log_is_followed_while_it_grows_and_when_it_is_written_anew(tmp_path):
    path = write_log(tmp_path, now_s=NOW, done=20)
    tail = LogTail(path)
    assert tail.read().train[-1].step == 20
    line = json.dumps({"event": "train", "time": NOW, "step": 30, "loss": 1.0}).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line[:17])
    assert (tail.read().train[-1].step, tail.read().bad_lines) == (20, 0)
    with path.open("ab") as file:
        file.write(line[17:])
    assert (tail.read().train[-1].step, tail.read().bad_lines) == (30, 0)
    partial = tmp_path / "log.jsonl.partial"
    partial.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    partial.replace(path)  # as a resumed run does
    assert [record.step for record in tail.read().train] == [10]
    path.unlink()
    assert [record.step for record in tail.read().train] == [10]


def test_starts_after_the_first_are_counted(tmp_path):
    write_log(tmp_path, now_s=NOW, resumed=True)
    assert watch(tmp_path).at(NOW).restarts == 1


def test_of_a_long_log_the_end_is_read_and_the_first_line(tmp_path):
    path = write_log(tmp_path, now_s=NOW, done=10)
    record = json.dumps({"event": "train", "time": NOW, "step": 11, "loss": 1.0, "filler": "x" * 200}) + "\n"
    with path.open("a") as file:
        file.write(record * (2 * MOST_BYTES // len(record)))
        file.write(json.dumps({"event": "train", "time": NOW, "step": 99_999, "loss": 2.0}) + "\n")
    log = LogTail(path).read()
    assert log.start["recipe"] == "tiny" and log.train[-1].step == 99_999
    assert (len(log.train), log.bad_lines) == (KEPT_RECORDS, 0)


def test_a_line_without_end_is_one_bad_line_and_what_follows_is_read(tmp_path):
    path = write_log(tmp_path, now_s=NOW, done=10)
    tail = LogTail(path)
    for _ in range(4):
        with path.open("ab") as file:
            file.write(b"x" * (MOST_LINE // 2 + 1))
        tail.read()
    with path.open("a") as file:
        file.write("\n" + json.dumps({"event": "train", "time": NOW, "step": 30, "loss": 1.0}) + "\n")
    assert (tail.read().train[-1].step, tail.read().bad_lines) == (30, 1)


def test_incidents_of_supervise(tmp_path):
    write_rank(tmp_path, 0, now_s=NOW)
    killed = {"fault": {"kind": "worker_killed", "rank": 1, "step": 7, "text": "Rank 1 was killed."}}
    for name, text in {"001": "{}", "002": json.dumps(killed), "x": "{}"}.items():
        (tmp_path / "incidents" / name).mkdir(parents=True)
        (tmp_path / "incidents" / name / "incident.json").write_text(text)
    told = watch(tmp_path).at(NOW).incidents
    assert (told.count, told.last, told.kind, told.rank, told.step) == (2, "002", "worker_killed", 1, 7)
    (tmp_path / "incidents" / "003").mkdir()  # its file is not written yet
    assert (watch(tmp_path).at(NOW).incidents.count, watch(tmp_path).at(NOW).incidents.kind) == (3, "")
    (tmp_path / "incidents" / "003" / "incident.json").write_text('{"fault": [1], "x": ')
    assert watch(tmp_path).at(NOW).incidents.kind == ""


def test_pipes_folders_and_links_to_nothing_in_place_of_files(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    os.mkfifo(logs / "rank_0.json")
    os.mkfifo(tmp_path / "log.jsonl")
    (logs / "rank_1.beat").mkdir()
    (logs / "rank_2.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "checkpoints").write_text("no folder")
    job = watch(tmp_path).at(NOW)
    assert (job.state, job.ranks, job.checkpoint_step) == ("not started", (), None)


def test_a_folder_that_vanishes_between_two_looks(tmp_path):
    folder = tmp_path / "run"
    write_log(folder, now_s=NOW)
    write_rank(folder, 0, now_s=NOW)
    watching = watch(folder)
    assert watching.at(NOW).ranks
    shutil.rmtree(folder)
    job = watching.at(NOW + 10)
    assert job.ranks == () and job.losses[-1] == (40, 6.0) and job.log_age_s == 10
    assert [trouble.text for trouble in job_troubles(job)] == ["the folder is not there any more"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("rank", "pid", "state", "time", "text", "exit_code", "step", "phase", "step_s", "loss", "event", "eval_loss",
        "plan", "sections", "recipe", "tokens_per_s", "grad_norm", "learning_rate")  # fmt: skip
WORDS = st.sampled_from(["running", "done", "failed", "killed", "step", "end", "start", "train", "eval", "compile"])
objects = st.dictionaries(st.sampled_from(KEYS), WORDS | json_values, max_size=8).map(lambda v: json.dumps(v).encode())
garbage = st.binary(max_size=200) | objects | objects.map(lambda data: data[: len(data) // 2]) | st.sampled_from(
    [b"[" * 50_000, b"{\"step\":" + b"9" * 5000 + b"}", b"\xff\xfe", b"null", b"[]", b"\"x\"", b"{}"])  # fmt: skip


def check_garbage(folder, state, beat, lines):
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "rank_0.json").write_bytes(state)
    (logs / "rank_0.beat").write_bytes(beat)
    (folder / "log.jsonl").write_bytes(b"\n".join(lines))
    job = JobWatch(folder).at(NOW)
    text = json.dumps(to_json(Snapshot(time_s=NOW, machines=(), marks=(), job=job)), allow_nan=False)
    assert json.loads(text)["job"]["state"] == job.state
    snapshot = Snapshot(time_s=NOW, machines=(), marks=(), job=job)
    shown = plain(snapshot, width=80) + line_of(snapshot)
    assert not any(ord(character) < 32 for character in shown.replace("\n", ""))
    assert list(text_string_to_metric_families(generate_latest(registry_of(lambda: snapshot)).decode()))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=garbage, beat=garbage, lines=st.lists(garbage, max_size=6))
def test_any_bytes_in_a_runs_files(tmp_path, state, beat, lines):
    check_garbage(tmp_path / "run", state, beat, lines)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=garbage, beat=garbage, lines=st.lists(garbage, max_size=6))
def test_any_bytes_in_a_runs_files_long(tmp_path, state, beat, lines):
    check_garbage(tmp_path / "run", state, beat, lines)
