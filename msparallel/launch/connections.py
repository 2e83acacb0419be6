"""The agents of all nodes, as they are seen from where the job was started: the pipes to them and what came through.

In: a Layout and how to reach its hosts. Out: events as they come; what an agent said of its own end. Each agent
(`launch/agent.py`) lives on a lease that is renewed on its input: when this process ends, however it does, or the link
to a node breaks, the node stops its part by itself.

>>> connections = Connections()
>>> connections.open(layout, asking, port=8118)
>>> for agent, event in connections.events():
...     print(agent.rank, event["event"])
0 started
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msparallel.cluster.hosts import Host
from msparallel.errors import RunError, printable, short
from msparallel.launch.agent_line import RENEW_S, STOP
from msparallel.launch.connect import is_this_machine
from msparallel.launch.hosts import Layout
from msparallel.launch.preflight_ask import Asking

MOST_LINE_BYTES = 64 * 2**20
"""Of an event: the result of a run of a million steps has 20 MB."""
_MOST_WORDS_BYTES = 64 * 1024


@dataclass(kw_only=True)
class Agent:
    """One agent.

    Attributes:
        words: the end of what it, or the program that connects, wrote to stderr.
        heard: seconds (monotonic) at which something came on stdout, or it was started.
        ended: seconds (monotonic) at which both its streams and its process had ended, 0.0 before.
        left: processes that it could not end, as text.
        endless: it wrote a line of more than MOST_LINE_BYTES.
    """

    rank: int
    host: Host
    process: subprocess.Popen[bytes]
    out: bytearray = field(default_factory=bytearray)
    words: bytearray = field(default_factory=bytearray)
    streams: int = 2
    heard: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    started: bool = False
    stopped: bool = False
    left: list[str] = field(default_factory=list)
    endless: bool = False

    @cached_property
    def here(self) -> bool:
        """Whether it runs on this machine."""
        return is_this_machine(self.host.name)

    def last_words(self, most: int = 5) -> str:
        """The last lines of its stderr, shown as they may be."""
        lines = [line for line in bytes(self.words).decode("utf-8", "replace").splitlines() if line.strip()]
        return "\n".join(f"  | {printable(short(line, 300))}" for line in lines[-most:])

    def take(self, stream: str, chunk: bytes) -> list[dict[str, Any]]:
        """Events in what has come on `out` or `words`; what is none is a login's greeting."""
        if stream == "words":
            self.words += chunk
            del self.words[:-_MOST_WORDS_BYTES]
            return []
        self.heard = time.monotonic()
        self.out += chunk
        if b"\n" not in chunk:
            if len(self.out) > MOST_LINE_BYTES:
                self.out.clear()
                self.endless = True
            return []
        *lines, rest = bytes(self.out).split(b"\n")
        self.out = bytearray(rest)
        return [event for line in lines if (event := self._event(line)) is not None]

    def _event(self, line: bytes) -> dict[str, Any] | None:
        try:
            event = json.loads(line) if line.startswith(b'{"event":') else None
        except (ValueError, RecursionError):
            return None
        if event is not None:
            self.started = self.started or event.get("event") == "started"
            if event.get("event") == "stopped":
                self.stopped = True
                left = event.get("left")
                self.left = [short(json.dumps(one), 120) for one in left[:20]] if isinstance(left, list) else []
        return event

    def write(self, line: bytes) -> None:
        """To the agent. A pipe that is full or broken shows by its end."""
        assert self.process.stdin
        try:
            os.write(self.process.stdin.fileno(), line)
        except (BlockingIOError, BrokenPipeError, ValueError):
            return


class Connections:
    """Attributes:
    all: the agents that were started, by rank of their node.
    """

    def __init__(self) -> None:
        self.all: list[Agent] = []
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        # A thread, since whoever writes to a terminal on which Ctrl-S was pressed waits.
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def open(self, layout: Layout, asking: Asking, *, port: int) -> None:
        """Start an agent on every node. Raises RunError where the program that connects cannot be started."""
        _allow_files(len(layout.nodes))
        where = ["--master-addr", layout.master_addr, "--master-port", str(port)]
        for rank, host in enumerate(layout.nodes):
            words = [asking.recipe, *asking.overrides, "--node-rank", str(rank), *where]
            self._start(rank, host, asking.command(host, "msparallel.launch.agent", *words))
        self._renewing.start()

    def _start(self, rank: int, host: Host, command: list[str]) -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must not end ssh before the node has been told to stop
            )
        except OSError as error:
            raise RunError(f"{host.name}: {command[0]} cannot be started: {error.strerror}.") from error
        agent = Agent(rank=rank, host=host, process=process)
        self.all.append(agent)
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)  # a dead link must not keep the other nodes' leases from us
        self._selector.register(process.stdout, selectors.EVENT_READ, (agent, "out"))
        self._selector.register(process.stderr, selectors.EVENT_READ, (agent, "words"))

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            for agent in self.all:
                agent.write(b"on\n")

    def events(self, seconds: float = 0.25) -> list[tuple[Agent, dict[str, Any]]]:
        """Events that have come within `seconds`."""
        events = []
        for key, _ in self._selector.select(seconds) if self._selector.get_map() else []:
            agent, stream = key.data
            chunk = os.read(key.fd, 1 << 20)
            if chunk:
                events += [(agent, event) for event in agent.take(stream, chunk)]
                continue
            self._selector.unregister(key.fileobj)
            agent.streams -= 1
        if not self._selector.get_map():
            time.sleep(min(seconds, 0.05))
        for agent in self.all:
            if not agent.ended and not agent.streams and agent.process.poll() is not None:
                agent.ended = time.monotonic()
        return events

    def tell_to_stop(self) -> None:
        """End the leases at once; what the agents say of it comes as events."""
        self._over.set()
        if self._renewing.ident is not None:
            self._renewing.join()
        for agent in self.all:
            agent.write(STOP + b"\n")

    def close(self) -> None:
        """Close the pipes, which ends the leases too; end the programs that connected."""
        for agent in self.all:
            for stream in (agent.process.stdin, agent.process.stdout, agent.process.stderr):
                assert stream
                stream.close()
        deadline = time.monotonic() + 1.0
        for agent in self.all:
            try:
                agent.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(agent.process.pid, signal.SIGKILL)
                agent.process.wait()
        self._selector.close()


def _allow_files(nodes: int) -> None:
    """Three pipes a node: more than the usual 1,024 open files for some hundreds of nodes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * nodes + 64
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
