"""The two lines between an agent and who started it: a lease that comes in on stdin, events that go out on stdout.

In: file descriptors. Out: `Lease.holds()`, and `Events`, which writes JSON lines and never waits for a reader: a link
that is dead must not keep an agent from noticing that its lease has ended.

>>> Events(1, node=0).send("disk", free_bytes=10**12)
{"event": "disk", "node": 0, "time": 1796060000.0, "free_bytes": 1000000000000}
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

LEASE_S = 15.0
"""Without a line for so long the agent stops its node. ssh gives a dead connection up after 15 s too."""
RENEW_S = 3.0
"""How often who holds the lease writes a line: four may be lost or late."""
STOP = b"stop"
"""The line that ends the lease at once."""

_WRITE_BYTES = 4096  # POSIX: a pipe that poll calls writable takes PIPE_BUF bytes without waiting
_PASSING = ("ranks", "devices", "disk")
"""Events that the next of their kind replaces: left out where nobody reads."""


class Lease:
    """The lease as the agent sees it.

    Attributes:
        ended: why it ended, empty while it holds.
    """

    def __init__(self, descriptor: int = 0, clock: Callable[[], float] = time.monotonic):
        self._descriptor, self._clock = descriptor, clock
        self._renewed, self._rest = clock(), b""
        self.ended = ""

    def holds(self) -> bool:
        """Read what has come. False after the end of input, after `stop`, and where no line came for LEASE_S."""
        while not self.ended and select.select([self._descriptor], [], [], 0)[0]:
            data = os.read(self._descriptor, 65536)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-16:]  # a line is a word; what is longer is none of ours
            if STOP in [line.strip() for line in lines]:
                self.ended = "it was told to stop"
            elif not data:
                self.ended = "the connection to who started it has ended"
            elif lines:
                self._renewed = self._clock()
        silent_s = self._clock() - self._renewed
        if not self.ended and silent_s > LEASE_S:
            self.ended = f"nobody has renewed its lease for {silent_s:.0f} s (limit {LEASE_S:g} s)"
        return not self.ended


class Events:
    """JSON lines to a descriptor. Each has `event`, `node` and `time` (Unix seconds)."""

    def __init__(self, descriptor: int = 1, *, node: int):
        self._descriptor, self._node = descriptor, node
        self._waiting = bytearray()
        self.broken = False

    def send(self, event: str, **fields: Any) -> None:
        """Write, or keep for later, one event."""
        if event in _PASSING and len(self._waiting) > _WRITE_BYTES:
            return
        record = {"event": event, "node": self._node, "time": round(time.time(), 3), **fields}
        self._waiting += json.dumps(record).encode() + b"\n"
        self.flush()

    def flush(self, patience_s: float = 0.0) -> None:
        """Write what can be written, waiting at most `patience_s` for the reader."""
        deadline = time.monotonic() + patience_s
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while self._waiting and not self.broken:
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            if not poll.poll(left_ms):
                return
            try:
                written = os.write(self._descriptor, self._waiting[:_WRITE_BYTES])
            except OSError:  # the reader is gone; the lease says so too
                self.broken = True
                return
            del self._waiting[:written]
