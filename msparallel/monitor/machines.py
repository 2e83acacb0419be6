"""The devices of machines, asked now.

In: nothing but npu-smi on this machine; or hosts, each reached as `launch` reaches it (msparallel/launch/connect.py).
Out: a Machine for each: what npu-smi told, or why it did not. npu-smi that does not answer is left alone for
ASK_AGAIN_S, so that a driver that hangs does not make everything else late.

>>> ThisMachine().machines(time.time())[0].table.devices[0].health  # doctest: +SKIP
'OK'
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath

from msparallel.cluster.hosts import Host
from msparallel.devices.npu_smi import DeviceTable, parse_info
from msparallel.devices.query import NPU_SMI, Answer, query_devices, run_tool
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.errors import UserError, printable, short
from msparallel.launch.connect import CONNECT_TIMEOUT_S, is_this_machine, node_command

TIMEOUT_S = 5.0
"""Below the ten seconds that Prometheus waits for a scrape; npu-smi of eight devices takes one or two."""
ASK_AGAIN_S = 30.0
MOST_AT_ONCE = 32
_SSH_FAILED = 255
"""Exit code of ssh for what is its own trouble, not the command's (man ssh)."""
_NOT_FOUND = 127
"""Of a shell, for a program that is not there (POSIX, Exit Status for Commands)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Attributes:
    host: its name; for a recording what the file's name says, or `recorded`.
    source: `npu-smi info`, or the file.
    time_s: Unix seconds at which it was told; None where a recording does not say.
    table: None where there is no answer.
    error: why not.
    named: the user named it in a list of hosts, so that no answer is a problem; a machine without devices that only
        happens to be this one is none.
    """

    host: str
    source: str
    time_s: float | None
    table: DeviceTable | None = None
    error: str = ""
    named: bool = False


class ThisMachine:
    """npu-smi of this machine."""

    def __init__(self, timeout_s: float = TIMEOUT_S):
        self._host, self._timeout_s, self._not_before_s = socket.gethostname(), timeout_s, 0.0
        self._hung: Machine | None = None

    def machines(self, now_s: float) -> tuple[Machine, ...]:
        """One machine."""
        began_s = time.monotonic()
        if self._hung and began_s < self._not_before_s:
            return (self._hung,)
        self._hung = None
        try:
            table = query_devices(self._timeout_s)
        except UserError as error:
            machine = Machine(host=self._host, source="npu-smi info", time_s=now_s, error=printable(str(error)))
            if time.monotonic() - began_s >= self._timeout_s:
                self._hung, self._not_before_s = machine, time.monotonic() + ASK_AGAIN_S
            return (machine,)
        return (Machine(host=self._host, source="npu-smi info", time_s=now_s, table=table),)


class Hosts:
    """npu-smi of other machines, all asked at once."""

    def __init__(self, hosts: Sequence[Host], shell: Sequence[str] | None = None):
        self._hosts, self._shell = tuple(hosts), shell

    def machines(self, now_s: float) -> tuple[Machine, ...]:
        """A machine for each host, in the order of the list."""
        with ThreadPoolExecutor(max_workers=MOST_AT_ONCE) as pool:
            return tuple(pool.map(lambda host: self._ask(host, now_s), self._hosts))

    def _ask(self, host: Host, now_s: float) -> Machine:
        told = {"host": host.name, "source": "npu-smi info", "time_s": now_s, "named": True}
        reached = host.address or host.name
        try:
            if is_this_machine(reached):
                return Machine(**told, table=query_devices(TIMEOUT_S))
            for program in NPU_SMI:
                command = node_command(reached, [program, "info"], shell=self._shell)
                answer = run_tool(command, timeout_s=CONNECT_TIMEOUT_S + TIMEOUT_S)
                if answer.code != _NOT_FOUND:
                    break
            return Machine(**told, table=_table(answer, PurePath(command[0]).name, host.name))
        except UserError as error:
            return Machine(**told, error=printable(str(error)))


def _table(answer: Answer, program: str, host: str) -> DeviceTable:
    """Raises UserError with what was said, by npu-smi or by whatever else answered, and its exit code."""
    text = answer.text.replace("\r", "")  # ssh ends its lines for a terminal in raw mode
    words = short("\n".join(line for line in text.splitlines() if line.strip())) or "not a word"
    how = f"exit code {answer.code}" if answer.code >= 0 else f"signal {-answer.code}"
    if answer.code == _SSH_FAILED and "|" not in text:
        raise UserError(f"{program} to {host}: {words} ({how})")
    if answer.code == _NOT_FOUND:
        raise UserError(f"{host}: {words} ({how}). npu-smi is neither on the PATH of that login nor in /usr/local/sbin "
                        "or /usr/local/bin.")  # fmt: skip
    try:
        return parse_info(text, f"npu-smi info on {host}")
    except DeviceUnavailable as error:
        raise UserError(f"{str(error).rstrip()} ({how})") from None
    except UserError:
        if answer.code and "|" not in text:
            raise UserError(f"npu-smi info on {host}: {words} ({how})") from None
        raise
