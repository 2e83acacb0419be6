"""The policies: who starts next, and who gives way.

In: a State. Out: Decisions, one after the other: a policy is a generator, and each decision it yields is carried out
before the next one is asked for. It is asked whenever something has changed, after everything that happens at that
moment; who was evicted meanwhile waits again and may be decided on too. It reads the state and changes nothing.

Each of the first five adds one thing to the one before; `reclaim` goes another way:

    fifo      in order of submission; who has no room holds up everyone behind
    backfill  fifo, and others may pass as long as they leave the first in line its reservation (EASY)
    priority  backfill, in order of priority, then submission
    preempt   priority, and the first in line evicts runs of a lower priority
    standby   priority among all but inference; inference takes what is idle and gives way at once
    reclaim   queues with weights, as Volcano's proportion plugin and reclaim action have them (`shares.py`)

>>> list(POLICIES)
['fifo', 'backfill', 'priority', 'preempt', 'standby', 'reclaim']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msparallel.schedule.queue.job import SPARE_KIND, Job, Shape
from msparallel.schedule.queue.reservation import backfilled
from msparallel.schedule.queue.shares import QueueRule, by_shares
from msparallel.schedule.queue.state import Decide, Decision, State
from msparallel.schedule.queue.victims import choose_victims


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Attributes:
    order: a job's place in the line; ties go by submission, line of the file and name.
    spare: whether a job stands by.
    decide: the contract above; it gets the queues' weights.
    """

    name: str
    text: str
    decide: Callable[[Mapping[str, QueueRule]], Decide]
    order: Callable[[Job], tuple[Any, ...]] = lambda job: ()
    spare: Callable[[Job], bool] = lambda job: False


def in_order(state: State) -> Iterator[Decision]:
    """The first in line, as long as it has room."""
    while state.firm.waiting:
        first = state.firm.waiting[0]
        nodes = state.firm_nodes.find(first.shape)
        if nodes is None:
            return
        yield state.on_firm(first, nodes)


def with_backfill(state: State) -> Iterator[Decision]:
    yield from in_order(state)
    yield from backfilled(state)


def with_preemption(state: State) -> Iterator[Decision]:
    yield from in_order(state)
    while state.firm.waiting:
        first = state.firm.waiting[0]
        lower = (run for run in state.firm.running if run.piece.job.priority < first.job.priority)
        found = choose_victims(state, first, lower)
        if found is None:
            break
        yield Decision(first, *found)
        yield from in_order(state)
    yield from backfilled(state)


def with_stand_by(state: State) -> Iterator[Decision]:
    yield from with_backfill(state)
    no_room: set[Shape] = set()
    for piece in tuple(state.spare.waiting):
        if not state.nodes.total or len(no_room) == len(state.spare.shapes):
            return
        if piece.shape in no_room:
            continue
        nodes = _out_of_the_way(state, piece.shape)
        if nodes is None:
            no_room.add(piece.shape)
        else:
            yield Decision(piece, nodes)


def _out_of_the_way(state: State, shape: Shape) -> tuple[int, ...] | None:
    """Nodes that the firm lane comes to last: it takes the fullest first, of these the first."""
    count, share = shape
    free, firm = state.nodes.free, state.firm_nodes.free
    room = sorted(((firm[node], node) for node, devices in enumerate(free) if devices >= share), reverse=True)
    return tuple(node for _, node in room[:count]) if len(room) >= count else None


def _by_priority(job: Job) -> tuple[int]:
    return (-job.priority,)


POLICIES = {policy.name: policy for policy in (
    Policy(name="fifo", text="in order of submission; the first in line holds up the rest",
           decide=lambda queues: in_order),
    Policy(name="backfill", text="fifo; others pass if they leave the first in line its reservation",
           decide=lambda queues: with_backfill),
    Policy(name="priority", text="backfill, in order of priority", order=_by_priority,
           decide=lambda queues: with_backfill),
    Policy(name="preempt", text="priority; the first in line evicts runs of a lower priority", order=_by_priority,
           decide=lambda queues: with_preemption),
    Policy(name="standby", text="priority without inference, which takes what is idle and gives way at once",
           order=_by_priority, decide=lambda queues: with_stand_by, spare=lambda job: job.kind == SPARE_KIND),
    Policy(name="reclaim", text="queues by weight; a queue below its share takes from those above theirs",
           order=_by_priority, decide=by_shares),
)}  # fmt: skip
