"""A node's link breaks while a job runs over ssh: the node is given up, a spare takes its place, and nothing goes on
writing where nobody reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest
from inject import QUICK, STEPS, Run, incident, losses, recipe
from netns import cluster
from netns_ssh import ssh_server

pytestmark = pytest.mark.msrun

_SHELL = """#!/bin/sh
# HOST COMMAND_LINE: by ssh to the node that will be cut off, straight into the others.
if [ "$1" = node1 ]; then exec ssh -F {config} -o ServerAliveInterval=5 -- "$1" "$2"; fi
exec {other} "$1" "$2"
"""


def test_a_node_that_is_cut_off_is_replaced_by_a_spare(tmp_path, undisturbed):
    path = recipe(tmp_path, STEPS, cluster__nodes=2, cluster__devices_per_node=1)
    with cluster(tmp_path, 3) as nodes, ssh_server(nodes, "node1") as ssh:
        (tmp_path / "hosts.txt").write_text(nodes.hosts)
        shell = tmp_path / "shell"
        shell.write_text(_SHELL.format(config=ssh.config, other=nodes.shell))
        shell.chmod(0o755)
        words = ["--hosts", tmp_path / "hosts.txt", "--remote-shell", shell, "--env", "OMP_NUM_THREADS", "--json"]
        named = ["unshare", "--uts", "sh", "-c", 'hostname node0; exec "$@"', "sh"]
        supervised = Run(tmp_path, path, *QUICK, *words, before=nodes.command("node0", named), cwd=tmp_path)
        supervised.training(1)
        nodes.cut("node1")
        supervised.wait("attempt 2", lambda: "Attempt 2: " in supervised.told)
        alive = [pid for pid in nodes.pids("node1") if b"launch.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert alive == [], "a node that is cut off must not go on"
        code, document = supervised.finish()
    assert code == 0, supervised.told
    first, second = document["attempts"]
    assert (first["end"], first["node"], first["host"], first["action"]) == ("node_lost", 1, "node1", "exclude")
    assert second["end"] == "done" and second["from_step"] >= 10
    assert "node2 takes the place of node1 as node 1." in supervised.told
    assert incident(document, 1)["fault"]["kind"] == "node_lost"
    assert document["result"]["losses"] == undisturbed == losses(tmp_path)
    assert supervised.left() == []


def test_without_a_spare_it_says_what_runs_on_fewer_nodes(tmp_path):
    """A host that never answers, and nobody to take its place."""
    path = recipe(tmp_path, STEPS, cluster__nodes=2, cluster__devices_per_node=1)
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "ssh: connect to host $1 port 22: No route to host" >&2\nexit 255\n')
    shell.chmod(0o755)
    (tmp_path / "hosts.txt").write_text("near 198.51.100.8\nfar 198.51.100.9\n")
    words = ["--hosts", tmp_path / "hosts.txt", "--remote-shell", shell, "supervise.node_wait_s=1.0", "--json"]
    supervised = Run(tmp_path, path, *QUICK, *words)
    code, document = supervised.finish()
    assert code == 1, supervised.told
    assert {one["end"] for one in document["attempts"]} == {"node_lost"}
    assert [one["action"] for one in document["attempts"]][-1] == "give_up"
    assert "No route to host" in document["attempts"][0]["text"]
    assert "cluster.nodes=1 parallel.data_parallel=1" in document["gave_up"]
    assert document["attempts"][-1]["host"] in ("near", "far")
