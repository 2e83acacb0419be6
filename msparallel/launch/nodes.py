"""All nodes of a job, from their start to their end, seen from one place.

In: a Layout and how to reach its hosts. Out: the result of the rank that knows the loss; or the first failure, with its
node and its text.

>>> run_nodes(plan, layout, asking, tell=print).losses[-1]
4.4
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msparallel.errors import RunError, UserError, short
from msparallel.launch.agent_line import LEASE_S
from msparallel.launch.connections import MOST_LINE_BYTES, Agent, Connections
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


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Of a node. `at`: when it came, by this machine's clock: those of nodes can differ."""

    text: str
    how: str
    exit_code: int
    at: float


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
        self._results: dict[int, dict[str, Any]] = {}
        self._failures: dict[int, _Failure] = {}
        self._ended = False
        self._connections = Connections()
        try:
            self._connections.open(layout, asking, port=layout.master_port)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> _Nodes:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def follow(self) -> None:
        """Until all nodes are done, or one has failed and the others have had time to say that they were first."""
        agents = self._connections.all
        while any(agent.rank not in self._results for agent in agents):
            self._turn()
            for agent in agents:
                if agent.rank not in self._results and time.monotonic() - agent.heard > SILENT_S:
                    self._fail(agent, f"It said nothing for {SILENT_S:g} s.\n{agent.last_words()}".rstrip(), "link")
            if self._failures:
                deadline = time.monotonic() + GRACE_S
                while time.monotonic() < deadline and not all(
                    agent.rank in self._failures or agent.ended for agent in agents
                ):
                    self._turn()
                return

    def result(self) -> RunResult:
        """Of the rank that knows the loss. Raises the first failure."""
        self._end()
        if self._failures:
            raise _first(self._failures, self._connections.all)
        reporting = self._reporting // self._plan.devices_per_node
        try:
            return RunResult(**self._results[reporting])
        except TypeError:
            host = self._connections.all[reporting].host
            raise RunError(f"{host.name} sent a result that is not of this version of msparallel.") from None

    def _turn(self) -> None:
        """Read what has come."""
        for agent, event in self._connections.events():
            self._hear(agent, event)
        for agent in self._connections.all:
            if agent.endless:
                self._fail(agent, f"It wrote a line of more than {MOST_LINE_BYTES:,} bytes.", "link")
            if agent.ended and agent.rank not in self._results:
                self._fail(agent, _lost(agent), "link")

    def _hear(self, agent: Agent, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "ranks":
            self._report(event.get("ranks"))
        elif kind == "done" and isinstance(event.get("result"), dict):
            self._results[agent.rank] = event["result"]
        elif kind == "failed":
            self._fail(agent, str(event.get("text", "")), str(event.get("how", "")), event.get("exit_code"))

    def _fail(self, agent: Agent, text: str, how: str, exit_code: Any = None) -> None:
        """A node's first failure counts."""
        code = UserError.exit_code if exit_code == UserError.exit_code else RunError.exit_code
        self._failures.setdefault(agent.rank, _Failure(text=text, how=how, exit_code=code, at=time.monotonic()))

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
            self._connections.tell_to_stop()
            deadline = time.monotonic() + STOP_S
            while time.monotonic() < deadline and not all(agent.ended for agent in self._connections.all):
                self._turn()
        finally:  # also when a second Ctrl-C comes: the nodes' leases run out
            self._connections.close()


def _lost(agent: Agent) -> str:
    return (
        f"The connection to it ended with code {agent.process.returncode} before its part was done; without it the "
        f"node stops its part within {LEASE_S:g} s.\n{agent.last_words()}"
    ).rstrip()


def _first(failures: dict[int, _Failure], agents: list[Agent]) -> UserError:
    """The failure that began first. What one node's end does to the others comes after all else."""
    rank, first = min(failures.items(), key=lambda pair: (_rank_of_cause(pair[1]), pair[1].at))
    what = f"Node {rank} ({agents[rank].host.name}) failed first:\n" if len(agents) > 1 else ""
    left = [f"\n  Still running on {agent.host.name}: {process}" for agent in agents for process in agent.left]
    kind = UserError if first.exit_code == UserError.exit_code else RunError
    return kind(f"{what}{first.text}{''.join(left)}")


def _rank_of_cause(failure: _Failure) -> int:
    how = failure.how
    return 0 if how in ("killed", "input", "port", "busy") else 2 if how in _PASSED_ON else 1
