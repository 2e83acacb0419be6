"""Machines made of Linux network namespaces: each has an own network card, address and host name; the file system is
shared, as a cluster's folder is. Tests that start several nodes import this.

In: a number of nodes. Out: a Cluster, whose `shell` is a program as `--remote-shell` takes it (HOST COMMAND_LINE).
Tests skip with the reason where namespaces are not permitted.

    with cluster(tmp_path, 2) as nodes:
        done = nodes.run("node1", ["hostname"])
        nodes.cut("node1")              # the cable is out; processes go on
        nodes.kill("node1")             # all its processes are gone
        nodes.before("node1", "mount -t tmpfs none /data")    # shell lines before each command there

Cards of all nodes hang on a bridge in a namespace of its own, so nothing is reachable from this machine's network.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_COUNTER = itertools.count()


@dataclass(frozen=True)
class Node:
    name: str
    address: str
    namespace: str


@dataclass(frozen=True)
class Cluster:
    """Attributes:
    shell: path of the program that runs a command line on a node.
    hub: namespace of the bridge.
    """

    folder: Path
    hub: str
    nodes: tuple[Node, ...]

    @property
    def shell(self) -> str:
        return str(self.folder / "remote_shell")

    @property
    def hosts(self) -> str:
        """Text of a hosts.txt."""
        return "".join(f"{node.name} {node.address}\n" for node in self.nodes)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """Argument list that runs argv on a node, without a shell."""
        return ["ip", "netns", "exec", self.node(name).namespace, *argv]

    def run(self, name: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(name, argv), capture_output=True, text=True, timeout=300, **options)

    def pids(self, name: str) -> list[int]:
        """Processes of a node."""
        done = _ip("netns", "pids", self.node(name).namespace)
        return [int(word) for word in done.split()]

    def kill(self, name: str) -> None:
        """What a power failure does to a node's processes."""
        for pid in self.pids(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def cut(self, name: str) -> None:
        """Take the node's cable out."""
        _ip("-n", self.hub, "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """Put it back."""
        _ip("-n", self.hub, "link", "set", name, "up")

    def before(self, name: str, lines: str) -> None:
        """Shell lines that run before each later command on the node, in a mount namespace of that command's own."""
        (self.folder / f"before_{name}").write_text(lines + "\n")

    def host_name(self, name: str, told: str) -> None:
        """What `hostname` says there, in later commands; at first the node's name."""
        (self.folder / f"hostname_{name}").write_text(told)


@contextmanager
def cluster(folder: Path, count: int = 2) -> Iterator[Cluster]:
    """Nodes node0, node1 ... at 198.51.100.1, .2 ... Skips the test where they cannot be made."""
    require_namespaces()
    prefix = f"msp{os.getpid()}x{next(_COUNTER)}"
    nodes = tuple(Node(f"node{i}", f"198.51.100.{i + 1}", f"{prefix}n{i}") for i in range(count))
    made = Cluster(folder=folder, hub=f"{prefix}hub", nodes=nodes)
    try:
        _build(made)
        yield made
    finally:
        for node in nodes:
            made.kill(node.name)
            subprocess.run(["ip", "netns", "del", node.namespace], capture_output=True)
        subprocess.run(["ip", "netns", "del", made.hub], capture_output=True)


def require_namespaces() -> None:
    """Skip with the reason where this process may not make network namespaces joined by a bridge."""
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"no `{program}` here: apt-get install iproute2 util-linux")
    name = f"msp{os.getpid()}try"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"network namespaces are not permitted here: {done.stderr.strip()}")
    try:
        for words in ("type bridge", "type veth peer name other"):
            line = ["ip", "-n", name, "link", "add", "name", f"card{len(words)}", *words.split()]
            done = subprocess.run(line, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this kernel makes no bridge or veth pair: {done.stderr.strip()}")
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _build(made: Cluster) -> None:
    _ip("netns", "add", made.hub)
    _ip("-n", made.hub, "link", "add", "name", "bridge", "type", "bridge")
    _ip("-n", made.hub, "link", "set", "bridge", "up")
    for node in made.nodes:
        _ip("netns", "add", node.namespace)
        _ip("-n", node.namespace, "link", "set", "lo", "up")
        pair = ["name", node.name, "type", "veth", "peer", "name", "eth0", "netns", node.namespace]
        _ip("-n", made.hub, "link", "add", *pair)
        _ip("-n", made.hub, "link", "set", node.name, "master", "bridge")
        _ip("-n", made.hub, "link", "set", node.name, "up")
        _ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", "eth0")
        _ip("-n", node.namespace, "link", "set", "eth0", "up")
        made.host_name(node.name, node.name)
        made.before(node.name, "")
    cases = "\n".join(f"{node.name}) namespace={node.namespace} ;;" for node in made.nodes)
    script = Path(made.shell)
    script.write_text(_SHELL.format(cases=cases, folder=made.folder))
    script.chmod(0o755)


_SHELL = """#!/bin/sh
# HOST COMMAND_LINE: as ssh would, on a node that is a namespace.
case "$1" in
{cases}
*) echo "no such host: $1" >&2; exit 255 ;;
esac
exec ip netns exec "$namespace" unshare --uts --mount sh -c \\
  'set -e; hostname "$(cat "$1/hostname_$2")"; . "$1/before_$2"; exec sh -c "$3"' sh "{folder}" "$1" "$2"
"""


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
