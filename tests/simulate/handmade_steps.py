"""Steps whose operators are written by hand, without files, and a cost that says what each takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msparallel.compile.expand import Constant, Execution, Operator, Output, Source
from msparallel.compile.graph import Node, Parameter, TensorType, Type
from msparallel.simulate.cost import Message

FLOATS = TensorType("Float32", (16, 16))
X = Parameter(0, "x", FLOATS, False)


class StepLines:
    """One execution, written operator by operator. Numbers are operators' indexes."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.waits: dict[tuple[int, ...], tuple[int, ...]] = {}

    def op(
        self,
        primitive: str,
        *inputs: int,
        after: Sequence[int] = (),
        calls: tuple[int, ...] = (),
        micro: int | None = None,
        scope: str = "Default/net-Net/layers-CellList/0-Layer",
        type: Type = FLOATS,
        **attributes: Any,
    ) -> int:
        index = len(self.operators)
        primal = {} if micro is None else {"micro": micro}
        node = Node(index, primitive, (), type, scope, f"{scope}/{primitive}-op{index}", attributes, primal)
        sources: tuple[Source, ...] = tuple(map(Output, inputs)) or (X,)
        self.operators.append(Operator(index, node, sources, tuple(after), calls))
        return index

    def all_reduce(self, value: int, ranks: Sequence[int], **more: Any) -> int:
        return self.op("AllReduce", value, group_rank_ids=list(ranks), **more)

    def send(self, value: int, to: int, **more: Any) -> int:
        return self.op("Send", value, dest_rank=to, **more)

    def receive(self, source: int, **more: Any) -> int:
        return self.op("Receive", src_rank=source, **more)

    def execution(self) -> Execution:
        return Execution((X,), tuple(self.operators), Output(len(self.operators) - 1), (), self.waits)


class FixedCost:
    """Seconds by primitive; what is not named takes none."""

    def __init__(self, **seconds: float):
        self.seconds: Mapping[str, float] = seconds

    def operator(self, execution: Execution, operator: Operator) -> float:
        return self.seconds.get(operator.op, 0.0)

    def message(self, op: str, ranks: tuple[int, ...], size: int) -> Message:
        seconds = self.seconds.get(op, 0.0)
        return Message(seconds, {"wire": 0 if op == "Receive" else size}, {"wire": seconds})


def execution_of(op: str, inputs: Sequence[TensorType | Sequence[TensorType] | Any], type: Type) -> Execution:
    """One operator over parameters of these types; what is no type is a constant."""
    node = Node(1, op, (), type, "Default", op)
    return Execution((), (Operator(0, node, tuple(map(_source, inputs)), ()),), Output(0), (), {})


def _source(item: Any) -> Source:
    if isinstance(item, TensorType):
        return Parameter(9, "p", item, True)
    if isinstance(item, tuple):
        return tuple(map(_source, item))
    return Constant(item)
