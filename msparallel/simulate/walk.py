"""One rank on its way through a step: its streams, and where its time goes.

In: the rank's graphs and a cost. Out: spans and times, once `timeline.py` has brought it together with the ranks that
it speaks with. A walk goes on until every stream has ended or stands at a message whose other members have not come.

>>> walk = RankWalk(0, [(execution, 1)], Mesh(), cost)
>>> walk.advance(arrive=meetings.arrive)
>>> walk.done, walk.now
(True, 0.412)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msparallel.compile.collectives import group_axes
from msparallel.compile.expand import Execution, Operator
from msparallel.compile.order import cell_path
from msparallel.mesh import Mesh
from msparallel.simulate.cost import Cost
from msparallel.simulate.streams import COLLECTIVE, COMPUTE, PIPELINE, STREAMS, Graph, Sent, read_streams

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


@dataclass(slots=True)
class Arrival:
    """A rank at a message whose other members may not have come.

    Attributes:
        stream: that stands still meanwhile.
        time: since when.
    """

    walk: RankWalk
    stream: int
    operator: Operator
    sent: Sent
    time: float

    @property
    def rank(self) -> int:
        return self.walk.rank


class RankWalk:
    """Attributes:
    now: until when the graphs that have ended took.
    spans: of those graphs.

    Of the graph that runs: `left` is how many others each operator or call still waits for; `ready` since when it could
    begin, `start` and `end` when it ran; `last` the operator that ended last before it could begin.
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
        self.paths: dict[str, str] = {}
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
        for number, waits in enumerate(self.graph.waits):
            if waits == 0 and self.graph.streams[number] is None:
                self.pass_on(number)

    def advance(self, arrive: Callable[[Arrival], None]) -> None:
        """Go on until every stream waits for another rank, or the step has ended. `arrive` is told of each message that
        the rank comes to, and calls `met` once all its members have come."""
        moved = True
        while moved and not self.done:
            moved = self.compute()
            for stream in (COLLECTIVE, PIPELINE):
                queue, head = self.graph.queues[stream], self.heads[stream]
                if self.waiting[stream] or head == len(queue) or self.left[queue[head]]:
                    continue
                self.waiting[stream] = True
                index = queue[head]
                operator, sent = self.graph.execution.operators[index], self.graph.messages[index]
                arrive(Arrival(self, stream, operator, sent, self.could_begin(stream, index)))
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

    def met(self, arrival: Arrival, start: float, end: float) -> None:
        """All members of a message have come."""
        index = arrival.operator.index
        self.ready[index], self.start[index] = arrival.time, start
        self.waiting[arrival.stream] = False
        self.heads[arrival.stream] += 1
        self.finish(arrival.stream, index, end)

    def finish(self, stream: int, index: int, end: float) -> None:
        self.end[index] = self.free[stream] = end
        self.before[stream] = index
        self.pass_on(index)

    def pass_on(self, done: int) -> None:
        """Let those go on that waited; what no stream runs is done as soon as it waits for nothing."""
        streams, left, ready, end = self.graph.streams, self.left, self.ready, self.end[done]
        last = done if streams[done] is not None else self.last[done]
        for number in self.graph.followers[done]:
            if end >= ready[number]:
                ready[number], self.last[number] = end, last
            left[number] -= 1
            if streams[number] is None and not left[number]:
                self.start[number] = self.end[number] = ready[number]
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
        scope, micro = operator.node.scope, graph.micro[index]
        if scope not in self.paths:
            self.paths[scope] = cell_path(scope)
        return Span(
            rank=self.rank,
            stream=STREAMS[graph.streams[index] or COMPUTE],
            start_s=self.start[index],
            end_s=self.end[index],
            op=operator.op,
            path=self.paths[scope],
            micro=turn if micro is None else micro,
            bytes=sent.bytes if sent else 0,
            ranks=sent.ranks if sent else (),
            axes=self.axes_of(sent.ranks) if sent else (),
            run=self.run,
            index=index,
        )

    def times(self, step: float) -> RankTimes:
        bubble = max(step - self.busy_s - sum(self.exposed_s.values()), 0.0)  # what rounding leaves is not below none
        return RankTimes(
            rank=self.rank,
            busy_s=self.busy_s,
            exposed_s=dict(self.exposed_s),
            bubble_s=bubble,
            bubble=bubble / step if step else 0.0,
        )
