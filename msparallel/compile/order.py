"""In which order a rank runs the operators of a step, and what is alive meanwhile.

In: an Execution. Out: `run_order`, the order of MindSpore's runtime as far as the graph fixes it; `live_bytes`, the
activations' peak.

MindSpore's default order (`ExecOrderBuilder`, jit_config exec_order="bfs") is breadth first: values that need nothing
start one after the other; what has become ready waits in a queue; what a communication operator made ready goes first.
Passes of the backend may move communication later; an Ascend run can therefore differ by some tensors.

>>> peak = live_bytes(execution)
>>> peak.bytes, peak.tensors[0].scope
(1610612736, 'layers.7.mlp.gate_proj')
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msparallel.compile.expand import Execution, Operator, Output
from msparallel.compile.graph import Parameter, TensorType, tensors

COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Send", "Receive", "Broadcast")
"""MindSpore's primitives that speak with other ranks. Everything that starts with one of these names counts: variants
(AlltoAllV, AllGatherV) differ in their ending."""
VIEWS = ("Reshape", "ExpandDims", "Squeeze", "Flatten", "Load", "Depend")
"""Their result is their first input under another shape; no memory is taken."""
IN_PLACE = ("Assign", "AssignAdd", "AssignSub", "AdamWeightDecay", "Adam", "AdamW", "ApplyMomentum")
"""Their result is a kept value."""


def is_collective(op: str) -> bool:
    return op.startswith(COLLECTIVES)


def run_order(execution: Execution) -> list[int]:
    """Indexes of the operators in the order in which the runtime starts them."""
    operators = execution.operators
    waits, followers = [0] * len(operators), [[] for _ in operators]
    for operator in operators:
        before = {output.index for output in outputs(operator)} | set(operator.after)
        waits[operator.index] = len(before)
        for index in before:
            followers[index].append(operator.index)
    order: list[int] = []
    queue: deque[int] = deque()
    first: deque[int] = deque()
    for seed in [index for index, count in enumerate(waits) if count == 0]:
        queue.append(seed)
        while queue or first:
            index = first.popleft() if first else queue.popleft()
            order.append(index)
            ready = []
            for follower in followers[index]:
                waits[follower] -= 1
                if waits[follower] == 0:
                    ready.append(follower)
            (first if is_collective(operators[index].op) else queue).extend(ready)
    return order


def outputs(operator: Operator) -> Iterator[Output]:
    """What an operator takes from other operators."""
    stack = list(operator.inputs)
    while stack:
        source = stack.pop()
        if isinstance(source, Output):
            yield source
        elif isinstance(source, tuple):
            stack.extend(source)


@dataclass(frozen=True, kw_only=True)
class LiveTensor:
    """One value that is alive at the peak."""

    op: str
    scope: str
    type: TensorType
    micro: int | None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Attributes:
    bytes: of all values that operators gave and somebody still reads; kept values (weights ...) are not among them.
    at: index of the operator during which it is reached, None for an empty step.
    tensors: the largest of them.
    """

    bytes: int
    at: int | None
    tensors: tuple[LiveTensor, ...]


@dataclass(slots=True)
class _Storage:
    """Memory of one value: its size, where it came from, and the last place in the order that reads it."""

    type: TensorType
    maker: int
    last: int


def live_bytes(execution: Execution, order: Sequence[int] | None = None, largest: int = 12) -> Peak:
    """Walk the operators in order: a value takes memory from its operator to the last one that reads it.

    Args:
        order: of the operators; left out: `run_order`.
        largest: how many of the peak's tensors are named.
    """
    order = run_order(execution) if order is None else order
    storages = _storages(execution, order)
    starts: dict[int, list[_Storage]] = {}
    for storage in storages:
        starts.setdefault(storage.maker, []).append(storage)
    alive, peak, at = 0, 0, None
    ends: list[tuple[int, int]] = []  # (last place, bytes)
    place_of_peak = -1
    for place, index in enumerate(order):
        for storage in starts.get(index, ()):
            alive += storage.type.bytes
            heapq.heappush(ends, (storage.last, storage.type.bytes))
        if alive > peak:
            peak, at, place_of_peak = alive, index, place
        while ends and ends[0][0] <= place:
            alive -= heapq.heappop(ends)[1]
    places = {index: place for place, index in enumerate(order)}
    there = [s for s in storages if places[s.maker] <= place_of_peak <= s.last]
    there.sort(key=lambda storage: (-storage.type.bytes, storage.maker))
    return Peak(bytes=peak, at=at, tensors=tuple(_named(execution, storage) for storage in there[:largest]))


def _storages(execution: Execution, order: Sequence[int]) -> list[_Storage]:
    """Memory that the operators' results take, each until its last reader."""
    places = {index: place for place, index in enumerate(order)}
    by_output: dict[tuple[int, int], _Storage | None] = {}
    found = []
    for operator in execution.operators:  # in this order inputs come first
        for item, type_ in enumerate(tensors(operator.type)):
            source = operator.inputs[0] if operator.inputs else None
            if operator.op in VIEWS and isinstance(source, Output):
                by_output[operator.index, item] = by_output.get((source.index, source.item or 0))
            elif operator.op.startswith(IN_PLACE) or (operator.op in VIEWS and isinstance(source, Parameter)):
                by_output[operator.index, item] = None
            else:
                storage = _Storage(type_, operator.index, places[operator.index])
                by_output[operator.index, item] = storage
                found.append(storage)
        for output in outputs(operator):
            items = [output.item] if output.item is not None else range(_width(execution.operators[output.index]))
            for item in items:
                read = by_output.get((output.index, item))
                if read is not None:
                    read.last = max(read.last, places[operator.index])
    return found


def _width(operator: Operator) -> int:
    return sum(1 for _ in tensors(operator.type))


def _named(execution: Execution, storage: _Storage) -> LiveTensor:
    node = execution.operators[storage.maker].node
    return LiveTensor(op=node.op, scope=cell_path(node.scope), type=storage.type, micro=node.primal.get("micro"))


def cell_path(scope: str) -> str:
    """The cells of a scope as a parameter's name has them; the backward pass has its own mark.

    >>> cell_path("Gradients/Default/network-Net/layers-CellList/3-TransformerLayer/self_attn-Attention")
    'gradient of network.layers.3.self_attn'
    """
    parts = scope.split("/")
    names = [part.partition("-")[0] for part in parts if part not in ("Default", "Gradients")]
    backward = parts[0] == "Gradients" or scope.startswith("Gradients")
    return ("gradient of " if backward else "") + ".".join(filter(None, names))
