"""The agents of one attempt: heard, and stopped so that nothing is left.

In: a Layout and how to reach its hosts. Out: events as they come, and ends; `stop`, which returns when no process of
the run is left on any node that can be asked, and when the lease of any other has run out.

>>> with Agents(layout, asking, port=8118) as agents:
...     for agent, event in agents.turn():
...         print(agent.rank, event["event"])
0 started
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msparallel.launch.agent_line import LEASE_S
from msparallel.launch.connections import Agent, Connections
from msparallel.launch.hosts import Layout
from msparallel.launch.marked import GRACE_S, SURE_S, end_marked
from msparallel.launch.preflight_ask import Asking

_STOPS_S = GRACE_S + SURE_S + 10.0
"""An agent that hears `stop` has ended its node's processes by then."""
_LEASE_OVER_S = LEASE_S + GRACE_S + SURE_S
"""And one that hears nothing by then."""


class Agents:
    """Context manager: on leaving it, however, nothing of the attempt is left running that can be reached.

    Args:
        mark: node rank -> the mark of its processes, to look for those of this machine.
    """

    def __init__(self, layout: Layout, asking: Asking, *, port: int, mark: Callable[[int], str]):
        self._mark, self._stopped = mark, False
        self._connections = Connections()
        self.all: list[Agent] = self._connections.all
        try:
            self._connections.open(layout, asking, port=port)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def turn(self) -> list[tuple[Agent, dict[str, Any]]]:
        """Events that have come, after waiting a moment for one."""
        return self._connections.events()

    def stop(self, told: Callable[[str], object] = lambda text: None) -> list[tuple[Agent, str]]:
        """End everything on every node; what is left as (agent, text), which no signal ends.

        Args:
            told: takes a line where this takes longer than a person expects.
        """
        if self._stopped:
            return []
        self._stopped = True
        try:
            began = time.monotonic()
            self._connections.tell_to_stop()
            while not all(agent.ended for agent in self.all) and time.monotonic() - began < _STOPS_S:
                self.turn()
            unheard = [agent for agent in self.all if not agent.here and not _is_sure(agent)]
            if unheard:
                names = ", ".join(agent.host.name for agent in unheard)
                told(f"{names} cannot be asked; its processes end with its lease. Waiting for that.")
                over = max(agent.ended or began for agent in unheard) + _LEASE_OVER_S
                while time.monotonic() < over and not all(map(_is_sure, unheard)):
                    self.turn()
        finally:
            self._connections.close()
        left = [(agent, text) for agent in self.all for text in agent.left]
        for agent in self.all:  # an agent of this machine that was killed could not say what is left: look
            if agent.here and not agent.stopped:
                left += [
                    (agent, f"{process.pid} ({process.name}, state {process.state})")
                    for process in end_marked(self._mark(agent.rank), grace_s=0.0)
                ]
        return left


def _is_sure(agent: Agent) -> bool:
    """Whether the agent itself has said that its node is clean: it stopped its part, or the part came to its end, or
    the agent never began."""
    return bool(agent.ended) and (agent.stopped or not agent.started or agent.process.returncode == 0)
