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
from typing import NamedTuple

from msparallel.compile.collectives import group_axes
from msparallel.compile.expand import Execution
from msparallel.compile.order import cell_path
from msparallel.mesh import Mesh
from msparallel.simulate.cluster import Deadlock, Wait
from msparallel.simulate.cost import Cost
from msparallel.simulate.streams import COMPUTE, STREAMS, Graph, read_streams

Axes = tuple[str, ...]


class Span(NamedTuple):
    """An operator that took time.

    Attributes:
        stream: "compute", "collective" or "pipeline".
        start_s, end_s: since the step began. A collective starts when its last member has come.
        path: of the cell, as in a parameter's name.
        micro: micro-batch; None for what belongs to none.
        bytes: of the message; 0 for what computes.
        ranks: who takes part; of a transfer sender and receiver; empty for what computes.
        axes: axes of the mesh on which they differ.
        run: which execution of the rank's graphs.
        index: of the operator in its execution.
    """

    rank: int
    stream: str
    start_s: float
    end_s: float
    op: str
    path: str
    micro: int | None
    bytes: int
    ranks: tuple[int, ...]
    axes: Axes
    run: int
    index: int


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """Where a rank's step goes. The parts add up to the step.

    Attributes:
        busy_s: it computes.
        exposed_s: axes -> it does not compute, and what it computes next waits for a message over these axes that is
            under way.
        bubble_s: it does not compute, and waits for other ranks: to come to a collective, to send, to end their step.
        bubble: share of the step.
    """

    rank: int
    busy_s: float
    exposed_s: Mapping[Axes, float]
    bubble_s: float
    bubble: float


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
    ranks = {rank: _Rank(rank, graphs, mesh, cost) for rank, graphs in programs.items()}
    _Meetings(ranks).run()
    end = max((rank.now for rank in ranks.values()), default=0.0)
    return Timeline(
        mesh=mesh,
        spans=tuple([span for rank in ranks.values() for span in rank.spans]),
        step_time_s=end,
        ranks=tuple(rank.times(end) for rank in ranks.values()),
        links=_links(list(ranks.values())),
    )


def _links(ranks: Sequence[_Rank]) -> tuple[LinkUse, ...]:
    uses = []
    for name in dict.fromkeys(name for rank in ranks for name in rank.link_busy_s):
        busiest = max(ranks, key=lambda rank: rank.link_busy_s.get(name, 0.0))
        sent = sum(rank.link_bytes.get(name, 0) for rank in ranks)
        uses.append(LinkUse(name=name, bytes=sent, busy_s=busiest.link_busy_s[name], rank=busiest.rank))
    return tuple(sorted(uses, key=lambda use: -use.busy_s))


@dataclass(slots=True)
class _Arrival:
    """A rank at the head of a stream, where a message waits for its other members."""

    rank: _Rank
    index: int
    time: float


