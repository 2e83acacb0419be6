"""When every operator of a training step runs, on every rank: a simulation by events.

In: of each rank the graphs of its step and how often each runs, the mesh, a cost. Out: `Timeline`: what ran when, how
long the step takes, where ranks wait and for what.

A rank has three streams: one computes, one runs collectives, one runs the pipeline's transfers. Each stream takes its
operators in the order in which MindSpore's runtime starts them (`order.run_order`). An operator begins when its stream
is free and all that it waits for is done: values, `after`, and the arguments of the calls it stands in. A collective
begins when all its members have come, a transfer when sender and receiver have. A rank's next graph begins when the one
before it has ended.

Not all ranks need to be simulated: one of each pipeline stage will do. Members of a group that are not simulated are
taken to come together with those that are.

Since a stream never overtakes, the times follow from the order alone: each event is the latest of those before it, and
no queue of times is needed.

>>> timeline = simulate_step({0: [(execution, 1)]}, mesh=Mesh(), cost=DeviceCost(machine, devices_per_node=8))
>>> timeline.step_time_s, timeline.ranks[0].bubble
(0.412, 0.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msparallel.compile.expand import Execution
from msparallel.compile.order import cell_path
from msparallel.mesh import Mesh
from msparallel.simulate.cluster import Deadlock, Wait
from msparallel.simulate.cost import Cost
from msparallel.simulate.walk import Arrival, Axes, RankTimes, RankWalk, Span


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """One level of links in a step.

    Attributes:
        bytes: that the simulated ranks send over it.
        busy_s: in which it carries bytes of the rank that uses it most; that rank.
    """

    name: str
    bytes: int
    busy_s: float
    rank: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Attributes:
    spans: rank by rank, in the order in which they were computed; operators without a cost are not among them.
    step_time_s: until the last rank has ended.
    links: levels that something went over, busiest first.
    """

    mesh: Mesh
    spans: tuple[Span, ...] = field(repr=False)
    step_time_s: float
    ranks: tuple[RankTimes, ...]
    links: tuple[LinkUse, ...]

    @property
    def busiest_link(self) -> LinkUse | None:
        return self.links[0] if self.links else None

    @cached_property
    def exposed_s(self) -> dict[Axes, float]:
        """Axes -> seconds of the rank that waits longest for messages over them."""
        found: dict[Axes, float] = {}
        for times in self.ranks:
            for axes, seconds in times.exposed_s.items():
                found[axes] = max(found.get(axes, 0.0), seconds)
        return found


def simulate_step(programs: Mapping[int, Sequence[tuple[Execution, int]]], *, mesh: Mesh, cost: Cost) -> Timeline:
    """Walk one training step.

    Args:
        programs: rank -> its graphs in the order of the step, each with how often it runs.

    Raises:
        Deadlock: a step that would never end; it says who waits for whom.
    """
    walks = [RankWalk(rank, graphs, mesh, cost) for rank, graphs in programs.items()]
    _Meetings(walks).run()
    end = max((walk.now for walk in walks), default=0.0)
    return Timeline(
        mesh=mesh,
        spans=tuple([span for walk in walks for span in walk.spans]),
        step_time_s=end,
        ranks=tuple(walk.times(end) for walk in walks),
        links=_links(walks),
    )


def _links(walks: Sequence[RankWalk]) -> tuple[LinkUse, ...]:
    uses = []
    for name in dict.fromkeys(name for walk in walks for name in walk.link_busy_s):
        busiest = max(walks, key=lambda walk: walk.link_busy_s.get(name, 0.0))
        sent = sum(walk.link_bytes.get(name, 0) for walk in walks)
        uses.append(LinkUse(name=name, bytes=sent, busy_s=busiest.link_busy_s[name], rank=busiest.rank))
    return tuple(sorted(uses, key=lambda use: -use.busy_s))


class _Meetings:
    """Messages that wait for members, by group; of a transfer (sender, receiver) is the group."""

    def __init__(self, walks: Sequence[RankWalk]):
        self.walks = walks
        self.ranks = {walk.rank for walk in walks}
        self.open: dict[tuple[int, tuple[int, ...]], dict[int, Arrival]] = {}
        self.ready: list[RankWalk] = []

    def run(self) -> None:
        self.ready = list(self.walks)
        while self.ready:
            self.ready.pop().advance(self.arrive)
        if any(not walk.done for walk in self.walks):
            raise Deadlock(self.why(), self.waits())

    def arrive(self, arrival: Arrival) -> None:
        key = (arrival.stream, arrival.sent.ranks)
        there = self.open.setdefault(key, {})
        there[arrival.rank] = arrival
        if len(there) < len(self.ranks.intersection(arrival.sent.ranks)):
            return
        del self.open[key]
        members = sorted(there.values(), key=lambda member: member.rank)
        self.check_alike(members)
        start = max(member.time for member in members)
        end = start + max(member.sent.cost.seconds for member in members)
        for member in members:
            member.walk.met(member, start, end)
            if member is not arrival:
                self.ready.append(member.walk)

    def check_alike(self, members: Sequence[Arrival]) -> None:
        """Raise Deadlock for members of a group that come with different messages."""
        first = members[0]
        for other in members[1:]:
            if _kind(first) != _kind(other):
                raise Deadlock(
                    f"ranks {first.rank} and {other.rank} meet with different messages. Rank {first.rank}: "
                    f"{_words(first)}; rank {other.rank}: {_words(other)}",
                    self.waits(),
                )

    def missing(self, arrival: Arrival) -> list[int]:
        there = self.open[arrival.stream, arrival.sent.ranks]
        return [rank for rank in arrival.sent.ranks if rank in self.ranks and rank not in there]

    def arrivals(self) -> list[Arrival]:
        """Of ranks that wait, by rank."""
        return sorted((a for there in self.open.values() for a in there.values()), key=lambda arrival: arrival.rank)

    def why(self) -> str:
        """The first wait, and where the member is that it waits for."""
        arrivals = self.arrivals()
        first = arrivals[0]
        other = self.missing(first)[0]
        there = next((arrival for arrival in arrivals if arrival.rank == other), None)
        if there is None:
            return f"rank {first.rank} waits in {_words(first)}, but rank {other} has ended its step without it"
        return f"rank {first.rank} waits in {_words(first)}, rank {other} in {_words(there)}"

    def waits(self) -> list[Wait]:
        return [
            Wait(rank=a.rank, op=a.operator.op, where=_where(a), group=a.sent.ranks, missing=tuple(self.missing(a)))
            for a in self.arrivals()
        ]


def _kind(arrival: Arrival) -> tuple[object, ...]:
    """In what all members agree. Ends of a transfer have different names; members of AlltoAllV have different sizes."""
    operator, size = arrival.operator, arrival.sent.bytes
    if operator.op in ("Send", "Receive"):
        return operator.node.attributes.get("sr_tag"), size
    return operator.op, 0 if operator.op.endswith("V") else size


def _where(arrival: Arrival) -> str:
    return cell_path(arrival.operator.node.scope) or "the step"


def _words(arrival: Arrival) -> str:
    sent = arrival.sent
    return f"{arrival.operator.op} of {sent.bytes:,} bytes in group {list(sent.ranks)} ({_where(arrival)})"
