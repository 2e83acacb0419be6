"""The agents of one attempt, as they are seen from here: started, heard, kept alive by their leases, stopped.

In: a Layout and how to reach its hosts. Out: events as they come, and ends; `stop`, which returns when no process of
the run is left on any node that can be asked, and when the lease of any other has run out.

>>> with Agents(layout, asking, port=8118) as agents:
...     for rank, event in agents.turn():
...         print(rank, event["event"])
0 started
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msparallel.cluster.hosts import Host
from msparallel.errors import RunError, printable, short
from msparallel.launch.agent_line import LEASE_S, RENEW_S, STOP
from msparallel.launch.connect import is_this_machine
from msparallel.launch.hosts import Layout
from msparallel.launch.marked import GRACE_S, SURE_S, end_marked
from msparallel.launch.preflight_ask import Asking

_STOPS_S = GRACE_S + SURE_S + 10.0
"""An agent that hears `stop` has ended its node's processes by then."""
_LEASE_OVER_S = LEASE_S + GRACE_S + SURE_S
"""And one that hears nothing by then."""
_MOST_LINE_BYTES = 64 * 2**20
_MOST_WORDS_BYTES = 64 * 1024


@dataclass(kw_only=True)
class Agent:
    """One agent.

    Attributes:
        here: it runs on this machine.
        words: the end of what it, or the program that connects, wrote to stderr.
        ended: seconds (monotonic) at which both its streams and its process had ended, 0.0 before.
        left: processes that it could not end, as text.
    """

    rank: int
    host: Host
    here: bool
    process: subprocess.Popen[bytes]
    out: bytearray = field(default_factory=bytearray)
    words: bytearray = field(default_factory=bytearray)
    streams: int = 2
    ended: float = 0.0
    started: bool = False
    stopped: bool = False
    left: list[str] = field(default_factory=list)

    def last_words(self, most: int = 5) -> str:
        """The last lines of its stderr, shown as they may be."""
        lines = [line for line in bytes(self.words).decode("utf-8", "replace").splitlines() if line.strip()]
        return "\n".join(f"  | {printable(short(line, 300))}" for line in lines[-most:])


class Agents:
    """Context manager: on leaving it, however, nothing of the attempt is left running that can be reached.

    Args:
        mark: node rank -> the mark of its processes, to look for those of this machine.
    """

    def __init__(self, layout: Layout, asking: Asking, *, port: int, mark: Callable[[int], str]):
        self._mark, self._ending, self._stopped = mark, threading.Event(), False
        self._selector = selectors.DefaultSelector()
        self.all: list[Agent] = []
        where = ["--master-addr", layout.master_addr, "--master-port", str(port)]
        try:
            for rank, host in enumerate(layout.nodes):
                words = [asking.recipe, *asking.overrides, "--node-rank", str(rank), *where]
                self._start(rank, host, asking.command(host, "msparallel.launch.agent", *words))
            # A thread, since whoever writes to a terminal on which Ctrl-S was pressed waits.
            threading.Thread(target=self._renew, daemon=True).start()
        except BaseException:
            self.stop()
            raise

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
        agent = Agent(rank=rank, host=host, here=is_this_machine(host.name), process=process)
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, (agent, "out"))
        self._selector.register(process.stderr, selectors.EVENT_READ, (agent, "words"))
        self.all.append(agent)

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _renew(self) -> None:
        while not self._ending.wait(RENEW_S):
            for agent in self.all:
                _write(agent, b"on\n")

    def turn(self, seconds: float = 0.25) -> list[tuple[Agent, dict[str, Any]]]:
        """Events that have come within `seconds`."""
        events = []
        for key, _ in self._selector.select(seconds) if self._selector.get_map() else []:
            agent, stream = key.data
            chunk = os.read(key.fd, 1 << 20)
            if chunk:
                events += [(agent, event) for event in _take(agent, stream, chunk)]
                continue
            self._selector.unregister(key.fileobj)
            agent.streams -= 1
        if not self._selector.get_map():
            time.sleep(min(seconds, 0.05))
        for agent in self.all:
            if not agent.ended and not agent.streams and agent.process.poll() is not None:
                agent.ended = time.monotonic()
        return events

    def stop(self, told: Callable[[str], object] = lambda text: None) -> list[tuple[Agent, str]]:
        """End everything on every node; what is left as (agent, text), which no signal ends.

        Args:
            told: takes a line where this takes longer than a person expects.
        """
        if self._stopped:
            return []
        self._stopped = True
        self._ending.set()
        try:
            began = time.monotonic()
            for agent in self.all:
                _write(agent, STOP + b"\n")
            while not all(_is_over(agent) for agent in self.all) and time.monotonic() - began < _STOPS_S:
                self.turn()
            unheard = [agent for agent in self.all if not agent.here and not _is_sure(agent)]
            if unheard:
                names = ", ".join(agent.host.name for agent in unheard)
                told(f"{names} cannot be asked; its processes end with its lease. Waiting for that.")
                over = max(agent.ended or began for agent in unheard) + _LEASE_OVER_S
                while time.monotonic() < over and not all(map(_is_sure, unheard)):
                    self.turn()
        finally:
            for agent in self.all:
                _let_go(agent)
            self._selector.close()
        left = [(agent, text) for agent in self.all for text in agent.left]
        for agent in self.all:  # an agent of this machine that was killed could not say what is left: look
            if agent.here and not agent.stopped:
                left += [
                    (agent, f"{process.pid} ({process.name}, state {process.state})")
                    for process in end_marked(self._mark(agent.rank), grace_s=0.0)
                ]
        return left


def _take(agent: Agent, stream: str, chunk: bytes) -> list[dict[str, Any]]:
    """Events in what has come; what is none is a login's greeting."""
    if stream == "words":
        agent.words += chunk
        del agent.words[:-_MOST_WORDS_BYTES]
        return []
    agent.out += chunk
    *lines, rest = bytes(agent.out).split(b"\n")
    agent.out = bytearray(rest[:_MOST_LINE_BYTES])
    events = []
    for line in lines:
        try:
            event = json.loads(line) if line.startswith(b'{"event":') else None
        except ValueError:
            continue
        if isinstance(event, dict):
            agent.started = agent.started or event.get("event") == "started"
            if event.get("event") == "stopped":
                agent.stopped = True
                left = event.get("left")
                agent.left = [short(json.dumps(one), 120) for one in left[:20]] if isinstance(left, list) else []
            events.append(event)
    return events


def _is_over(agent: Agent) -> bool:
    return bool(agent.ended)


def _is_sure(agent: Agent) -> bool:
    """Whether the agent itself has said that its node is clean: it stopped its part, or the part came to its end, or
    the agent never began."""
    return bool(agent.ended) and (agent.stopped or not agent.started or agent.process.returncode == 0)


def _write(agent: Agent, line: bytes) -> None:
    """To the agent. A pipe that is full or broken shows by its end."""
    assert agent.process.stdin
    try:
        os.write(agent.process.stdin.fileno(), line)
    except (BlockingIOError, BrokenPipeError, ValueError):
        return


def _let_go(agent: Agent) -> None:
    """Close the pipes, which ends the lease too; end the program that connected."""
    process = agent.process
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream
        stream.close()
    try:
        process.wait(timeout=0.0 if not agent.ended else 1.0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
