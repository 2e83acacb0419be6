"""The pre-flight on machines made of network namespaces: what is wrong is refused, all of it at once, and nothing is
left behind. No MindSpore is imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from netns import Cluster, cluster
from tiny_recipe import arguments, run, write_recipe

from msparallel.devices.npu_smi import EXAMPLE

pytestmark = pytest.mark.pure
LISTEN = (
    "import socket, time; s = socket.create_server(('198.51.100.1', 8118)); print('up', flush=True); time.sleep(99)"
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("nodes")) as made:
        yield made


@pytest.fixture
def job(tmp_path, nodes, package):
    """A recipe for two nodes, as each of them sees it, and a host list."""
    for node in nodes.nodes:
        nodes.before(node.name, "")
        nodes.host_name(node.name, node.name)
    return Job(tmp_path, nodes, package)


class Job:
    def __init__(self, folder: Path, nodes: Cluster, package: Path):
        self.folder, self.nodes, self.package = folder, nodes, package
        self.recipe = write_recipe(
            folder,
            parallel__mode="data_parallel",
            parallel__data_parallel=2,
            train__micro_batch_size=1,
            cluster__nodes=2,
            cluster__devices_per_node=1,
        )
        (folder / "hosts.txt").write_text(nodes.hosts)
        self.before = sorted(path.name for path in folder.iterdir())

    def check(self, *words: object, shell: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [
            "launch",
            self.recipe,
            "--hosts",
            "hosts.txt",
            "--check",
            "--remote-shell",
            shell or self.nodes.shell,
        ]
        return subprocess.run(
            arguments(*command, *words),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.package), "COLUMNS": "200"},  # versions differ in length
            cwd=self.folder,
            timeout=120,
        )

    def problems(self, *words: object) -> list[tuple[str, str, str]]:
        """(node, rule, message) of a job that is refused."""
        done = self.check("--json", *words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        found = json.loads(done.stdout)["problems"]
        assert all(one["file"] == "hosts.txt" and one["line"] for one in found)
        return [(one["key"], one["rule"].removeprefix("preflight_"), one["message"]) for one in found]

    def python(self, text: str) -> Path:
        """A program that stands for the nodes' Python; `text` runs first."""
        script = self.folder / f"python{len(list(self.folder.iterdir()))}"
        script.write_text(f'#!/bin/sh\n{text}\nexec {sys.executable} "$@"\n')
        script.chmod(0o755)
        return script


def test_two_nodes_are_ready_and_nothing_stays(job):
    done = job.check()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Ready: 2 nodes, nothing was started.\n"
    head, _, first, second = done.stderr.splitlines()
    assert head == "Pre-flight of 2 nodes, master 198.51.100.1:8118"
    assert re.match(r"  node0  node0  3\.\d+\.\d+ +2\..* written +listens +\d+ cores", first)
    assert re.match(r"  node1  node1  3\.\d+\.\d+ +2\..* same +connects +\d+ cores", second)
    assert sorted(path.name for path in job.folder.iterdir()) == job.before


