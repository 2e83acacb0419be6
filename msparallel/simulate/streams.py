"""A rank's graph as streams of work: what runs where, in which order, what waits for what, and for how long.

In: an Execution, the rank that runs it, a cost. Out: `Graph`. Nothing in it knows of other ranks.

>>> graph = read_streams(execution, rank=0, cost=cost)
>>> [len(queue) for queue in graph.queues]
[1204, 56, 8]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msparallel.compile.collectives import message_bytes, participants
from msparallel.compile.expand import Execution
from msparallel.compile.order import VIEWS, is_collective, outputs, run_order
from msparallel.simulate.cost import Cost, Message

COMPUTE, COLLECTIVE, PIPELINE = range(3)
STREAMS = ("compute", "collective", "pipeline")


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a graph: who takes part, its size, and what it costs this rank."""

    ranks: tuple[int, ...]
    bytes: int
    cost: Message


@dataclass(frozen=True)
class Graph:
    """Numbers below that of the operators are operators, by index; the others are the beginnings of calls.

    Attributes:
        order: of the operators.
        queues: operators of each stream, in order.
        streams: operator or call -> its stream; None for what no stream runs: views, which launch no kernel, and calls.
        waits: operator or call -> how many others it waits for.
        followers: operator or call -> who waits for it.
        seconds: of what computes.
        messages: operator -> its message.
        micro: operator -> micro-batch that it belongs to.
    """

    execution: Execution
    order: Sequence[int]
    queues: tuple[Sequence[int], Sequence[int], Sequence[int]]
    streams: Sequence[int | None]
    waits: Sequence[int]
    followers: Sequence[Sequence[int]]
    seconds: Sequence[float]
    messages: Mapping[int, Sent]
    micro: Sequence[int | None]


def read_streams(execution: Execution, *, rank: int, cost: Cost) -> Graph:
    operators = execution.operators
    calls = {call: len(operators) + number for number, call in enumerate(execution.call_waits)}
    befores: list[set[int]] = []
    streams: list[int | None] = [COMPUTE] * len(operators) + [None] * len(calls)
    seconds = [0.0] * len(operators)
    messages: dict[int, Sent] = {}
    for operator in operators:
        before = {output.index for output in outputs(operator)}
        before.update(operator.after)
        if operator.calls:
            before.add(calls[operator.calls])
        befores.append(before)
        if is_collective(operator.op):
            streams[operator.index] = PIPELINE if operator.op in ("Send", "Receive") else COLLECTIVE
            ranks, size = participants(operator, rank), message_bytes(execution, operator)
            messages[operator.index] = Sent(ranks, size, cost.message(operator.op, ranks, size))
        elif operator.op in VIEWS:
            streams[operator.index] = None
        else:
            seconds[operator.index] = cost.operator(execution, operator)
    for call, waits in execution.call_waits.items():
        befores.append({*waits, calls[call[:-1]]} if call[:-1] else set(waits))
    followers: list[list[int]] = [[] for _ in befores]
    for number, before in enumerate(befores):
        for other in before:
            followers[other].append(number)
    order = run_order(execution)
    queues: tuple[list[int], list[int], list[int]] = ([], [], [])
    for index in order:
        if (stream := streams[index]) is not None:
            queues[stream].append(index)
    waits = [len(before) for before in befores]
    return Graph(execution, order, queues, streams, waits, followers, seconds, messages, micro_batches(execution))


def micro_batches(execution: Execution) -> list[int | None]:
    """Micro-batch of each operator: as MindSpore noted it. A call has no such notes; its is that of what it reads."""
    found: list[int | None] = [operator.node.primal.get("micro") for operator in execution.operators]
    read: dict[int, Counter[int]] = {}
    called: dict[int, int] = {}
    for operator in execution.operators:  # in this order inputs come first
        if not operator.calls:
            continue
        call = operator.calls[0]
        for output in outputs(operator):
            other = execution.operators[output.index].calls
            if other and other[0] == call:
                continue
            micro = called.get(other[0]) if other else found[output.index]
            if micro is not None:
                read.setdefault(call, Counter())[micro] += 1
                called[call] = read[call].most_common(1)[0][0]
    for operator in execution.operators:
        if operator.calls and found[operator.index] is None:
            found[operator.index] = called.get(operator.calls[0])
    return found
