"""Whom an eviction takes.

In: a piece that has no room, and which runs it may push away. Out: its nodes and the runs to evict, none of which can
be spared, or None where evicting all of them would not do. Taken are those of the lowest priority, of these the
cheapest: work since the last checkpoint and the restart, in device-seconds. A gang is evicted as a whole, on all its
nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from msparallel.schedule.queue.nodes import best_fit
from msparallel.schedule.queue.state import Piece, Run, State


def choose_victims(
    state: State, piece: Piece, may_go: Iterable[Run]
) -> tuple[tuple[int, ...], tuple[Run, ...]] | None:
    """Nodes for a piece, and the runs that give way there. No run can be left out of them."""
    count, share = piece.shape
    now = state.now
    order = sorted(may_go, key=lambda run: (run.piece.job.priority, run.cost(now), -run.order))
    free = list(state.nodes.free)
    if sum(free) + sum(run.piece.devices for run in order) < piece.devices:
        return None
    roomy = sum(devices >= share for devices in free)
    chosen: list[Run] = []
    for run in order:
        if roomy >= count:
            break
        roomy += _give(free, run, share, 1)
        chosen.append(run)
    if roomy < count:
        return None
    needed: list[Run] = []
    for run in reversed(chosen):  # the dearest first: who is not needed stays
        change = _give(free, run, share, -1)
        if roomy + change >= count:
            roomy += change
        else:
            _give(free, run, share, 1)
            needed.append(run)
    nodes = best_fit(free, piece.shape)
    assert nodes is not None
    return nodes, tuple(reversed(needed))


def _give(free: list[int], run: Run, share: int, sign: int) -> int:
    """Gives a run's devices back (or takes them again); by how many nodes the roomy ones become more."""
    change = 0
    for node in run.nodes:
        before = free[node] >= share
        free[node] += sign * run.piece.shape[1]
        change += (free[node] >= share) - before
    return change
