"""One attempt: all nodes from their start to the run's end, or to the first fault.

In: a Plan, a Layout, how to reach its hosts, a port. Out: an Outcome: the result, or the fault that the others follow
from; when it is returned nothing of the attempt is left running that can be reached.

>>> attempt(plan, layout, asking, port=8118).fault.kind
'worker_killed'
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from msparallel.launch.agent import mark_of
from msparallel.launch.connections import Agent
from msparallel.launch.hosts import Layout
from msparallel.launch.preflight_ask import Asking
from msparallel.plan import Plan
from msparallel.supervise.agents import Agents
from msparallel.supervise.fault import Fault, fault_of, first_cause, is_sure
from msparallel.supervise.watch import SILENT_S, Place, Watch
from msparallel.train.run import reporting_rank

SETTLE_S = 3.0
"""After the first fault, how long other nodes may take to tell of the one that it follows from."""
QUIET_S = 5.0
"""A node that says nothing for so long while another one fails may be the reason: it is given SILENT_S to speak."""
_SSH_FAILED = 255
"""Exit code of ssh for what is its own trouble, not the command's (man ssh)."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Attributes:
    result: fields of `run --json`, None where the attempt failed.
    step: the last one that any rank had done, None before the first word.
    left: processes that no signal ends, as text.
    words: node rank -> what the agent, or the program that connects, said on stderr.
    devices: node rank -> what npu-smi said last.
    """

    result: dict[str, Any] | None
    fault: Fault | None
    step: int | None
    left: tuple[str, ...]
    words: dict[int, str]
    devices: dict[int, Any]


def attempt(
    plan: Plan,
    layout: Layout,
    asking: Asking,
    *,
    port: int,
    show: Callable[[Place], object] = lambda place: None,
    told: Callable[[str], object] = lambda text: None,
) -> Outcome:
    """Run the job until it is done or something is wrong, and stop it everywhere.

    Args:
        show: told about once a second where the rank is that knows the loss.
        told: takes a line where stopping takes long.
    """
    hosts = {rank: host.name for rank, host in enumerate(layout.nodes)}
    with Agents(layout, asking, port=port, mark=lambda node: mark_of(plan, node)) as agents:
        follow = _Follow(plan, agents, Watch(plan.recipe.supervise, hosts, time.monotonic()), show)
        faults = follow.until_end()
        left = agents.stop(told)
    fault = first_cause(faults) if faults else None
    if left and fault is not None:
        agent, text = left[0]
        fault = replace(
            fault, kind="processes_left", node=agent.rank, host=agent.host.name, text=f"{text}\n{fault.text}"
        )
    watch = follow.watch
    step = watch.step
    return Outcome(
        result=follow.result if fault is None else None,
        fault=fault and (fault if fault.step is not None else replace(fault, step=step)),
        step=step,
        left=tuple(f"{agent.host.name}: {text}" for agent, text in left),
        words={agent.rank: words for agent in agents.all if (words := agent.last_words(most=200))},
        devices=watch.devices,
    )


class _Follow:
    """The attempt while it runs."""

    def __init__(self, plan: Plan, agents: Agents, watch: Watch, show: Callable[[Place], object]):
        self.watch = watch
        self.result: dict[str, Any] | None = None
        self._agents, self._show = agents, show
        self._reporting = reporting_rank(plan)
        self._reporting_node = self._reporting // plan.devices_per_node
        self._done: set[int] = set()
        self._failed: dict[int, Fault] = {}

    def until_end(self) -> list[Fault]:
        """Empty when all nodes are done; else all faults that were seen, in order."""
        while len(self._done) < len(self._agents.all):
            self._turn()
            if self._faults():
                deadline = time.monotonic() + SETTLE_S
                while time.monotonic() < deadline or self._may_yet_speak():
                    self._turn()
                return self._faults()
        return []

    def _turn(self) -> None:
        now = time.monotonic()
        for agent, event in self._agents.turn():
            now = time.monotonic()
            self.watch.hear(agent.rank, event, now)
            kind = event.get("event")
            if kind == "done" and isinstance(event.get("result"), dict):
                self._done.add(agent.rank)
                if agent.rank == self._reporting_node:
                    self.result = event["result"]
            elif kind == "failed":
                fault = fault_of(event, node=agent.rank, host=agent.host.name, step=self.watch.step)
                self._failed.setdefault(agent.rank, fault)
            elif kind == "ranks" and (place := self.watch.place(self._reporting)) is not None:
                self._show(place)
        for agent in self._agents.all:
            if agent.ended and agent.rank not in self._done and agent.rank not in self._failed:
                self._failed[agent.rank] = self._ended(agent)

    def _ended(self, agent: Agent) -> Fault:
        """An agent whose connection ended without a word about why."""
        code, words = agent.process.returncode, agent.last_words()
        if agent.here:
            how = f"killed by signal {-code}" if code < 0 else f"code {code}"
            text = f"The agent of {agent.host.name} ended ({how}) before its part was done.\n{words}"
            kind = "agent_lost" if agent.started or code < 0 else "start_failed"
        elif agent.started or code == _SSH_FAILED:
            text = f"The connection to {agent.host.name} ended with code {code}.\n{words}"
            kind = "node_lost"
        else:
            text = f"{agent.host.name}: the agent did not start (code {code}).\n{words}"
            kind = "start_failed"
        return Fault(
            kind=kind, text=text.rstrip(), node=agent.rank, host=agent.host.name, step=self.watch.step
        )

    def _faults(self) -> list[Fault]:
        seen = self.watch.faults(time.monotonic())
        silent = {fault.node for fault in seen if fault.kind == "node_lost"}
        here = {agent.rank for agent in self._agents.all if agent.here}
        seen = [
            replace(fault, kind="agent_lost") if fault.kind == "node_lost" and fault.node in here else fault
            for fault in seen
            if not (fault.kind == "node_lost" and fault.node in self._failed)
        ]
        # What a node said before it went silent can be the effect of the link that broke.
        spoken = [fault for node, fault in self._failed.items() if node not in silent or is_sure(fault)]
        return spoken + seen

    def _may_yet_speak(self) -> bool:
        """Whether a node is quiet, and nothing that is seen yet is surely a cause."""
        if any(map(is_sure, self._faults())):
            return False
        now = time.monotonic()
        return any(
            QUIET_S < self.watch.silent_s(agent.rank, now) <= SILENT_S
            for agent in self._agents.all
            if agent.rank not in self._done and agent.rank not in self._failed
        )