class _Rank:
    """One rank on its way through its step.

    Of the graph that it runs: what is left to wait for, and of each operator since when it could begin, when it began
    and ended, and what it was that ended last before it.
    """

    def __init__(self, rank: int, graphs: Sequence[tuple[Execution, int]], mesh: Mesh, cost: Cost):
        read: dict[int, Graph] = {
            id(execution): read_streams(execution, rank=rank, cost=cost) for execution, _ in graphs
        }
        self.rank, self.mesh = rank, mesh
        self.runs = [(read[id(execution)], times > 1, turn) for execution, times in graphs for turn in range(times)]
        self.run = -1
        self.now = 0.0
        self.spans: list[Span] = []
        self.busy_s = 0.0
        self.exposed_s: dict[Axes, float] = {}
        self.link_bytes: dict[str, int] = {}
        self.link_busy_s: dict[str, float] = {}
        self.axes: dict[tuple[int, ...], Axes] = {}
        self.begin_next()

    @property
    def done(self) -> bool:
        return self.run == len(self.runs)

    def begin_next(self) -> None:
        """Begin the next graph that has operators, if there is one."""
        self.run += 1
        while not self.done and not self.runs[self.run][0].order:
            self.run += 1
        if self.done:
            return
        self.graph = self.runs[self.run][0]
        self.left = list(self.graph.waits)
        numbers = len(self.left)
        self.ready, self.start, self.end = [self.now] * numbers, [self.now] * numbers, [self.now] * numbers
        self.last: list[int | None] = [None] * numbers
        self.heads, self.free, self.waiting = [0, 0, 0], [self.now] * 3, [False] * 3
        self.before: list[int | None] = [None, None, None]
        for gate in range(len(self.graph.execution.operators), numbers):
            if self.graph.waits[gate] == 0:
                self.pass_on(gate)

    def advance(self, meetings: _Meetings) -> None:
        """Go on until every stream waits for another rank, or the step has ended."""
        moved = True
        while moved and not self.done:
            moved = self.compute()
            for stream in (1, 2):
                queue, head = self.graph.queues[stream], self.heads[stream]
                if self.waiting[stream] or head == len(queue) or self.left[queue[head]]:
                    continue
                self.waiting[stream] = True
                index = queue[head]
                meetings.arrive(_Arrival(self, index, self.could_begin(stream, index)))
                moved |= not self.waiting[stream]
            if all(head == len(queue) for head, queue in zip(self.heads, self.graph.queues, strict=True)):
                self.end_run()
                moved = True

    def compute(self) -> bool:
        """Run what computes as far as it can."""
        queue, seconds, left, head = self.graph.queues[COMPUTE], self.graph.seconds, self.left, self.heads[COMPUTE]
        first = head
        while head < len(queue) and not left[queue[head]]:
            index = queue[head]
            start = self.could_begin(COMPUTE, index)
            self.start[index] = start
            self.finish(COMPUTE, index, start + seconds[index])
            head += 1
        self.heads[COMPUTE] = head
        return head > first

    def could_begin(self, stream: int, index: int) -> float:
        """When the stream is free and everything it waits for is done."""
        if self.free[stream] > self.ready[index]:
            self.last[index] = self.before[stream]
            return self.free[stream]
        return self.ready[index]

    def met(self, stream: int, arrival: _Arrival, start: float, end: float) -> None:
        """A message in which all members have come."""
        self.ready[arrival.index], self.start[arrival.index] = arrival.time, start
        self.waiting[stream] = False
        self.heads[stream] += 1
        self.finish(stream, arrival.index, end)

    def finish(self, stream: int, index: int, end: float) -> None:
        self.end[index] = self.free[stream] = end
        self.before[stream] = index
        self.pass_on(index)

    def pass_on(self, done: int) -> None:
        """Let those go on that waited for an operator or a gate."""
        operators = len(self.graph.execution.operators)
        for number in self.graph.followers[done]:
            if self.end[done] >= self.ready[number]:
                self.ready[number] = self.end[done]
                self.last[number] = done if done < operators else self.last[done]
            self.left[number] -= 1
            if number >= operators and not self.left[number]:
                self.end[number] = self.ready[number]
                self.pass_on(number)

    def end_run(self) -> None:
        """Count what the graph's operators took, and begin the next."""
        graph, repeated, turn = self.runs[self.run]
        began, self.now = self.now, max(self.free)
        idle_since = began
        for index in graph.queues[COMPUTE]:
            if self.start[index] > idle_since:
                self.expose(idle_since, self.start[index], self.last[index])
            idle_since = self.end[index]
            self.busy_s += graph.seconds[index]
        if self.now > idle_since:
            self.expose(idle_since, self.now, self.before[self.free.index(self.now)])
        for index in graph.order:
            if self.end[index] > self.start[index]:
                self.spans.append(self.span(graph, index, turn if repeated else None))
        for sent in graph.messages.values():
            for name, bytes_ in sent.cost.sent.items():
                self.link_bytes[name] = self.link_bytes.get(name, 0) + bytes_
            for name, seconds in sent.cost.busy_s.items():
                self.link_busy_s[name] = self.link_busy_s.get(name, 0.0) + seconds
        self.begin_next()

    def expose(self, since: float, until: float, cause: int | None) -> None:
        """Count the part of an idle time in which the messages that ended it were under way. What they waited for
        before they began, another message of their stream or a value, is looked through in the same way."""
        while cause is not None and until > since and cause in self.graph.messages:
            until = min(until, self.end[cause])
            begun = max(since, self.start[cause])
            if until > begun:
                axes = self.axes_of(self.graph.messages[cause].ranks)
                self.exposed_s[axes] = self.exposed_s.get(axes, 0.0) + until - begun
            until = min(begun, self.ready[cause])
            cause = self.last[cause]

    def axes_of(self, ranks: tuple[int, ...]) -> Axes:
        if ranks not in self.axes:
            self.axes[ranks] = group_axes(ranks, self.mesh)
        return self.axes[ranks]

    def span(self, graph: Graph, index: int, turn: int | None) -> Span:
        operator, sent = graph.execution.operators[index], graph.messages.get(index)
        micro = graph.micro[index]
        return Span(
            rank=self.rank,
            stream=STREAMS[graph.streams[index]],
            start_s=self.start[index],
            end_s=self.end[index],
            op=operator.op,
            path=cell_path(operator.node.scope),
            micro=turn if micro is None else micro,
            bytes=sent.bytes if sent else 0,
            ranks=sent.ranks if sent else (),
            axes=self.axes_of(sent.ranks) if sent else (),
            run=self.run,
            index=index,
        )

    def times(self, step: float) -> RankTimes:
        bubble = step - self.busy_s - sum(self.exposed_s.values())
        return RankTimes(
            rank=self.rank,
            busy_s=self.busy_s,
            exposed_s=dict(self.exposed_s),
            bubble_s=bubble,
            bubble=bubble / step if step else 0.0,
        )


