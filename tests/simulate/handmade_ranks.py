"""Ranks whose graphs are written by hand, for the virtual cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from handmade import Lines, tensor

from msparallel.compile.expand import expand
from msparallel.simulate.cluster import Cluster
from msparallel.simulate.program import RankProgram, program_graph

Build = Callable[[Lines, int], int]
"""Writes a rank's operators into function 0, from parameter number to result number."""


class RankLines(Lines):
    """Operators of one rank's step over an input `x`, [4] float32 unless said otherwise."""

    def __init__(self, *shape: int, dtype: str = "Float32"):
        super().__init__()
        self.function(0, "step")
        self.type = [dtype, list(shape or (4,))]
        self.x = self.parameter(0, "x", *(shape or (4,)), dtype=dtype)

    def op(self, primitive: str, /, *inputs: Any, type: Any = None, scope: str = "Default", **attributes: Any) -> int:
        return self.node(0, primitive, list(inputs), type or self.type, scope, attributes=attributes)

    def collective(self, primitive: str, value: int, ranks: list[int], *, type: Any = None, **attributes: Any) -> int:
        reduces = primitive in ("AllReduce", "ReduceScatter")
        words = {"op": "sum", **attributes} if reduces else attributes
        scope = f"Default/net-Net/{primitive}_cell"
        return self.op(primitive, value, type=type, scope=scope, group_rank_ids=ranks, **words)

    def program(self, folder: Path, rank: int, result: int) -> RankProgram:
        """The step returns (loss, norm): the result's sum twice over."""
        loss = self.node(0, "ReduceSum", [result, {"constant": []}, {"constant": False}, {"constant": False}], tensor())
        self.returns(0, self.node(0, "MakeTuple", [loss, loss], {"tuple": [tensor(), tensor()]}))
        folder.mkdir()
        graph = self.read(folder)
        return RankProgram(rank=rank, graphs=(program_graph(graph, expand(graph)),))


def cluster_of(folder: Path, *builds: Callable[[RankLines], int], shape: tuple[int, ...] = (4,)) -> Cluster:
    """One rank for each function, which writes its operators and gives the number of the last."""
    programs = []
    for rank, build in enumerate(builds):
        lines = RankLines(*shape)
        programs.append(lines.program(folder / str(rank), rank, build(lines)))
    return Cluster(programs, {rank: {} for rank in range(len(builds))})


def run(cluster: Cluster, shape: tuple[int, ...] = (4,)) -> list[float]:
    """The losses of one step in which rank r feeds r + 1 everywhere."""
    fed = {rank: [[np.full(shape, rank + 1, np.float32)]] for rank in cluster.programs}
    return [result.loss for _, result in sorted(cluster.step(fed).items())]
