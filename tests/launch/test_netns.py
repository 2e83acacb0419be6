"""The machines that other tests use are what they say."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from netns import cluster

pytestmark = pytest.mark.pure
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7000), timeout=2).close()"
LISTEN = "import socket; s = socket.create_server(('198.51.100.1', 7000)); print('up', flush=True); s.accept()"


def test_nodes_have_names_addresses_and_a_cable(tmp_path):
    with cluster(tmp_path, 3) as nodes:
        assert nodes.hosts == "node0 198.51.100.1\nnode1 198.51.100.2\nnode2 198.51.100.3\n"
        for node in nodes.nodes:
            done = subprocess.run([nodes.shell, node.name, "hostname"], capture_output=True, text=True, check=True)
            assert done.stdout == f"{node.name}\n"
        listener = subprocess.Popen(nodes.command("node0", [sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE)
        assert listener.stdout.readline() == b"up\n" and listener.pid in nodes.pids("node0")
        nodes.cut("node2")
        assert nodes.run("node2", [sys.executable, "-c", CONNECT, "198.51.100.1"]).returncode == 1
        assert nodes.run("node1", [sys.executable, "-c", CONNECT, "198.51.100.1"]).returncode == 0
        assert listener.wait(timeout=10) == 0
        nodes.mend("node2")
        deadline = time.monotonic() + 10
        while "Connection refused" not in (
            told := nodes.run("node2", [sys.executable, "-c", CONNECT, "198.51.100.1"]).stderr
        ):
            assert time.monotonic() < deadline, told
        sleeper = subprocess.Popen([nodes.shell, "node1", "sleep 100"])
        while sleeper.pid not in nodes.pids("node1"):
            assert sleeper.poll() is None
        nodes.kill("node1")
        assert sleeper.wait(timeout=10) == -9


def test_a_node_can_have_another_name_and_other_files(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("")
    with cluster(tmp_path) as nodes:
        nodes.host_name("node1", "twin")
        nodes.before("node1", f"mount -t tmpfs none {tmp_path}/data")
        line = f"hostname; ls {tmp_path}/data"
        told = [
            subprocess.run([nodes.shell, name, line], capture_output=True, text=True).stdout
            for name in ("node0", "node1")
        ]
        assert told == ["node0\nx\n", "twin\n"]
        assert subprocess.run([nodes.shell, "node9", "true"], capture_output=True).returncode == 255
