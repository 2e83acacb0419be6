"""An ssh server on a node made of a network namespace, with keys and configuration of its own.

In: a Cluster, a node. Out: Ssh, whose `remote_shell` is what `--remote-shell` gets on another node; tests skip with the
reason where OpenSSH is absent or the server does not start. Nothing of this machine's ssh configuration is read.

    with ssh_server(nodes, "node1") as ssh:
        subprocess.run(nodes.command("node0", ["ssh", "-F", ssh.config, "node1", "hostname"]))
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from netns import Cluster

PORT = 2222
_RUN_SSHD = """
hostname "$1"
mount -t tmpfs none /run  # sshd wants a folder there; this one is gone with it
mkdir -m 755 /run/sshd
exec "$2" -D -e -f "$3"
"""


@dataclass(frozen=True)
class Ssh:
    """Attributes:
    config: of the client; remote_shell: ssh with it.
    """

    folder: Path
    config: Path

    @property
    def remote_shell(self) -> str:
        return f"ssh -F {self.config}"


@contextmanager
def ssh_server(nodes: Cluster, name: str) -> Iterator[Ssh]:
    """sshd on a node, for clients on the others."""
    sshd = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
    if sshd is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no OpenSSH here: apt-get install openssh-server openssh-client")
    folder = nodes.folder / "ssh"
    folder.mkdir(mode=0o700)
    for key in ("host", "user", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    address = nodes.node(name).address
    (folder / "sshd_config").write_text(
        f"Port {PORT}\nListenAddress {address}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
    )
    made = Ssh(folder=folder, config=folder / "config")
    trust(made, address, "host")
    login(made, nodes, name, "user")
    log = folder / "sshd.log"  # no pipe: a session whose client is cut off would hold it open
    server = subprocess.Popen(
        nodes.command(name, ["unshare", "--uts", "--mount", "sh", "-ec", _RUN_SSHD, "sh", name, sshd,
                             str(folder / "sshd_config")]),
        stderr=log.open("wb"),
    )  # fmt: skip
    try:
        _wait(nodes, name, server, log)
        yield made
    finally:
        server.terminate()
        server.wait(timeout=10)


def trust(ssh: Ssh, address: str, key: str) -> None:
    """The client's known_hosts: which key the server must have."""
    public = (ssh.folder / f"{key}.pub").read_text()
    (ssh.folder / "known_hosts").write_text(f"[{address}]:{PORT} {public}")


def login(ssh: Ssh, nodes: Cluster, name: str, key: str) -> None:
    """The client's configuration: which key it shows."""
    ssh.config.write_text(
        f"Host {name}\n  HostName {nodes.node(name).address}\n  Port {PORT}\n  IdentityFile {ssh.folder}/{key}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {ssh.folder}/known_hosts\n  StrictHostKeyChecking yes\n"
    )


def _wait(nodes: Cluster, name: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server answers."""
    line = f"import socket; socket.create_connection(({nodes.node(name).address!r}, {PORT}), timeout=1).close()"
    other = next(node.name for node in nodes.nodes if node.name != name)
    deadline = time.monotonic() + 20
    while nodes.run(other, [sys.executable, "-c", line]).returncode:
        if server.poll() is not None:
            pytest.skip(f"sshd does not start in a namespace: {log.read_text(errors='replace').strip()[-300:]}")
        assert time.monotonic() < deadline, "sshd does not answer"
        time.sleep(0.2)
