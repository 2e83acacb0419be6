"""A job over real ssh: started on node0, whose other node has an ssh server of its own; and a link that breaks."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from netns import Cluster, cluster
from netns_ssh import Ssh, ssh_server
from tiny_recipe import arguments, output, run_json, write_recipe

pytestmark = pytest.mark.msrun


@pytest.fixture
def nodes(tmp_path):
    with cluster(tmp_path) as made:
        (tmp_path / "hosts.txt").write_text(made.hosts)
        yield made


@pytest.fixture
def ssh(nodes):
    with ssh_server(nodes, "node1") as made:
        yield made


def start(nodes: Cluster, ssh: Ssh, environment: dict, path: Path, *words: str) -> subprocess.Popen[str]:
    hosts = nodes.folder / "hosts.txt"
    line = arguments("launch", path, "--hosts", hosts, "--remote-shell", ssh.remote_shell, *words)
    named = ["unshare", "--uts", "sh", "-c", 'hostname node0; exec "$@"', "sh", *line]
    return subprocess.Popen(
        nodes.command("node0", named),
        env=environment,
        cwd=nodes.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def recipe(folder: Path, **changes: object) -> Path:
    parallel = {"parallel__mode": "data_parallel", "parallel__data_parallel": 2}
    shape = {"cluster__nodes": 2, "cluster__devices_per_node": 1, "train__micro_batch_size": 1}
    return write_recipe(folder, **parallel, **shape, **changes)


def test_a_job_over_ssh_trains_as_one_process_does(nodes, ssh, packaged, tmp_path, tmp_path_factory):
    alone = run_json(write_recipe(tmp_path_factory.mktemp("alone"), train__micro_batch_size=1))
    process = start(nodes, ssh, packaged, recipe(tmp_path), "--json")
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert json.loads(out)["losses"] == pytest.approx(alone["losses"], rel=1e-5)


@pytest.mark.slow
def test_a_link_that_breaks_stops_both_sides(nodes, ssh, packaged, tmp_path):
    path = recipe(tmp_path, train__steps=4000, train__eval_interval=4000, train__checkpoint_interval=1000)
    process = start(nodes, ssh, packaged, path)
    log, deadline = output(tmp_path) / "log.jsonl", time.monotonic() + 180
    while not (log.exists() and '"step": 3,' in log.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    nodes.cut("node1")
    _, told = process.communicate(timeout=120)
    assert process.returncode == 1 and "failed first:" in told and "Traceback" not in told.partition("failed first")[2]
    deadline = time.monotonic() + 60
    while workers := [pid for pid in nodes.pids("node1") if b"msparallel" in Path(f"/proc/{pid}/cmdline").read_bytes()]:
        assert time.monotonic() < deadline, workers
        time.sleep(0.5)
    print(told)