class _Meetings:
    """Messages that wait for members, by group; of a transfer (sender, receiver) is the group."""

    def __init__(self, ranks: Mapping[int, _Rank]):
        self.ranks = ranks
        self.open: dict[tuple[str, tuple[int, ...]], dict[int, _Arrival]] = {}
        self.ready: list[_Rank] = []

    def run(self) -> None:
        self.ready = list(self.ranks.values())
        while self.ready:
            self.ready.pop().advance(self)
        if any(not rank.done for rank in self.ranks.values()):
            raise Deadlock(self.why(), self.waits())

    def arrive(self, arrival: _Arrival) -> None:
        graph = arrival.rank.graph
        stream, sent = graph.streams[arrival.index], graph.messages[arrival.index]
        key = (STREAMS[stream], sent.ranks)
        there = self.open.setdefault(key, {})
        there[arrival.rank.rank] = arrival
        if len(there) < sum(rank in self.ranks for rank in sent.ranks):
            return
        self.check_alike(list(there.values()))
        del self.open[key]
        start = max(member.time for member in there.values())
        seconds = max(m.rank.graph.messages[m.index].cost.seconds for m in there.values())
        for member in there.values():
            member.rank.met(stream, member, start, start + seconds)
            if member.rank is not arrival.rank:
                self.ready.append(member.rank)

    def check_alike(self, members: Sequence[_Arrival]) -> None:
        """Raise Deadlock for members of a group that come with different messages."""
        first = members[0]
        for other in members[1:]:
            if _kind(first) != _kind(other):
                raise Deadlock(
                    f"ranks {first.rank.rank} and {other.rank.rank} meet with different messages. Rank "
                    f"{first.rank.rank}: {_words(first)}; rank {other.rank.rank}: {_words(other)}",
                    self.waits(),
                )

    def missing(self, arrival: _Arrival) -> list[int]:
        sent = arrival.rank.graph.messages[arrival.index]
        there = self.open[STREAMS[arrival.rank.graph.streams[arrival.index]], sent.ranks]
        return [rank for rank in sent.ranks if rank in self.ranks and rank not in there]

    def arrivals(self) -> list[_Arrival]:
        """Of ranks that wait, by rank."""
        return sorted((a for there in self.open.values() for a in there.values()), key=lambda a: a.rank.rank)

    def why(self) -> str:
        """The first wait, and where the member is that it waits for."""
        arrivals = self.arrivals()
        first = arrivals[0]
        other = self.missing(first)[0]
        there = next((arrival for arrival in arrivals if arrival.rank.rank == other), None)
        if there is None:
            return f"rank {first.rank.rank} waits in {_words(first)}, but rank {other} has ended its step without it"
        return f"rank {first.rank.rank} waits in {_words(first)}, rank {other} in {_words(there)}"

    def waits(self) -> list[Wait]:
        return [
            Wait(
                rank=arrival.rank.rank,
                op=arrival.rank.graph.execution.operators[arrival.index].op,
                where=_where(arrival),
                group=arrival.rank.graph.messages[arrival.index].ranks,
                missing=tuple(self.missing(arrival)),
            )
            for arrival in self.arrivals()
        ]


def _kind(arrival: _Arrival) -> tuple[object, ...]:
    """In what all members agree. Ends of a transfer have different names; members of AlltoAllV have different sizes."""
    operator = arrival.rank.graph.execution.operators[arrival.index]
    size = arrival.rank.graph.messages[arrival.index].bytes
    if operator.op in ("Send", "Receive"):
        return operator.node.attributes.get("sr_tag"), size
    return operator.op, 0 if operator.op.endswith("V") else size


def _where(arrival: _Arrival) -> str:
    return cell_path(arrival.rank.graph.execution.operators[arrival.index].node.scope) or "the step"


def _words(arrival: _Arrival) -> str:
    sent = arrival.rank.graph.messages[arrival.index]
    operator = arrival.rank.graph.execution.operators[arrival.index]
    return f"{operator.op} of {sent.bytes:,} bytes in group {list(sent.ranks)} ({_where(arrival)})"
