"""How child processes end with the one that started them.

In: nothing. Out: `die_with_parent` for the child; `kill`, `sigterm_as_interrupt` and `interruptible` for the parent.
Linux only.

>>> subprocess.Popen(command, preexec_fn=die_with_parent)  # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with_parent() -> None:
    """In a child: be killed when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a session of its own, and its children, where it has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def sigterm_as_interrupt() -> Callable[..., Any] | int | None:
    """SIGTERM ends like Ctrl-C, so that children are stopped. Returns the handler that was there."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, and again in the function that is given, which a loop calls:
    one that comes while an object is being taken down is not heard otherwise."""
    came: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    # Under nohup SIGHUP is ignored, and stays so.
    heard = [n for n in _ENDING if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
