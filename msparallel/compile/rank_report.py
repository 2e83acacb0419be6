"""What one rank of a job holds, sends and keeps alive: the answer of a dry run.

In: a folder with the Result of a compilation, the mesh. Out: `RankReport`, plain values, and its JSON.

>>> report = read_report(folder, rank=5, mesh=plan.mesh, devices_per_node=8, stage_layers=plan.stage_layers)
>>> report.weights_bytes, report.peak.bytes
(1073741824, 6442450944)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msparallel.compile.collectives import CollectiveUse, collective_uses
from msparallel.compile.expand import Execution, expand
from msparallel.compile.graph import TensorType, read_graph
from msparallel.compile.order import Peak, live_bytes
from msparallel.compile.request import Role, read_result
from msparallel.compile.strategies import OperatorCut, Strategy, layout_strategy, operator_cuts
from msparallel.mesh import Mesh
from msparallel.slice import Slice
from msparallel.train.slices import layout_slice, optimizer_shards

LARGEST_TENSORS = 12
"""Of those that are alive at the peak, in the JSON document."""


@dataclass(frozen=True, kw_only=True)
class HeldParameter:
    """One kept value as a rank holds it.

    Attributes:
        role: what it is for.
        part: which slice of the whole; cut_by names the axes.
        optimizer_shard: ranks that the optimizer shard cuts it over, 1 for none.
        bytes: of the slice.
    """

    name: str
    role: Role
    dtype: str
    part: Slice
    optimizer_shard: int
    bytes: int

    @property
    def local_shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.part.bounds)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "dtype": self.dtype,
            "shape": list(self.part.shape),
            "slice": list(self.local_shape),
            "bounds": [list(bounds) for bounds in self.part.bounds],
            "cut_by": [list(axes) for axes in self.part.cut_by],
            "optimizer_shard": self.optimizer_shard,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """Attributes:
    layers: of the model that live on the rank's stage.
    parameters: kept values, weights first.
    operators: how many of each primitive a step runs.
    compiled_layers: the two numbers of layers of the stage that were compiled, where the report was inferred from them;
        None where all layers were compiled.
    """

    rank: int
    stage: int
    layers: tuple[int, ...]
    parameters: tuple[HeldParameter, ...]
    collectives: tuple[CollectiveUse, ...]
    cuts: tuple[OperatorCut, ...]
    operators: dict[str, int]
    peak: Peak
    build_s: float
    compile_s: float
    process_peak_bytes: int
    compiled_layers: tuple[int, int] | None = None

    def bytes_of(self, role: Role) -> int:
        return sum(parameter.bytes for parameter in self.parameters if parameter.role == role)

    @property
    def weights_bytes(self) -> int:
        return self.bytes_of("weight")

    @property
    def optimizer_bytes(self) -> int:
        return self.bytes_of("optimizer")

    @property
    def cache_bytes(self) -> int:
        """Of keys and values of a served model."""
        return self.bytes_of("cache")

    @property
    def gradients_bytes(self) -> int:
        """Of accumulated gradients; without accumulation gradients are among the live values."""
        return self.bytes_of("gradient")

    def to_json(self) -> dict[str, Any]:
        """The fields of `dryrun --json`."""
        return {
            "rank": self.rank,
            "stage": self.stage,
            "layers": list(self.layers),
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "collectives": [
                {**asdict(use), "ranks": list(use.ranks), "axes": list(use.axes), "total_bytes": use.total_bytes}
                for use in self.collectives
            ],
            "strategies": [
                {**asdict(cut), "strategy": [list(dims) for dims in cut.strategy], "words": cut.words}
                for cut in self.cuts
            ],
            "operators": self.operators,
            "weights_bytes": self.weights_bytes,
            "gradients_bytes": self.gradients_bytes,
            "optimizer_bytes": self.optimizer_bytes,
            "cache_bytes": self.cache_bytes,
            "peak_live_bytes": self.peak.bytes,
            "peak_tensors": [
                {
                    "op": t.op,
                    "scope": t.scope,
                    "dtype": t.type.dtype,
                    "shape": list(t.type.shape),
                    "bytes": t.type.bytes,
                }
                for t in self.peak.tensors[:LARGEST_TENSORS]
            ],
            "peak_tensor_count": None if self.compiled_layers else len(self.peak.tensors),
            "build_s": round(self.build_s, 3),
            "compile_s": round(self.compile_s, 3),
            "process_peak_bytes": self.process_peak_bytes,
            "compiled_layers": self.compiled_layers,
        }


def read_report(
    folder: Path,
    *,
    rank: int,
    mesh: Mesh,
    devices_per_node: int,
    stage_layers: Sequence[int],
    only: int | None = None,
) -> RankReport:
    """Read what a worker left in its folder.

    Args:
        stage_layers: layers of each group, in the order a sample passes them; group g lives on stage g % pp.
        only: number of the graph that is read; left out: all that a step runs.
    """
    result = read_result(folder)
    executions: list[tuple[Execution, int]] = []
    held: dict[str, HeldParameter] = {}
    strategies: dict[str, Strategy] = {}
    peaks = []
    for graph in result.graphs if only is None else [result.graphs[only]]:
        place = Path(graph.folder)
        execution = expand(read_graph(place))
        executions.append((execution, graph.executions))
        peaks.append(live_bytes(execution))
        layouts = json.loads((place / "layouts.json").read_text(encoding="utf-8"))
        held |= _held(execution, layouts, result.roles, mesh, rank)
        strategies |= layout_strategies(execution)
        listed = json.loads((place / "strategies.json").read_text(encoding="utf-8"))
        strategies |= listed or noted_strategies(execution)
    stage = mesh.coordinates(rank)["pp"]
    operators: dict[str, int] = {}
    for execution, times in executions:
        for operator in execution.operators:
            operators[operator.op] = operators.get(operator.op, 0) + times
    order = {"weight": 0, "gradient": 1, "optimizer": 2, "cache": 3}
    return RankReport(
        rank=rank,
        stage=stage,
        layers=layers_of_stage(stage_layers, mesh.pp, stage),
        parameters=tuple(sorted(held.values(), key=lambda p: order[p.role])),
        collectives=tuple(collective_uses(executions, rank=rank, mesh=mesh, devices_per_node=devices_per_node)),
        cuts=tuple(
            operator_cuts(strategies, (o.node.scope for execution, _ in executions for o in execution.operators))
        ),
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        peak=max(peaks, key=lambda peak: peak.bytes),
        build_s=result.build_s,
        compile_s=result.compile_s,
        process_peak_bytes=result.peak_memory_bytes,
    )


def layout_strategies(execution: Execution) -> dict[str, Strategy]:
    """Strategies of operators that got layouts; MindSpore's own list has only those that got numbers."""
    nodes = (operator.node for operator in execution.operators)
    return {
        node.name: layout_strategy(node.attributes["in_layout"])
        for node in nodes
        if "in_layout" in node.attributes and not node.scope.startswith("Gradients")
    }


