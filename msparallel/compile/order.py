"""In which order a rank runs the operators of a step, and what is alive meanwhile.

In: an Execution. Out: `run_order`, the order of MindSpore's runtime as far as the graph fixes it; `live_bytes`, the
activations' peak.

MindSpore's default order (`ExecOrderBuilder`, jit_config exec_order="bfs") is breadth first: values that need nothing
start one after the other; what has become ready waits in a queue; what a communication operator made ready goes first.
A function that is called runs as a whole, in that order within. Passes of the backend may move communication later; an
Ascend run can therefore differ by some tensors.

>>> peak = live_bytes(execution)
>>> peak.bytes, peak.tensors[0].scope
(1610612736, 'layers.7.mlp.gate_proj')
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from msparallel.compile.expand import Execution, Operator, Output, leaves
from msparallel.compile.graph import Parameter, TensorType, tensors

COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Send", "Receive", "Broadcast")
"""MindSpore's primitives that speak with other ranks. Everything that starts with one of these names counts: variants
(AlltoAllV, AllGatherV) differ in their ending."""
RECOMPUTED = "recompute_"
"""Starts the scope of what the backward pass computes once more."""
VIEWS = ("Reshape", "ExpandDims", "Squeeze", "Flatten", "Load")
"""Their result is their first input under another shape; no memory is taken."""
IN_PLACE = ("Assign", "Adam")
"""Start the names of operators whose result is a kept value."""


def is_collective(op: str) -> bool:
    return op.startswith(COLLECTIVES)


def run_order(execution: Execution) -> list[int]:
    """Indexes of the operators in the order in which the runtime starts them. What stands in one call runs together."""
    blocks = _Blocks()
    paths = [blocks.path(operator) for operator in execution.operators]
    for operator, path in zip(execution.operators, paths, strict=True):
        blocks.add(operator, path)
    for operator, path in zip(execution.operators, paths, strict=True):
        for index in {output.index for output in outputs(operator)} | set(operator.after):
            blocks.connect(paths[index], path)
    for call, waits in execution.call_waits.items():
        path = blocks.calls_to(call)
        for index in waits:
            blocks.connect(paths[index], path)
    order = blocks.order(())
    assert len(order) == len(execution.operators), "what MindSpore compiled has no circle"
    return order


_Unit = tuple[int, ...]
"""A call by the path of calls that lead to it; an operator by the path and, behind a -1, its index."""


class _Blocks:
    """Operators and calls by the call that they stand in, with what each waits for."""

    def __init__(self) -> None:
        self.units: dict[_Unit, dict[_Unit, str]] = {(): {}}
        self.followers: dict[_Unit, dict[_Unit, None]] = {}
        self.waits: dict[_Unit, int] = {}

    @staticmethod
    def path(operator: Operator) -> list[_Unit]:
        """Units that an operator is part of, outermost first, itself last."""
        return [*_Blocks.calls_to(operator.calls), (*operator.calls, -1, operator.index)]

    @staticmethod
    def calls_to(call: tuple[int, ...]) -> list[_Unit]:
        return [call[: depth + 1] for depth in range(len(call))]

    def add(self, operator: Operator, path: list[_Unit]) -> None:
        block: _Unit = ()
        for unit in path:
            self.units.setdefault(block, {}).setdefault(unit, operator.op if unit[-2:-1] == (-1,) else "call")
            self.waits.setdefault(unit, 0)
            block = unit

    def connect(self, before: list[_Unit], after: list[_Unit]) -> None:
        """Let the second wait for the first, in the innermost block that holds both."""
        for first, second in zip(before, after, strict=False):
            if first != second:
                followers = self.followers.setdefault(first, {})
                if second not in followers:
                    followers[second] = None
                    self.waits[second] = self.waits.get(second, 0) + 1
                return

    def order(self, block: _Unit) -> list[int]:
        found: list[int] = []
        units = self.units[block]
        queue: deque[_Unit] = deque()
        first: deque[_Unit] = deque()
        for seed in [unit for unit in units if self.waits[unit] == 0]:
            queue.append(seed)
            while queue or first:
                unit = first.popleft() if first else queue.popleft()
                found += [unit[-1]] if unit[-2:-1] == (-1,) else self.order(unit)
                ready = []
                for follower in self.followers.get(unit, ()):
                    self.waits[follower] -= 1
                    if self.waits[follower] == 0:
                        ready.append(follower)
                (first if is_collective(units[unit]) else queue).extend(ready)
        return found


def outputs(operator: Operator) -> Iterator[Output]:
    """What an operator takes from other operators."""
    return (leaf for leaf in leaves(operator.inputs) if isinstance(leaf, Output))


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
    tensors: all of them, the largest first.
    profile: for every kind of operator the most that is alive while one of them runs.
    """

    bytes: int
    tensors: tuple[LiveTensor, ...]
    profile: Mapping[Hashable, int] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class _Storage:
    """Memory of one value: its size, where it came from, and the last place in the order that reads it."""

    type: TensorType
    maker: int
    last: int


def live_bytes(execution: Execution, order: Sequence[int] | None = None) -> Peak:
    """Walk the operators in order: a value takes memory from its operator to the last one that reads it.

    Args:
        order: of the operators; left out: `run_order`.
    """
    order = run_order(execution) if order is None else order
    storages = _storages(execution, order)
    places = {index: place for place, index in enumerate(order)}
    alive = _alive(storages, places)
    place = max(range(len(order)), key=alive.__getitem__, default=0)
    there = [s for s in storages if places[s.maker] <= place <= s.last]
    there.sort(key=lambda storage: (-storage.type.bytes, storage.maker))
    profile: dict[Hashable, int] = {}
    for index, bytes_ in zip(order, alive, strict=True):
        kind = _kind(execution.operators[index])
        profile[kind] = max(profile.get(kind, 0), bytes_)
    return Peak(
        bytes=alive[place] if alive else 0,
        tensors=tuple(_named(execution, storage) for storage in there),
        profile=profile,
    )


def alive_bytes(execution: Execution, order: Sequence[int]) -> list[tuple[int, int]]:
    """(index, bytes alive while it runs) of each operator, in order; counted as `live_bytes` does."""
    alive = _alive(_storages(execution, order), {index: place for place, index in enumerate(order)})
    return list(zip(order, alive, strict=True))


def _alive(storages: Sequence[_Storage], places: Mapping[int, int]) -> list[int]:
    """Bytes of all storages at each place of an order."""
    change = [0] * (len(places) + 1)
    for storage in storages:
        change[places[storage.maker]] += storage.type.bytes
        change[storage.last + 1] -= storage.type.bytes
    return list(accumulate(change[:-1]))


def _kind(operator: Operator) -> Hashable:
    """What operators of different layers, but of one pass over one micro-batch, have in common."""
    scope = _NUMBERS.sub("", operator.node.scope)
    return operator.calls, operator.node.primal.get("micro"), operator.op, scope


_NUMBERS = re.compile(r"(?<=/)\d+(?=-)")


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
    """The cells of a scope as a parameter's name has them, and whether it is of the backward or of a repeated forward
    pass.

    >>> cell_path("Gradients/Default/network-Net/layers-CellList/3-TransformerLayer/self_attn-Attention")
    'gradient of network.layers.3.self_attn'
    """
    parts = scope.removeprefix(RECOMPUTED).split("/")
    names = [part.partition("-")[0] for part in parts if part not in ("Default", "Gradients", RECOMPUTED + "Default")]
    kind = "gradient of " if parts[0] == "Gradients" else "recomputed " if scope.startswith(RECOMPUTED) else ""
    return kind + ".".join(filter(None, names))
