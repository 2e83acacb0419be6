"""Queues with weights: who deserves how much, and who has to give it back.

In: what queues hold and ask for, their weights. Out: Decisions. After Volcano (volcano-sh/volcano, the plugin
proportion and the actions allocate and reclaim), with devices as the only resource:

- A queue *deserves* its part of the cluster by weight, but never more than it asks for; what it leaves goes to the
  others, again by weight.
- The queue with the least of what it deserves is served first; one that holds what it deserves gets no more. Inside a
  queue jobs go by priority; one without room is passed over.
- A queue below what it deserves *reclaims*: runs of other queues that are reclaimable are evicted, as long as their
  queue keeps what it deserves. A gang goes as a whole.

Volcano's default configuration has no reclaim action; a cluster does this only where the action was added.

>>> deserved({"train": 4, "serve": 1}, {"train": 64, "serve": 64}, 40)
{'train': 32.0, 'serve': 8.0}
>>> deserved({"train": 4, "serve": 1}, {"train": 4, "serve": 64}, 40)
{'train': 4.0, 'serve': 36.0}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msparallel.schedule.queue.job import Shape
from msparallel.schedule.queue.state import Decide, Decision, Piece, Run, State
from msparallel.schedule.queue.victims import choose_victims

_LEAST = 1e-6
"""Devices; less is rounding."""


@dataclass(frozen=True, kw_only=True)
class QueueRule:
    """What a Queue object says: spec.weight and spec.reclaimable."""

    weight: int = 1
    reclaimable: bool = True


def deserved(weights: Mapping[str, int], asked: Mapping[str, int], devices: int) -> dict[str, float]:
    """Devices that each queue deserves, of those asked for (running and waiting)."""
    result = dict.fromkeys(asked, 0.0)
    open_queues = [queue for queue in asked if asked[queue]]
    left = float(devices)
    while open_queues and left > _LEAST:
        total = sum(weights[queue] for queue in open_queues)
        part = {queue: left * weights[queue] / total for queue in open_queues}
        for queue in open_queues:
            result[queue] += min(part[queue], asked[queue] - result[queue])
        left = devices - sum(result.values())
        open_queues = [queue for queue in open_queues if asked[queue] - result[queue] > _LEAST]
    return result


def by_shares(rules: Mapping[str, QueueRule]) -> Decide:
    """The policy `reclaim`, for queues with these rules; a queue without one has weight 1 and is reclaimable."""

    def decide(state: State) -> Iterator[Decision]:
        while True:
            decision = _next(state, rules)
            if decision is None:
                return
            yield decision

    return decide


def _next(state: State, rules: Mapping[str, QueueRule]) -> Decision | None:
    lines: dict[str, list[Piece]] = {}
    for piece in state.firm.waiting:
        lines.setdefault(piece.job.queue, []).append(piece)
    if not lines:
        return None
    held = dict.fromkeys(sorted({*lines, *(run.piece.job.queue for run in state.firm.running)}), 0)
    for run in state.firm.running:
        held[run.piece.job.queue] += run.piece.devices
    asked = {queue: held[queue] + sum(piece.devices for piece in lines.get(queue, ())) for queue in held}
    weights = {queue: rules.get(queue, QueueRule()).weight for queue in held}
    due = deserved(weights, asked, state.cluster.devices)
    below = sorted((held[queue] / due[queue], queue) for queue in lines if held[queue] < due[queue] - _LEAST)
    for _, queue in below:
        for piece in _of_each_shape(lines[queue]):
            nodes = state.nodes.find(piece.shape)
            if nodes is not None:
                return Decision(piece, nodes)
    for _, queue in below:
        for piece in _of_each_shape(lines[queue]):
            may_go = _surplus(state, queue, held, due, rules)
            found = choose_victims(state, piece, may_go)
            if found is not None:
                return Decision(piece, *found)
    return None


def _of_each_shape(line: Iterable[Piece]) -> Iterator[Piece]:
    """The first of each shape: where it finds no room, those behind it find none."""
    seen: set[Shape] = set()
    for piece in line:
        if piece.shape not in seen:
            seen.add(piece.shape)
            yield piece


def _surplus(
    state: State, queue: str, held: Mapping[str, int], due: Mapping[str, float], rules: Mapping[str, QueueRule]
) -> list[Run]:
    """Runs of other queues that these can lose together and keep what they deserve; the cheapest first."""
    left = dict(held)
    chosen = []
    for run in sorted(state.firm.running, key=lambda run: (run.piece.job.priority, run.cost(state.now), -run.order)):
        owner = run.piece.job.queue
        if owner == queue or not rules.get(owner, QueueRule()).reclaimable:
            continue
        if left[owner] - run.piece.devices >= due[owner] - _LEAST:
            left[owner] -= run.piece.devices
            chosen.append(run)
    return chosen
