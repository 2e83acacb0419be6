"""What the agents' words add up to while a run goes on: is it still moving, and are its nodes well?

In: events as agents send them, with the second at which each was heard. Out: `faults()`, what is wrong now; `Place`,
where the run is. No clock of its own, no process: a test gives it any.

The run hangs where no rank has done anything new (a step, or another phase) for longer than it may: `hang_timeout_s`
or HANG_FACTOR times the median step, whichever is more, and `long_timeout_s` while a rank starts, compiles, evaluates
or writes a checkpoint, since all others wait for it. A rank whose process is stopped (state T) has no such excuse.

>>> watch = Watch(Supervise(hang_timeout_s=60.0), {0: "localhost"}, now=0.0)
>>> watch.hear(0, {"event": "ranks", "ranks": [{"rank": 0, "status": "running", "state": "S", "phase": "step",
...     "step": 7, "step_s": 0.2}]}, now=1.0)
>>> [fault.rank for fault in watch.faults(now=62.0)]
[0]
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msparallel.launch.agent_line import LEASE_S
from msparallel.recipe.schema import Supervise
from msparallel.supervise.fault import Fault

HANG_FACTOR = 10.0
"""Steps differ by less; a data loader that stumbles, or another job on the network, costs a few."""
SILENT_S = LEASE_S
"""A node that has said nothing for so long is lost: it stops its part by then, since nobody reaches it either."""
FIRST_WORD_S = 120.0
"""ssh and the import of a package from a cold file server come before an agent's first word."""
_QUICK = ("step",)
_ILL = ("alarm", "critical")


