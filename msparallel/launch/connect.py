"""How a command gets to a node: here, by ssh, or by another program that takes a host and a command line.

In: a host's name and an argument list. Out: the argument list that this machine executes. Nothing passes a shell here;
what a remote shell gets is one string, quoted word by word. `msparallel launch --remote-shell` names the other program,
as mpirun's rsh agent and rsync's -e do; it is called PROGRAM ARG... HOST COMMAND_LINE.

>>> node_command("node_1", ["python", "-V"], cwd="/my data")[-2:]
['node_1', "cd '/my data' && exec python -V"]
>>> node_command("localhost", ["python", "-V"])
['python', '-V']
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from msparallel.cluster.hosts import is_address, is_host_name
from msparallel.errors import UserError, short

CONNECT_TIMEOUT_S = 10
ALIVE_INTERVAL_S = 5
ALIVE_COUNT = 3
"""ssh gives a connection up after ALIVE_INTERVAL_S x ALIVE_COUNT seconds without an answer."""
SSH_OPTIONS = (
    "-T",  # no terminal: what comes back is JSON
    *("-o", "BatchMode=yes"),  # a question for a password would wait for ever
    *("-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"),
    *("-o", f"ServerAliveInterval={ALIVE_INTERVAL_S}"),
    *("-o", f"ServerAliveCountMax={ALIVE_COUNT}"),
)
"""After those of --remote-shell "ssh ...", since ssh takes the first value it meets (man ssh_config)."""

_HERE = ("localhost", "127.0.0.1", "::1")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def node_command(
    host: str,
    argv: Sequence[str],
    *,
    shell: Sequence[str] | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """The argument list that runs `argv` on `host`.

    Args:
        host: as hosts.txt names it; a name of this machine runs argv here.
        shell: program and arguments that take HOST and a command line; None is ssh.
        cwd: folder on that host to start in; None is where the login begins, and here the present one.
        env: variables on top of those the host has.

    Raises:
        UserError: the host, a variable's name, or a control character in any word.
    """
    check_host(host)
    for name in env or {}:
        if not _ENV_NAME.fullmatch(name):
            raise UserError(f"{short(name)!r} is no name of a variable: letters, digits and '_', no digit first.")
    assignments = [f"{name}={value}" for name, value in (env or {}).items()]
    for word in [*argv, *assignments, *([cwd] if cwd else [])]:
        if _CONTROL.search(word):
            raise UserError(f"{short(word)!r} holds a control character; a command line for another machine cannot.")
    if is_this_machine(host):
        folder = ["-C", cwd] if cwd else []
        return ["env", *folder, *assignments, *argv] if folder or assignments else list(argv)
    program = shlex.join(["exec", *(["env", *assignments] if assignments else []), *argv])
    line = f"cd {shlex.quote(cwd)} && {program}" if cwd else program
    command = list(shell or ["ssh"])
    if PurePath(command[0]).name == "ssh":
        return [*command, *SSH_OPTIONS, "--", host, line]
    return [*command, host, line]


def check_host(host: str) -> None:
    """Raise UserError for what is neither a plain name nor an address: it could be read as an option or by a shell."""
    if not is_host_name(host) and not is_address(host):
        raise UserError(
            f"{short(host)!r} is no host: a name of letters, digits, '.', '-' and '_' (at most 64, the first a letter "
            "or a digit), or an address, for example node_0."
        )


def parse_shell(text: str) -> list[str]:
    """--remote-shell's words, as a shell would part them. Raises UserError.

    >>> parse_shell("ssh -p 2222 -i 'my key'")
    ['ssh', '-p', '2222', '-i', 'my key']
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--remote-shell {short(text)!r}: {error}. For example 'ssh -p 2222'.") from None
    if not words or words[0].startswith("-") or _CONTROL.search(text):
        raise UserError(
            f"--remote-shell {short(text)!r} names no program. It is PROGRAM ARG..., for example 'ssh -p 2222'; "
            "HOST and a command line follow."
        )
    return words


def remote_shell(text: str | None, hosts: Iterable[str]) -> list[str] | None:
    """--remote-shell's words, None for ssh. Raises UserError, once for all hosts, where the program is not there; ssh
    is looked for only where one of the hosts is another machine."""
    shell = parse_shell(text) if text is not None else None
    if shell is None and all(map(is_this_machine, hosts)):
        return None
    if shutil.which(program := (shell or ["ssh"])[0]) is None:
        place = "" if "/" in program else " on PATH"
        raise UserError(
            f"{f'--remote-shell {short(text)}' if text is not None else 'ssh'}: there is no program "
            f"{short(program, 80)}{place} of this machine. Nodes are reached with it: install it, or name another one, "
            "for example --remote-shell 'ssh -p 2222'."
        )
    return shell


def is_this_machine(host: str) -> bool:
    """Whether `host` is a name or an address of this machine."""
    if host in _HERE:
        return True
    if is_address(host):
        return has_address(host)
    own = socket.gethostname()
    return host in (own, own.partition(".")[0])


def has_address(address: str) -> bool:
    """Whether a network card of this machine has the address: what this machine sends there comes from there. (Binding
    a socket does not tell: net.ipv4.ip_nonlocal_bind lets it succeed for every address.) Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False
