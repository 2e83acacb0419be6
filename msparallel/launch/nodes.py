"""All nodes of a job, from their start to their end, seen from one place.

In: a Layout and how to reach its hosts. Out: the result of the rank that knows the loss; or the first failure, with its
node and its text. Each node runs an agent (`launch/agent.py`), which lives on a lease that this process renews on its
input: when this process ends, however it does, or the link to a node breaks, the node stops its part by itself.

>>> run_nodes(plan, layout, asking, tell=print).losses[-1]
4.4
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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msparallel.cluster.hosts import Host
from msparallel.errors import RunError, UserError, printable, short
from msparallel.launch.agent_line import LEASE_S, RENEW_S, STOP
from msparallel.launch.hosts import Layout
from msparallel.launch.preflight_ask import Asking
from msparallel.plan import Plan
from msparallel.train.run import RunResult, reporting_rank

GRACE_S = 5.0
"""After one node has failed, how long the others may take to say that they failed earlier."""
SILENT_S = 120.0
"""Agents report once a second, after the package was imported: on a cold file server that can take a minute."""
STOP_S = LEASE_S + 15.0
"""Longest that nodes take to end their processes once they are told to, or their lease has run out."""
_MOST_LINE_BYTES = 8 * 1024 * 1024
"""Of an event: the result of a run of 100,000 steps has 2 MB."""
_MOST_STDERR_BYTES = 64 * 1024
_MOST_STEPS = 10**12
_PASSED_ON = ("lease", "scheduler", "start")
"""Kinds of failure that are most often another node's in truth."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where the rank that knows the loss is.

    Attributes:
        phase: see `status.PHASES`.
        step: optimizer steps done since the beginning, None before the first word.
    """

    phase: str
    step: int | None
    loss: float | None


@dataclass(kw_only=True)
class _Node:
    """One agent, as it is seen from here."""

    rank: int
    host: Host
    process: subprocess.Popen[bytes]
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    open_streams: int = 2
    result: dict[str, Any] | None = None
    failed: dict[str, Any] | None = None
    failed_at: float = 0.0
    left: list[str] = field(default_factory=list)
    gone: bool = False
    heard: float = field(default_factory=time.monotonic)


def run_nodes(
    plan: Plan, layout: Layout, asking: Asking, *, tell: Callable[[Progress], object] = lambda progress: None
) -> RunResult:
    """Start every node's agent and follow the job to its end.

    Args:
        tell: called about once a second with where the rank is that knows the loss.

    Raises:
        UserError, RunError: a node failed; the others were stopped.
        KeyboardInterrupt: after every node has been told to stop, and has.
    """
    with _Nodes(plan, layout, asking, tell) as nodes:
        nodes.follow()
        return nodes.result()


class _Nodes:
    """The job while it runs."""

    def __init__(self, plan: Plan, layout: Layout, asking: Asking, tell: Callable[[Progress], object]):
        self._plan, self._tell = plan, tell
        self._reporting = reporting_rank(plan)
        self._selector = selectors.DefaultSelector()
        self._nodes: list[_Node] = []
        self._ended = False
        self._ending = threading.Event()
        # Of its own, since a terminal on which somebody pressed Ctrl-S holds up whoever writes to it.
        self._renewing = threading.Thread(target=self._renew, daemon=True)
        arguments = ["--master-addr", layout.master_addr, "--master-port", str(layout.master_port)]
        _allow_files(len(layout.nodes))
        try:
            for rank, host in enumerate(layout.nodes):
                words = [asking.recipe, *asking.overrides, "--node-rank", str(rank), *arguments]
                self._nodes.append(self._start(rank, host, asking.command(host, "msparallel.launch.agent", *words)))
            self._renewing.start()
        except BaseException:
            self._end()
            raise

    def _start(self, rank: int, host: Host, command: list[str]) -> _Node:
        try:
            # A session of its own: Ctrl-C at the terminal must not end ssh before the node has been told to stop.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"{host.name}: {command[0]} cannot be started: {error.strerror}.") from error
        node = _Node(rank=rank, host=host, process=process)
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)  # a dead link must not keep the other nodes' leases from us
        self._selector.register(process.stdout, selectors.EVENT_READ, (node, "out"))
        self._selector.register(process.stderr, selectors.EVENT_READ, (node, "err"))
        return node

    def __enter__(self) -> _Nodes:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def follow(self) -> None:
        """Until all nodes are done, or one has failed and the others have had time to say that they were first."""
        while any(node.result is None for node in self._nodes):
            self._turn()
            for node in self._nodes:
                if node.result is None and time.monotonic() - node.heard > SILENT_S:
                    _fail(node, f"It said nothing for {SILENT_S:g} s.\n{_words(node)}".rstrip(), "link")
            if any(node.failed for node in self._nodes):
                deadline = time.monotonic() + GRACE_S
                while time.monotonic() < deadline and not all(node.failed or node.gone for node in self._nodes):
                    self._turn()
                return

    def result(self) -> RunResult:
        """Of the rank that knows the loss. Raises the first failure."""
        self._end()
        failed = [node for node in self._nodes if node.failed]
        if failed:
            raise _first(failed, self._nodes)
        reporting = self._nodes[self._reporting // self._plan.devices_per_node]
        assert reporting.result is not None, "every node is done"
        try:
            return RunResult(**reporting.result)
        except TypeError:
            raise RunError(f"{reporting.host.name} sent a result that is not of this version of msparallel.") from None

    def _renew(self) -> None:
        while not self._ending.wait(RENEW_S):
            for node in self._nodes:
                _write(node, b"on\n")

    def _turn(self, seconds: float = 0.25) -> None:
        """Read what has come."""
        for key, _ in self._selector.select(seconds):
            node, stream = key.data
            chunk = os.read(key.fd, 65536)
            if chunk:
                self._take(node, stream, chunk)
                continue
            self._selector.unregister(key.fileobj)
            node.open_streams -= 1
        for node in self._nodes:
            if not node.gone and not node.open_streams and node.process.poll() is not None:
                node.gone = True
                if node.result is None and node.failed is None:
                    _fail(node, _lost(node), "link")

    def _take(self, node: _Node, stream: str, chunk: bytes) -> None:
        if stream == "err":
            node.err += chunk
            del node.err[:-_MOST_STDERR_BYTES]
            return
        node.heard = time.monotonic()
        node.out += chunk
        *lines, rest = bytes(node.out).split(b"\n")
        node.out = bytearray(rest)
        for line in lines:
            self._event(node, line)
        if len(node.out) > _MOST_LINE_BYTES:
            node.out.clear()
            _fail(node, f"It wrote a line of more than {_MOST_LINE_BYTES:,} bytes.", "link")

    def _event(self, node: _Node, line: bytes) -> None:
        """One line of an agent; what is no event is a login's greeting."""
        if not line.startswith(b'{"event":'):
            return
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return
        kind = event.get("event")
        if kind == "ranks":
            self._report(event.get("ranks"))
        elif kind == "done" and isinstance(event.get("result"), dict):
            node.result = event["result"]
        elif kind == "failed":
            _fail(node, str(event.get("text", "")), str(event.get("how", "")), event.get("exit_code"))
        elif kind == "stopped" and isinstance(event.get("left"), list):
            node.left = [short(json.dumps(process), 120) for process in event["left"][:20]]

    def _report(self, ranks: Any) -> None:
        for rank in ranks if isinstance(ranks, list) else []:
            if isinstance(rank, dict) and rank.get("rank") == self._reporting:
                step, loss = rank.get("step"), rank.get("loss")
                self._tell(
                    Progress(
                        phase=short(rank.get("phase", ""), 20),
                        step=step if isinstance(step, int) and 0 <= step <= _MOST_STEPS else None,
                        loss=loss if isinstance(loss, float) else None,
                    )
                )

    def _end(self) -> None:
        """Tell every node to stop, wait until it has, and let go of it."""
        if self._ended:
            return
        self._ended = True
        try:
            self._ending.set()
            if self._renewing.ident is not None:
                self._renewing.join()
            for node in self._nodes:
                _write(node, STOP + b"\n")
            deadline = time.monotonic() + STOP_S
            while time.monotonic() < deadline and not all(node.gone for node in self._nodes):
                self._turn()
        finally:  # also when a second Ctrl-C comes: the nodes' leases run out
            for node in self._nodes:
                _let_go(node)
            self._selector.close()


