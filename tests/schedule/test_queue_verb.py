"""`msparallel queue-simulate` as a user meets it: output, exit codes, files; no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from msparallel.cli import queue_simulate
from msparallel.cli.main import main
from msparallel.cli.queue_simulate_text import span
from msparallel.schedule.queue.job import KINDS
from msparallel.schedule.queue.policies import POLICIES

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
DAY = str(ROOT / "docs" / "examples" / "queue" / "day.csv")


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs `msparallel queue-simulate WORDS` in an own folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["queue-simulate", *words])
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return call


def test_names_on_the_command_line_are_those_of_the_simulation():
    assert tuple(POLICIES) == queue_simulate.POLICY_NAMES and KINDS == queue_simulate.KIND_NAMES


def test_the_example_under_all_policies(run):
    code, out, err = run(DAY, "--nodes", "2")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert lines[0].startswith("Simulation, not a measurement: ")
    assert lines[1] == ("8 jobs (4 training, 2 inference, 1 evaluation, 1 interactive) on 2 nodes x 8 devices = 16")
    assert max(map(len, lines[2:])) <= 100
    for policy in POLICIES:
        assert any(line.startswith(f"  {policy} ") for line in lines)


def test_json_is_one_document_and_says_what_it_is(run):
    code, out, err = run(DAY, "--nodes", "2", "--policy", "standby", "--policy", "fifo", "--json")
    found = json.loads(out)
    assert code == 0 and err == "" and found["simulation"] is True
    assert [policy["policy"] for policy in found["policies"]] == ["fifo", "standby"]
    fifo, standby = found["policies"]
    assert fifo["utilisation"] > fifo["without_inference"] > 0
    assert standby["waits"]["training"]["mean_s"] < fifo["waits"]["training"]["mean_s"]
    assert set(fifo) == set(standby) >= {"useful_h", "lost_h", "restart_h", "idle_h", "fairness", "makespan_s"}


def test_policies_named_twice_and_all(run):
    for words in (["--policy", "all"], ["--policy", "all", "--policy", "fifo"], []):
        found = json.loads(run(DAY, "--nodes", "2", *words, "--json")[1])
        assert [policy["policy"] for policy in found["policies"]] == list(POLICIES)


def test_a_job_that_can_never_run_is_refused_with_its_line(run):
    code, out, err = run(DAY, "--nodes", "1")
    assert code == 2 and out == ""
    assert "day.csv:3  devices: 16\n  The cluster has 1 node x 8 devices = 8, so the job can never start." in err
    code, out, _ = run(DAY, "--nodes", "1", "--json")
    assert code == 2 and json.loads(out)["problems"][0]["line"] == 3


@pytest.mark.parametrize(("words", "told"), [
    ([], "Give TRACE.csv, or --synthetic SEED."),
    ([DAY, "--synthetic", "1"], "Give TRACE.csv, or --synthetic SEED."),
    ([DAY, "--load", "0.5"], "give --synthetic SEED"),
    ([DAY, "--policy", "lifo"], "'lifo' is not one of"),
    ([DAY, "--nodes", "0"], "0 is not in the range"),
    (["none.csv"], "none.csv"),
    ([DAY, "--nodes", "2", "--queue", "train"], "NAME=WEIGHT"),
    ([DAY, "--nodes", "2", "--queue", "train=0"], "from 1 to 9999"),
    ([DAY, "--nodes", "2", "--queue", "trian=2"], "Its queues are serve, train."),
    ([DAY, "--nodes", "2", "--checkpoint-interval", "0"], "0.0 is not in the range"),
    ([DAY, "--nodes", "2", "--checkpoint-interval", "nan"], "'nan' is not in the range"),
    (["--synthetic", "1", "--load", "nan"], "'nan' is not in the range"),
    (["--synthetic", "1", "--standby-load", "NaN"], "'NaN' is not in the range"),
    (["--synthetic", "1", "--load", "inf"], "inf is not in the range"),
    (["--synthetic", "1", "--days", "1", "--standby-load", "0", "--only", "inference"], "no job is of this class"),
])  # fmt: skip
def test_wrong_words(run, words, told):
    code, out, err = run(*words)
    assert code == 2 and out == "" and told in " ".join(err.split())


def test_only_and_checkpoint_interval(run):
    code, out, _ = run(DAY, "--nodes", "2", "--only", "training", "--checkpoint-interval", "60", "--policy", "preempt",
                       "--save-trace", "t.csv")  # fmt: skip
    assert code == 0 and "only training, a checkpoint every 60 s" in " ".join(out.split())
    rows = Path("t.csv").read_text().splitlines()
    assert len(rows) == 2 + 4 and all(",60," in row for row in rows[2:])


def test_checkpoint_interval_leaves_inference_alone(run):
    run(DAY, "--nodes", "2", "--checkpoint-interval", "77", "--policy", "fifo", "--save-trace", "t.csv")
    rows = Path("t.csv").read_text().splitlines()[2:]
    assert all((",77," in row) != (",inference," in row) for row in rows)


def test_a_saved_trace_gives_the_same_and_is_not_overwritten(run):
    words = ["--synthetic", "4", "--days", "2", "--policy", "standby", "--policy", "reclaim", "--queue", "train=3",
             "--queue", "serve=1,keep"]  # fmt: skip
    made = json.loads(run(*words, "--save-trace", "t.csv", "--json")[1])
    read = json.loads(run("t.csv", *words[4:], "--json")[1])
    assert read["policies"] == made["policies"]
    Path("t.csv").write_text("mine\n")
    code, _, err = run(*words, "--save-trace", "t.csv")
    assert code == 2 and "it was left as it is" in err and Path("t.csv").read_text() == "mine\n"
    assert run(*words, "--save-trace", "t.csv", "--force")[0] == 0


def test_plot(run):
    code, out, _ = run(DAY, "--nodes", "2", "--plot", "q.png")
    assert code == 0 and "Picture  q.png" in out and Path("q.png").read_bytes().startswith(b"\x89PNG")
    Path("q.png").write_text("mine\n")
    code, out, err = run(DAY, "--nodes", "2", "--plot", "q.png")
    assert code == 2 and "another file is there" in err and Path("q.png").read_text() == "mine\n"


def test_two_processes_say_the_same():
    """Nothing hangs on the order of hashes."""
    command = [sys.executable, "-m", "msparallel", "queue-simulate", "--synthetic", "9", "--days", "3", "--json"]
    told = {
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT,
                       env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout for seed in ("1", "2")
    }  # fmt: skip
    assert len(told) == 1


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2.0 min"), (7200, "2.0 h"),
                                               (259_200, "3.0 d")])  # fmt: skip
def test_spans(seconds, text):
    assert span(seconds) == text
