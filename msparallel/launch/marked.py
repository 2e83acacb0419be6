"""The processes of a job on this machine, by a variable in their environment; and how they are ended.

In: a mark. Out: `marked`, the processes that carry it, read from /proc; `end_marked`, which ends them and says which
are left. A process group or a parent can be left by a child; the environment that a process was started with cannot.

>>> [process.state for process in marked("/data/output/llama#0")]
[]
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "MSPARALLEL_JOB"
"""The variable. Every process that an agent starts has it, and hands it on."""
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: a process on an NPU gives its device back."""
SURE_S = 10.0
"""How long a killed process may take to be gone; one in an uninterruptible wait (state D) can take for ever."""
_LOOK_S = 0.1
_ENDED = ("", "Z", "X")


@dataclass(frozen=True, kw_only=True)
class Process:
    """Attributes:
    state: of /proc/PID/stat: R running, S sleeping, D waiting for a device, T stopped, Z ended and not yet waited for.
    role: MS_ROLE of its environment, empty where it has none.
    name: what the kernel calls it.
    """

    pid: int
    state: str
    role: str
    name: str


def process_state(pid: int) -> str:
    """State letter of a process, empty where it is gone.

    >>> process_state(os.getpid())
    'R'
    """
    return _stat(pid)[1]


def runs(pid: int) -> bool:
    """Whether this machine has the process, and it has not ended.

    >>> runs(os.getpid())
    True
    """
    return process_state(pid) not in _ENDED


def _stat(pid: int) -> tuple[str, str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last under hidepid, another user's
        return "", ""
    head, _, tail = text.rpartition(")")
    return head.partition("(")[2], tail.split()[0]


def marked(mark: str) -> list[Process]:
    """Processes of this user that carry the mark and have not ended, this one left out."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, a zombie, or another user's
            continue
        name, state = _stat(pid)
        if wanted in words and state not in _ENDED and pid != os.getpid():
            role = next((word[8:].decode(errors="replace") for word in words if word.startswith(b"MS_ROLE=")), "")
            found.append(Process(pid=pid, state=state, role=role, name=name))
    return sorted(found, key=lambda process: process.pid)


def end_marked(mark: str, *, grace_s: float = GRACE_S, tick: Callable[[], object] = lambda: None) -> list[Process]:
    """SIGTERM, time, SIGKILL, also to those that SIGSTOP holds; returns those that are there all the same.

    Args:
        tick: called while waiting, several times a second.
    """
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, SURE_S)):
        deadline = time.monotonic() + patience_s
        told: set[int] = set()
        while there := marked(mark):
            for process in there:  # again, since one that was asked may have started another
                if process.pid not in told:
                    _signal(process.pid, number)
                    told.add(process.pid)
            if time.monotonic() > deadline:
                break
            tick()
            time.sleep(_LOOK_S)
        if not there:
            return []
    return marked(mark)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
