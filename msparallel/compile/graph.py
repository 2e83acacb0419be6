"""A compiled graph as MindSpore holds it: functions of operators that call each other.

In: the files that `target.SimulatedAscend.export_graph` wrote. Out: `CompiledGraph`, immutable. `expand` turns it into
the flat list of what one execution runs.

>>> graph = read_graph(folder)
>>> [node.op for node in graph.functions[0].nodes][:3]
['Cast', 'AllGather', 'Cast']
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GRAPH_FILE, CONSTANTS_FILE, GROUPS_FILE = "graph.jsonl", "constants.bin", "groups.json"
ELEMENT_BYTES = {
    **{"Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Int32": 4, "UInt32": 4, "Int64": 8, "UInt64": 8},
    **{"Float16": 2, "BFloat16": 2, "Float32": 4, "Float64": 8},
}
"""MindSpore's names of number types; BFloat16 is read as uint16 where bits are needed."""
_NUMPY = {"BFloat16": "uint16"}


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype by MindSpore's name ("Float32"), shape per rank; -1 is a length that only the data decides, and counts as
    none."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(max(length, 0) for length in self.shape) * ELEMENT_BYTES[self.dtype]


Type = TensorType | tuple["Type", ...] | str
"""Of a value: a tensor, a tuple of values, or the name of what is neither (a scalar's dtype, a monad)."""


def tensors(value: Type) -> Iterator[TensorType]:
    """The tensors of a value, in order."""
    if isinstance(value, TensorType):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors(item)


@dataclass(frozen=True, slots=True)
class Ref:
    """Output of a node, or a parameter, by number; numbers are unique over all functions."""

    number: int


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function as a value."""

    number: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A plain value: number, text, bool, None, or lists and maps of those."""

    value: Any


@dataclass(frozen=True, slots=True)
class ConstantTensor:
    """A tensor that the graph holds. `stored_bytes` are those of one element where all are alike."""

    type: TensorType
    offset: int
    stored_bytes: int


Input = Ref | FunctionRef | Constant | ConstantTensor


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input of a function. `weight`: a value that MindSpore keeps between steps (weights, moments, counters)."""

    number: int
    name: str
    type: Type
    weight: bool


@dataclass(frozen=True, slots=True)
class Node:
    """One operator as it stands in a function.

    Attributes:
        op: MindSpore's primitive; "call" has what it calls as its first input.
        attributes: of the primitive; collectives have group_rank_ids here.
        primal: what MindSpore's passes noted: micro, forward_unique_id, recompute marks.
        scope: the cells around it, outermost first.
    """

    number: int
    op: str
    inputs: tuple[Input, ...]
    type: Type
    scope: str
    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    primal: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Function:
    """Nodes stand in an order in which inputs come before what reads them."""

    number: int
    name: str
    parameters: tuple[Parameter, ...]
    nodes: tuple[Node, ...]
    result: Input


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """Attributes:
    functions: the first is the step itself.
    constants: file that constant tensors are read from.
    """

    functions: tuple[Function, ...]
    constants: Path

    def array(self, constant: ConstantTensor) -> np.ndarray:
        """Content of a constant tensor; BFloat16 comes as its bits in uint16."""
        dtype = np.dtype(_NUMPY.get(constant.type.dtype, constant.type.dtype.lower()))
        with self.constants.open("rb") as file:
            file.seek(constant.offset)
            values = np.frombuffer(file.read(constant.stored_bytes), dtype)
        if constant.stored_bytes == constant.type.bytes:
            return values.reshape(constant.type.shape)
        return np.broadcast_to(values, constant.type.shape)


def read_graph(folder: Path) -> CompiledGraph:
    """Read the files of one rank's graph. Raises ValueError for files that hold something else."""
    groups: dict[str, list[int]] = json.loads((folder / GROUPS_FILE).read_text(encoding="utf-8"))
    names: dict[int, str] = {}
    parameters: dict[int, list[Parameter]] = {}
    nodes: dict[int, list[Node]] = {}
    results: dict[int, Input] = {}
    with (folder / GRAPH_FILE).open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            item = json.loads(line)
            graph = item["graph"]
            if "node" in item:
                nodes[graph].append(_node(item, groups, _FORWARD in names[graph]))
            elif "parameter" in item:
                parameters[graph].append(
                    Parameter(item["parameter"], item["name"], _type(item["value"]), item["weight"])
                )
            elif "return" in item:
                results[graph] = _input(item["return"])
            else:
                names[graph], parameters[graph], nodes[graph] = item["name"], [], []
    if not names or len(results) != len(names):
        raise ValueError(f"{folder / GRAPH_FILE} ends before its graphs do")
    functions = tuple(
        Function(number, names[number], tuple(parameters[number]), tuple(nodes[number]), results[number])
        for number in sorted(names)
    )
    return CompiledGraph(functions, folder / CONSTANTS_FILE)


_FORWARD = "▸"
"""In the name of a function that is the forward pass of a reused cell; the backward pass has ◂."""


def _node(item: dict[str, Any], groups: Mapping[str, list[int]], forward: bool) -> Node:
    attributes = item.get("attributes", {})
    if attributes.get("group") in groups:
        # Of groups that a network made itself MindSpore's engine knows only the name, and notes the whole world.
        attributes = {**attributes, "group_rank_ids": groups[attributes["group"]]}
    return Node(
        number=item["node"],
        op=item["op"],
        inputs=tuple(map(_input, item["inputs"])),
        type=_type(item["value"]),
        # MindSpore marks a recomputed cell's operators in both passes of a function; in the first none is done again.
        scope=item["scope"].removeprefix("recompute_") if forward else item["scope"],
        name=item["name"],
        attributes=attributes,
        primal=item.get("primal", {}),
    )


def _type(value: Any) -> Type:
    if isinstance(value, list):
        return TensorType(value[0], tuple(value[1]))
    if "tuple" in value:
        return tuple(map(_type, value["tuple"]))
    return next(iter(value.values()))


def _input(value: Any) -> Input:
    if isinstance(value, int):
        return Ref(value)
    if "graph" in value:
        return FunctionRef(value["graph"])
    if "tensor" in value:
        dtype, shape, offset, stored = value["tensor"]
        return ConstantTensor(TensorType(dtype, tuple(shape)), offset, stored)
    if "primitive" in value:
        return Constant({"primitive": value["primitive"]})
    return Constant(value["constant"])
