"""Real workers under MindSpore's msrun: the same losses as one process, and what happens when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tiny_recipe import arguments, environment, output, run, run_json, write_recipe

pytestmark = pytest.mark.msrun


def recipe(folder: Path, workers: int, **changes) -> Path:
    return write_recipe(
        folder,
        parallel__mode="data_parallel",
        parallel__data_parallel=workers,
        train__micro_batch_size=1,
        **changes,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run_json(recipe(tmp_path_factory.mktemp("alone"), 1))


def close(result, expected):
    assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert [e["loss"] for e in result["eval_losses"]] == pytest.approx(
        [e["loss"] for e in expected["eval_losses"]], rel=1e-5
    )


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_train_as_one_process_does(alone, tmp_path, workers):
    result = run_json(recipe(tmp_path, workers))
    assert result["world_size"] == workers
    close(result, alone)
    logs = output(tmp_path) / "logs"
    assert all((logs / f"worker_{rank}.log").exists() for rank in range(workers))
    assert [p.name for p in (output(tmp_path) / "checkpoints" / "step_000006").iterdir() if p.is_dir()] == []


def start(path: Path) -> subprocess.Popen:
    return subprocess.Popen(arguments("run", path), env=environment(), stderr=subprocess.PIPE, text=True)


def wait_for_step(folder: Path, step: int) -> None:
    log = output(folder) / "log.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.exists() and f'"step": {step},' in log.read_text():
            return
        time.sleep(0.01)
    pytest.fail(f"step {step} did not come")


def worker_pids(folder: Path) -> dict[int, int]:
    states = (output(folder) / "logs").glob("rank_*.json")
    return {state["rank"]: state["pid"] for state in map(json.loads, map(Path.read_text, states))}


def gone(pids) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_a_killed_worker_is_named_the_rest_stops_and_the_run_goes_on(tmp_path):
    path = recipe(tmp_path, 2, train__steps=400, train__checkpoint_interval=2, train__eval_interval=400)
    process = start(path)
    wait_for_step(tmp_path, 5)
    pids = worker_pids(tmp_path)
    os.kill(pids[1], signal.SIGKILL)
    killed = time.monotonic()
    _, told = process.communicate(timeout=120)
    assert time.monotonic() - killed < 30
    assert process.returncode == 1 and "Traceback" not in told
    assert "Rank 1 of 2 was killed by SIGKILL" in told and "worker_1.log" in told
    assert gone(pids.values())
    checkpoints = sorted((output(tmp_path) / "checkpoints").glob("step_*"))
    reached = int(checkpoints[-1].name[5:])
    done = run("run", path, f"train.steps={reached + 2}", "train.eval_interval=2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed_from"] == reached


def test_sigterm_stops_all_workers(tmp_path):
    process = start(recipe(tmp_path, 2, train__steps=400, train__eval_interval=400))
    wait_for_step(tmp_path, 2)
    pids = worker_pids(tmp_path)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130 and gone(pids.values())


def test_the_first_real_error_is_told_not_the_launchers(tmp_path):
    path = recipe(tmp_path, 2, optimizer__learning_rate=1e30, optimizer__clip_norm=0)
    done = run("run", path)
    assert done.returncode == 1 and "Traceback" not in done.stderr.split("failed first")[1]
    assert "of 2 failed first:" in done.stderr and "The loss of step" in done.stderr
