"""Through real ssh, from one network namespace to a server in another one."""

from __future__ import annotations

import json
import subprocess

import pytest
from netns import cluster
from netns_ssh import login, ssh_server, trust
from tiny_recipe import arguments, write_recipe

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("nodes")) as made:
        yield made


@pytest.fixture(scope="module")
def ssh(nodes):
    with ssh_server(nodes, "node1") as made:
        yield made


@pytest.fixture
def check(nodes, ssh, packaged, tmp_path):
    """`launch --check` on node0, which reaches node1 by ssh."""
    path = write_recipe(
        tmp_path,
        parallel__mode="data_parallel",
        parallel__data_parallel=2,
        train__micro_batch_size=1,
        cluster__nodes=2,
        cluster__devices_per_node=1,
        train__output_dir=str(tmp_path / "it's $HOME; here"),
    )
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(nodes.hosts)
    trust(ssh, nodes.node("node1").address, "host")
    login(ssh, nodes, "node1", "user")

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        line = arguments("launch", path, "--hosts", hosts, "--remote-shell", ssh.remote_shell, "--check", *words)
        named = ["unshare", "--uts", "sh", "-c", 'hostname node0; exec "$@"', "sh", *line]
        return nodes.run("node0", named, env=packaged, cwd=tmp_path)

    return call


def problem(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    (one,) = json.loads(done.stdout)["problems"]
    assert (one["key"], one["rule"]) == ("node1", "preflight_reach")
    return one["message"]


def test_nodes_are_asked_through_ssh(check):
    done = check()
    assert done.returncode == 0, done.stderr
    assert "\n  node1  node1 " in done.stderr and done.stdout == "Ready: 2 nodes, nothing was started.\n"


def test_a_key_that_the_server_does_not_know(check, ssh, nodes):
    login(ssh, nodes, "node1", "stranger")
    message = problem(check("--json"))
    assert "Permission denied (publickey)" in message and "ssh-copy-id node1" in message


def test_a_server_with_another_key(check, ssh, nodes):
    trust(ssh, nodes.node("node1").address, "stranger")
    message = problem(check("--json"))
    assert "Host key verification failed" in message and "connect once by hand with ssh node1" in message


def test_a_server_that_is_not_there(check, ssh):
    ssh.config.write_text(ssh.config.read_text().replace("Port 2222", "Port 2223"))
    message = problem(check("--json"))
    assert "Connection refused" in message and "does sshd listen there" in message


def test_a_name_that_ssh_does_not_know(check, ssh):
    ssh.config.write_text(ssh.config.read_text().replace("HostName 198.51.100.2", "HostName node1.invalid"))
    message = problem(check("--json"))
    assert "Could not resolve hostname" in message and "~/.ssh/config (Host node1, HostName ADDRESS)" in message
