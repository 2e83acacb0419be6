"""Compiled graphs written by hand, as the export writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msparallel.compile.graph import CompiledGraph, read_graph

F32 = "Float32"


class Lines:
    """The lines of one graph file, built up node by node."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.count = 0

    def function(self, number: int, name: str) -> None:
        self.lines.append({"graph": number, "name": name})

    def parameter(self, graph: int, name: str, *shape: int, weight: bool = False, dtype: str = F32) -> int:
        self.count += 1
        value = [dtype, list(shape)]
        self.lines.append({"parameter": self.count, "graph": graph, "name": name, "value": value, "weight": weight})
        return self.count

    def node(self, graph: int, op: str, inputs: list[Any], value: Any, scope: str = "Default", **more: Any) -> int:
        self.count += 1
        self.lines.append(
            {"node": self.count, "graph": graph, "op": op, "inputs": inputs, "value": value, "scope": scope}
            | {"name": f"{scope}/{op}-op{self.count}"}
            | more
        )
        return self.count

    def returns(self, graph: int, value: Any) -> None:
        self.lines.append({"return": value, "graph": graph})

    def read(self, folder: Path, constants: bytes = b"") -> CompiledGraph:
        folder.joinpath("graph.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        folder.joinpath("constants.bin").write_bytes(constants)
        folder.joinpath("groups.json").write_text("{}")
        return read_graph(folder)


def tensor(*shape: int, dtype: str = F32) -> list[Any]:
    return [dtype, list(shape)]


def micro_batches(folder: Path, calls: int, **collective: Any) -> CompiledGraph:
    """A step that runs one function for each of `calls` micro-batches, one after the other: two operators and a
    collective each, [4, 4] float32; then adds the results."""
    lines = Lines()
    lines.function(0, "step")
    x, w = lines.parameter(0, "x", 4, 4), lines.parameter(0, "w", 4, 4, weight=True)
    before: Any = {"constant": None}
    total = None
    for _ in range(calls):
        argument = lines.node(0, "Depend", [w, before], tensor(4, 4))
        before = lines.node(0, "call", [{"graph": 1}, x, argument], tensor(4, 4))
        total = before if total is None else lines.node(0, "Add", [total, before], tensor(4, 4))
    lines.returns(0, total)
    lines.function(1, "micro_batch")
    x, w = lines.parameter(1, "x", 4, 4), lines.parameter(1, "w", 4, 4)
    product = lines.node(1, "MatMul", [x, w], tensor(4, 4))
    attributes = {"group_rank_ids": [0, 1], **collective}
    added = lines.node(1, "AllReduce", [product], tensor(4, 4), attributes=attributes)
    lines.returns(1, lines.node(1, "ReLU", [added], tensor(4, 4)))
    return lines.read(folder)