def test_a_port_that_is_taken(job, nodes):
    holder = subprocess.Popen(nodes.command("node0", [sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"up\n"
        done = job.check()
        assert done.returncode == 2
        assert "hosts.txt:1  node0: 8118\n  The scheduler cannot listen on 198.51.100.1:8118" in done.stderr
        assert done.stderr.endswith("--master-port 8119.\n\n1 problem found, nothing was started.\n")
        assert job.check("--master-port", "8119").returncode == 0
    finally:
        holder.kill()
        holder.wait()


def test_recipe_name_folder_and_version_that_differ_are_told_together(job, nodes):
    """On node1: a changed recipe, node0's name, a folder of its own, another msparallel."""
    changed = job.folder / "changed.yaml"
    changed.write_text(job.recipe.read_text() + "# changed\n")
    (job.folder / "output").mkdir()
    package = job.folder / "other" / "msparallel"
    shutil.copytree(job.package / "msparallel", package)
    (package / "__init__.py").write_text('__version__ = "0.0.1"\n')
    (package.parent / "recipes").mkdir()
    nodes.before("node1", f"mount --bind {changed} {job.recipe}; mount -t tmpfs none {job.folder}/output")
    nodes.host_name("node1", "node0")
    python = job.python(f"grep -q changed {job.recipe} && export PYTHONPATH={package.parent}")
    found = {rule: message for node, rule, message in job.problems("--python", python) if node == "node1"}
    assert set(found) == {"msparallel", "recipe", "output_dir", "host_name"}
    assert "not the one that launches, 0.1.0 (" in found["msparallel"]
    assert "another content here than where it was launched" in found["recipe"]
    assert f"node 0 wrote to {job.folder}/output is not seen" in found["output_dir"]
    assert "node0 has this host name too" in found["host_name"]
    assert not list((job.folder / "output").iterdir())
    done = job.check("--python", python)
    assert done.returncode == 2 and "4 problems found, nothing was started." in done.stderr
    row = next(line for line in done.stderr.splitlines() if line.startswith("  node1"))
    assert row.count(" !") == 4


def test_a_master_that_cannot_be_reached(job, nodes):
    nodes.cut("node1")
    try:
        ((node, rule, message),) = job.problems()
    finally:
        nodes.mend("node1")
    assert (node, rule) == ("node1", "connect") and "Node 0 listened there at that moment" in message


def test_an_address_that_is_not_node_0s(job):
    (job.folder / "hosts.txt").write_text("node0 198.51.100.2\nnode1 198.51.100.1\n")
    found = [(node, rule) for node, rule, _ in job.problems()]
    assert found == [("node0", "master"), ("node1", "master")]
    (job.folder / "hosts.txt").write_text("node0 198.51.100.77\nnode1 198.51.100.1\n")
    ((node, rule, message),) = job.problems()
    assert (node, rule) == ("node0", "master") and "198.51.100.77 is no address of this node" in message


def test_nodes_that_do_not_answer_say_why(job):
    (job.folder / "hosts.txt").write_text("node0 198.51.100.1\nnode7 198.51.100.7\n")
    ((node, rule, message),) = job.problems()
    assert (node, rule) == ("node7", "reach") and "no such host: node7" in message
    (job.folder / "hosts.txt").write_text(job.nodes.hosts)
    for words, said in (
        (["--python", "/no/python"], "--python PATH"),
        (["--workdir", "/no/folder"], "--workdir PATH"),
        (["--python", job.python("echo greetings; echo trouble >&2; exit 3")], "no answer: trouble"),
        (["--python", job.python("exit 3")], "ended with code 3 and without a word"),
        (["--python", job.python("yes | head -c 9000000")], "more than 262,144 bytes and no answer"),
        (["--python", job.python("""echo '{"format": 9, "msparallel": "7.0"}'; exit 0""")], "msparallel 7.0"),
        (["--python", job.python(f'exec env PYTHONPATH=/nowhere {sys.executable} -S "$@"')],
         "msparallel is not installed for that Python"),
    ):
        found = job.problems(*words)
        assert [(node, rule) for node, rule, _ in found] == [("node0", "reach"), ("node1", "reach")], found
        assert all(said in message for _, _, message in found), found


def test_a_greeting_on_stdout_is_no_answer(job):
    assert job.check("--python", job.python("echo Welcome; echo '{\"hello\": 1}'")).returncode == 0


def test_a_remote_shell_that_is_not_there(job):
    """Said once and not of every node; nobody is asked."""
    for shell in ("/no/such/shell", "nosuchprogram -p 2"):
        done = job.check(shell=shell)
        assert done.returncode == 2 and done.stderr.count(f"there is no program {shell.split()[0]}") == 1
        assert "node0" not in done.stderr and "Pre-flight" not in done.stderr
        hosts = job.folder / "hosts.txt"
        assert run("supervise", job.recipe, "--hosts", hosts, "--remote-shell", shell).returncode == 2


def test_notes_stand_apart_from_problems(job, nodes):
    """A clock that is off by a minute is no problem; a port that is taken is one."""
    holder = subprocess.Popen(nodes.command("node0", [sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE)
    late = job.folder / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 60\n")
    nodes.before("node1", f"export PYTHONPATH={late}:$PYTHONPATH")
    python = job.python(f'case "$(hostname)" in node1) export PYTHONPATH={late}:$PYTHONPATH;; esac')
    try:
        assert holder.stdout.readline() == b"up\n"
        done, told = job.check("--python", python), job.check("--python", python, "--json")
    finally:
        holder.kill()
        holder.wait()
    assert done.returncode == 2 and done.stderr.endswith("\n\n1 problem found, nothing was started.\n")
    assert "\n\nNote: hosts.txt:2  node1: +6" in done.stderr
    assert done.stderr.index("Note: ") < done.stderr.index("\n\nhosts.txt:1  node0: 8118")
    document = json.loads(told.stdout)
    assert told.returncode == 2 and [one["rule"] for one in document["problems"]] == ["preflight_port"]
    assert [one["rule"] for one in document["warnings"]] == ["preflight_clock"]
    ready = job.check("--python", python)
    assert ready.returncode == 0 and "Note: " in ready.stderr and ready.stdout.startswith("Ready")


def test_devices_that_somebody_uses(job, nodes):
    """With a stand-in for npu-smi on each node, that of node1 with a process on its third device."""
    head, *header, first, second, title, process = EXAMPLE.splitlines()
    devices = [line.replace("| 0     ", f"| {npu}     ", 1) for npu in range(4) for line in (first, second)]
    devices[1::2] = [second] * 4
    idle = [f"| No running processes found in NPU {npu} |" for npu in range(4)]
    busy = [process.replace("| 0       0 ", "| 2       0 "), *idle[:2], idle[3]]
    for name, processes in (("node0", idle), ("node1", busy)):
        tools = job.folder / name
        tools.mkdir()
        (tools / "npu-smi.txt").write_text("\n".join([head, *header, *devices, title, *processes]) + "\n")
        (tools / "npu-smi").write_text(f'#!/bin/sh\n[ "$*" = info ] && cat {tools}/npu-smi.txt\n')
        (tools / "npu-smi").chmod(0o755)
        nodes.before(name, f"export PATH={tools}:$PATH")
    job.recipe = "llama2_7b_dp2_tp2_pp2"
    words = ["cluster.nodes=2", "cluster.devices_per_node=4", f"train.output_dir={job.folder}/output"]
    found = [(node, message) for node, rule, message in job.problems(*words) if rule == "devices"]
    assert found == [
        (
            "node1",
            "The devices cannot be used for this job: NPU 2: python3.11 (pid 4711, 28,170 MiB) holds it.",
        )
    ]