def noted_strategies(execution: Execution) -> dict[str, Strategy]:
    """Strategies as the operators themselves note them; of a graph without a backward pass MindSpore lists none."""
    nodes = (operator.node for operator in execution.operators)
    return {node.name: node.attributes["in_strategy"] for node in nodes if node.attributes.get("in_strategy")}


def layers_of_stage(stage_layers: Sequence[int], stages: int, stage: int) -> tuple[int, ...]:
    """Layers that live on a stage.

    >>> layers_of_stage([1, 2, 1, 2], stages=2, stage=1)
    (1, 2, 4, 5)
    """
    groups = [group for group, layers in enumerate(stage_layers) for _ in range(layers)]
    return tuple(layer for layer, group in enumerate(groups) if group % stages == stage)


def _held(
    execution: Execution, layouts: dict[str, Any], roles: dict[str, Role], mesh: Mesh, rank: int
) -> dict[str, HeldParameter]:
    """Kept values of a graph. One that the engine did not cut has no layout and is whole."""
    found = {}
    for parameter in execution.parameters:
        if parameter.name not in roles:
            continue
        type_ = parameter.type
        assert isinstance(type_, TensorType), "kept values are tensors"
        layout, shape = layouts.get(parameter.name), type_.shape
        if layout is None:
            part = Slice(shape=shape, bounds=tuple((0, length) for length in shape), cut_by=((),) * len(shape))
        else:
            part = layout_slice(layout, local_shape=shape, mesh=mesh, rank=rank)
        found[parameter.name] = HeldParameter(
            name=parameter.name,
            role=roles[parameter.name],
            dtype=type_.dtype,
            part=part,
            optimizer_shard=1 if layout is None else optimizer_shards(layout, shape),
            bytes=type_.bytes,
        )
    return found