@dataclass
class _Rank:
    node: int
    status: str
    state: str
    phase: str
    step: int
    changed: float
    stopped_since: float | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank is: phase, steps done, last loss."""

    phase: str
    step: int | None
    loss: float | None


class Watch:
    """Args:
    policy: the recipe's section.
    hosts: node rank -> name.
    now: seconds on the caller's clock, as in all other calls.
    """

    def __init__(self, policy: Supervise, hosts: Mapping[int, str], now: float):
        self._policy, self._hosts = policy, dict(hosts)
        self._heard = dict.fromkeys(hosts, now)
        self._spoke: set[int] = set()
        self._ranks: dict[int, _Rank] = {}
        self._losses: dict[int, float] = {}
        self._steps_s: deque[float] = deque(maxlen=101)
        self._moved = now
        self._done: set[int] = set()
        self._ill: dict[int, Fault] = {}
        self.devices: dict[int, Any] = {}

    @property
    def step(self) -> int | None:
        """The furthest step of any rank."""
        return max((rank.step for rank in self._ranks.values() if rank.phase != "start"), default=None)

    def place(self, rank: int) -> Place | None:
        """Where a rank is, None before its first word."""
        found = self._ranks.get(rank)
        return found and Place(
            phase=found.phase, step=found.step if found.phase != "start" else None, loss=self._losses.get(rank)
        )

    def silent_s(self, node: int, now: float) -> float:
        """Seconds since a node's last word, or since the beginning."""
        return now - self._heard[node]

    def hear(self, node: int, event: Mapping[str, Any], now: float) -> None:
        """Take one event of a node; what is not as an agent writes it is left out."""
        self._heard[node] = now
        self._spoke.add(node)
        kind = event.get("event")
        if kind == "ranks":
            ranks = event.get("ranks")
            for told in ranks if isinstance(ranks, list) else []:
                if isinstance(told, dict) and isinstance(told.get("rank"), int):
                    self._hear_rank(node, told, now)
        elif kind == "devices":
            self.devices[node] = event.get("devices")
            self._hear_devices(node, event.get("devices"))
        elif kind == "disk":
            self._hear_disk(node, event)
        elif kind == "done":
            self._done.add(node)
            self._moved = now

    def _hear_rank(self, node: int, told: Mapping[str, Any], now: float) -> None:
        number, step = told["rank"], told.get("step")
        step = step if isinstance(step, int) else 0
        phase, state = str(told.get("phase", "")), str(told.get("state", ""))
        status = str(told.get("status", ""))
        before = self._ranks.get(number)
        moved = before is None or (before.phase, before.step, before.status) != (phase, step, status)
        since = before.stopped_since if before else None
        stopped_since = (now if since is None else since) if state in ("T", "t") else None
        if moved:
            self._moved = now
            took = told.get("step_s")
            if before is not None and before.phase != "compile" and isinstance(took, (int, float)) and took >= 0:
                self._steps_s.append(float(took))
        changed = now if moved or before is None else before.changed
        self._ranks[number] = _Rank(node, status, state, phase, step, changed, stopped_since)
        if isinstance(told.get("loss"), (int, float)):
            self._losses[number] = float(told["loss"])

    def _hear_devices(self, node: int, devices: Any) -> None:
        limit = self._policy.max_temperature_c
        for device in devices if isinstance(devices, list) else []:
            if not isinstance(device, dict):
                continue
            label, health = str(device.get("device", "?"))[:40], str(device.get("health", ""))[:40]
            hot = device.get("temperature_c")
            where = f"{label} of {self._hosts[node]}"
            if health.lower() in _ILL:
                text = f"{where}: npu-smi reports {health}."
                self._ill.setdefault(node, self._fault("device_alarm", text, node))
            elif limit is not None and isinstance(hot, (int, float)) and hot >= limit:
                text = f"{where} has {hot:g} degrees C (supervise.max_temperature_c {limit:g})."
                self._ill.setdefault(node, self._fault("device_hot", text, node))

    def _hear_disk(self, node: int, event: Mapping[str, Any]) -> None:
        free, limit = event.get("free_bytes"), self._policy.min_free_disk_gib
        if isinstance(free, int) and free < limit * 2**30:
            text = (
                f"{str(event.get('path', ''))[:1000]}\n  {free / 2**30:.2f} GiB are free on {self._hosts[node]}, and "
                f"supervise.min_free_disk_gib is {limit:g}."
            )
            self._ill.setdefault(node, self._fault("disk_full", text, node))

    def _fault(self, kind: str, text: str, node: int | None, rank: int | None = None) -> Fault:
        host = "" if node is None else self._hosts[node]
        return Fault(kind=kind, text=text, node=node, host=host, rank=rank, step=self.step)

    def faults(self, now: float) -> list[Fault]:
        """What is wrong now, first what was seen first."""
        found = list(self._ill.values())
        for node in self._hosts:
            quiet_s = self.silent_s(node, now)
            if node not in self._done and quiet_s > (SILENT_S if node in self._spoke else FIRST_WORD_S):
                text = f"{self._hosts[node]} (node {node}) has said nothing for {quiet_s:.0f} s."
                found.append(self._fault("node_lost", text, node))
        hang = self._hang(now)
        return found + ([hang] if hang else [])

    def allowance_s(self) -> float:
        """Seconds that may pass without anything new."""
        running = [rank for rank in self._ranks.values() if rank.status == "running"]
        if not running or any(rank.phase not in _QUICK for rank in running):
            return self._policy.long_timeout_s
        median_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        return max(self._policy.hang_timeout_s, HANG_FACTOR * median_s)

    def _hang(self, now: float) -> Fault | None:
        running = {number: rank for number, rank in self._ranks.items() if rank.status == "running"}
        stopped = {
            number: now - rank.stopped_since
            for number, rank in running.items()
            if rank.stopped_since is not None and now - rank.stopped_since >= self._policy.hang_timeout_s
        }
        if stopped:
            number = max(stopped, key=lambda one: stopped[one])
            text = f"Rank {number} has been stopped (state T) for {stopped[number]:.0f} s."
            return self._fault("hang", text, running[number].node, number)
        still_s, allowed_s = now - self._moved, self.allowance_s()
        if still_s < allowed_s or len(self._done) == len(self._hosts):
            return None
        if not running:
            return self._fault("hang", f"No rank has begun within {still_s:.0f} s.", None)
        number = min(running, key=lambda one: (running[one].state not in ("T", "t", "D"), *_behind(running[one])))
        rank = running[number]
        text = (
            f"No rank has done a step, or anything else that is new, for {still_s:.0f} s (allowed: {allowed_s:.0f} s). "
            f"Rank {number} stands still since {now - rank.changed:.0f} s: step {rank.step}, phase {rank.phase}, "
            f"process state {rank.state or 'unknown'}."
        )
        return self._fault("hang", text, rank.node, number)


def _behind(rank: _Rank) -> tuple[int, float]:
    return rank.step, rank.changed
