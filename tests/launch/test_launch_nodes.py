"""Whole jobs over machines made of network namespaces, with MindSpore's workers on the processor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from netns import Cluster, cluster
from tiny_recipe import arguments, output, run_json, write_recipe

pytestmark = pytest.mark.msrun
LONG = {"train__steps": 400, "train__eval_interval": 400, "train__checkpoint_interval": 100}


def recipe(folder: Path, nodes: int, workers: int = 1, **changes: object) -> Path:
    return write_recipe(
        folder,
        parallel__mode="data_parallel",
        parallel__data_parallel=nodes * workers,
        train__micro_batch_size=1,
        cluster__nodes=nodes,
        cluster__devices_per_node=workers,
        **changes,
    )


@pytest.fixture
def nodes(tmp_path):
    with cluster(tmp_path) as made:
        (tmp_path / "hosts.txt").write_text(made.hosts)
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run_json(write_recipe(tmp_path_factory.mktemp("alone"), train__micro_batch_size=1))


def start(nodes: Cluster, environment: dict, path: Path, *words: object) -> subprocess.Popen[str]:
    command = ["launch", path, "--hosts", nodes.folder / "hosts.txt", "--remote-shell", nodes.shell, *words]
    return subprocess.Popen(
        arguments(*command),
        env=environment,
        cwd=nodes.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_step(folder: Path, step: int) -> dict[int, int]:
    """Worker pids, once both have taken a step."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        log = output(folder) / "log.jsonl"
        if log.exists() and f'"step": {step},' in log.read_text():
            states = [json.loads(path.read_text()) for path in (output(folder) / "logs").glob("rank_*.json")]
            return {state["rank"]: state["pid"] for state in states}
        time.sleep(0.05)
    pytest.fail(f"step {step} did not come")


def nothing_runs(nodes: Cluster, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(nodes.pids(node.name) for node in nodes.nodes):
            return True
        time.sleep(0.2)
    return False


def close(result: dict, expected: dict) -> None:
    assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert [e["loss"] for e in result["eval_losses"]] == pytest.approx(
        [e["loss"] for e in expected["eval_losses"]], rel=1e-5
    )


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_nodes_train_as_one_process_does(packaged, nodes, tmp_path, alone, workers):
    path = recipe(tmp_path, 2, workers)
    done = start(nodes, packaged, path, "--json")
    out, told = done.communicate(timeout=300)
    assert done.returncode == 0, told
    result = json.loads(out)
    assert result["world_size"] == 2 * workers and result.keys() == alone.keys()
    close(result, alone)
    logs = output(tmp_path) / "logs"
    names = {f"worker_{rank}.log" for rank in range(2 * workers)} | {"scheduler.log", "msrun_0.log", "msrun_1.log"}
    assert names <= {path.name for path in logs.iterdir()}
    assert nothing_runs(nodes)
    again = start(nodes, packaged, path)
    out, told = again.communicate(timeout=120)
    assert again.returncode == 0 and "tiny was already trained to step 6; nothing was done." in out, told


def test_a_worker_that_is_killed_is_named_with_its_node_and_all_stop(packaged, nodes, tmp_path):
    process = start(nodes, packaged, recipe(tmp_path, 2, **LONG))
    os.kill(wait_for_step(tmp_path, 3)[1], signal.SIGKILL)
    _, told = process.communicate(timeout=90)
    assert process.returncode == 1 and "Traceback" not in told.partition("failed first")[2]
    assert "Node 1 (node1) failed first:\nRank 1 of 2 was killed by SIGKILL" in told
    assert nothing_runs(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_stops_all_nodes(packaged, nodes, tmp_path, number):
    process = start(nodes, packaged, recipe(tmp_path, 2, **LONG))
    wait_for_step(tmp_path, 3)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and told.endswith("Interrupted.\n")
    assert nothing_runs(nodes, seconds=1.0)


@pytest.mark.slow
def test_nodes_stop_when_the_launcher_is_killed(packaged, nodes, tmp_path):
    process = start(nodes, packaged, recipe(tmp_path, 2, **LONG))
    wait_for_step(tmp_path, 3)
    process.kill()
    process.communicate()
    assert nothing_runs(nodes)


@pytest.mark.slow
def test_one_node_of_a_list_and_none_run_alike(packaged, tmp_path, alone):
    """Without a list on this machine, with one on another."""
    here = tmp_path / "here"
    here.mkdir()
    done = subprocess.run(
        arguments("launch", recipe(here, 1, 2), "--json"), capture_output=True, text=True, env=packaged, cwd=here
    )
    assert done.returncode == 0, done.stderr
    close(json.loads(done.stdout), alone)
    with cluster(tmp_path, 1) as nodes:
        (tmp_path / "hosts.txt").write_text(nodes.hosts)
        process = start(nodes, packaged, recipe(tmp_path, 1, 2), "--json")
        out, told = process.communicate(timeout=300)
        assert process.returncode == 0, told
        close(json.loads(out), alone)