def _allow_files(nodes: int) -> None:
    """Three pipes a node: more than the usual 1,024 open files for some hundreds of nodes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * nodes + 64
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _write(node: _Node, line: bytes) -> None:
    """To the agent. A pipe that is full or broken is told by the node's end."""
    assert node.process.stdin
    try:
        os.write(node.process.stdin.fileno(), line)
    except (BlockingIOError, BrokenPipeError, ValueError):
        return


def _let_go(node: _Node) -> None:
    """Close the pipes, which ends the lease; end the program that connected."""
    process = node.process
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream
        stream.close()
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _fail(node: _Node, text: str, how: str, exit_code: Any = None) -> None:
    """Its first failure counts. When it came is told by this machine's clock: those of nodes can differ."""
    if node.failed is None:
        code = 2 if exit_code == UserError.exit_code else RunError.exit_code
        node.failed, node.failed_at = {"text": text, "how": how, "exit_code": code}, time.monotonic()


def _lost(node: _Node) -> str:
    return (
        f"The connection to it ended with code {node.process.returncode} before its part was done; without it the "
        f"node stops its part within {LEASE_S:g} s.\n{_words(node)}"
    ).rstrip()


def _words(node: _Node) -> str:
    """The last of what came on stderr."""
    lines = [line for line in bytes(node.err).decode("utf-8", "replace").splitlines() if line.strip()]
    return "\n".join(f"  | {printable(short(line, 300))}" for line in lines[-5:])


def _first(failed: list[_Node], nodes: list[_Node]) -> UserError:
    """The failure that began first. What one node's end does to the others comes after all else."""
    first = min(failed, key=lambda node: (_rank_of_cause(node), node.failed_at))
    assert first.failed is not None
    text = str(first.failed["text"])
    what = f"Node {first.rank} ({first.host.name}) failed first:\n" if len(nodes) > 1 else ""
    left = [f"\n  Still running on {node.host.name}: {process}" for node in nodes for process in node.left]
    kind = UserError if first.failed["exit_code"] == UserError.exit_code else RunError
    return kind(f"{what}{text}{''.join(left)}")


def _rank_of_cause(node: _Node) -> int:
    assert node.failed is not None
    how = node.failed["how"]
    return 0 if how in ("killed", "input", "port", "busy") else 2 if how in _PASSED_ON else 1
