"""What one rank runs in a step, ready to be executed.

In: the folder in which a rank was compiled. Out: `RankProgram`: the operators in the order in which MindSpore's runtime
starts them, each value's last reader, and the constants.

>>> program = read_program(folder, rank=3)
>>> program.graphs[0].executions, len(program.graphs[0].order)
(1, 1374)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.compile.collectives import participants
from msparallel.compile.dryrun import Variant, recipe_job
from msparallel.compile.expand import Execution, Output, UnreadableGraph, expand, leaves
from msparallel.compile.graph import CompiledGraph, ConstantTensor, Parameter, read_graph
from msparallel.compile.order import cell_path, is_collective, run_order
from msparallel.compile.ranks import compile_ranks
from msparallel.compile.request import read_result
from msparallel.errors import RunError
from msparallel.plan import Plan
from msparallel.simulate.kernels import KERNELS
from msparallel.simulate.rendezvous import OPERATIONS


@dataclass(frozen=True, kw_only=True)
class ProgramGraph:
    """One graph of a step.

    Attributes:
        executions: how often a step runs it.
        order: indexes of its operators.
        released: operator -> values that nobody reads after it.
        constants: content of the constant tensors.
        layouts: parameter -> MindSpore's layout.
    """

    execution: Execution
    executions: int
    order: tuple[int, ...]
    released: Mapping[int, tuple[int, ...]]
    constants: Mapping[ConstantTensor, np.ndarray]
    layouts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RankProgram:
    """Attributes:
    graphs: in the order in which a step runs them.
    """

    rank: int
    graphs: tuple[ProgramGraph, ...]

    def kept(self) -> dict[str, Parameter]:
        """Values that stay between steps, by name."""
        return {p.name: p for graph in self.graphs for p in graph.execution.parameters if p.weight}

    def layouts(self) -> dict[str, Any]:
        """Of the kept values of all graphs."""
        return {name: layout for graph in self.graphs for name, layout in graph.layouts.items()}


def compiled_programs(plan: Plan, ranks: Iterable[int], folder: Path, progress: bool) -> list[RankProgram]:
    """Compile ranks of a recipe, all layers, and read what they run; in the order of ranks.

    Args:
        folder: that takes what the compilations write.

    Raises:
        RunError, UserError: what `compile_ranks` and `read_program` raise.
    """
    (variant,) = recipe_job(plan, "full").variants
    return compiled_variant(variant, ranks, folder, progress)


def compiled_variant(variant: Variant, ranks: Iterable[int], folder: Path, progress: bool) -> list[RankProgram]:
    """The same for ranks of any job."""
    requests = [replace(variant.request, rank=rank, folder=str(folder / f"rank_{rank}")) for rank in ranks]
    done = compile_ranks(requests, memory_bytes=variant.memory_bytes, progress=progress)
    return sorted((read_program(Path(request.folder), request.rank) for request in done), key=lambda p: p.rank)


def read_program(folder: Path, rank: int) -> RankProgram:
    """Read what `compile.worker` left. Raises RunError for a graph that does not say what it runs."""
    graphs = []
    for graph in read_result(folder).graphs:
        place = Path(graph.folder)
        compiled = read_graph(place)
        try:
            execution = expand(compiled)
        except UnreadableGraph as error:
            raise RunError(f"MindSpore compiled rank {rank}, but its graph cannot be executed: {error}.") from None
        layouts = json.loads((place / "layouts.json").read_text(encoding="utf-8"))
        graphs.append(program_graph(compiled, execution, graph.executions, layouts))
    return RankProgram(rank=rank, graphs=tuple(graphs))


def program_graph(
    compiled: CompiledGraph, execution: Execution, executions: int = 1, layouts: Mapping[str, Any] | None = None
) -> ProgramGraph:
    """An execution with its order, the life of its values and its constants."""
    order = tuple(run_order(execution))
    kept = {leaf.index for leaf in leaves((execution.result,)) if isinstance(leaf, Output)}
    last: dict[int, int] = {}
    constants: dict[ConstantTensor, np.ndarray] = {}
    for index in order:
        last.setdefault(index, index)
        for leaf in leaves(execution.operators[index].inputs):
            if isinstance(leaf, Output):
                last[leaf.index] = index
            elif isinstance(leaf, ConstantTensor) and leaf not in constants:
                constants[leaf] = compiled.array(leaf)
    for leaf in leaves((execution.result,)):
        if isinstance(leaf, ConstantTensor):
            constants[leaf] = compiled.array(leaf)
    released: dict[int, list[int]] = {}
    for value, reader in last.items():
        if value not in kept:
            released.setdefault(reader, []).append(value)
    return ProgramGraph(
        execution=execution,
        executions=executions,
        order=order,
        released={reader: tuple(values) for reader, values in released.items()},
        constants=constants,
        layouts=layouts or {},
    )


def check_programs(programs: Iterable[RankProgram]) -> None:
    """Look at every operator before anything runs. Raises RunError with all that cannot be executed."""
    missing: dict[str, str] = {}
    strangers: list[str] = []
    for program in programs:
        for graph in program.graphs:
            for operator in graph.execution.operators:
                if is_collective(operator.op):
                    if operator.op not in OPERATIONS:
                        missing.setdefault(operator.op, f"{dict(operator.node.attributes)}")
                    elif program.rank not in participants(operator, program.rank):
                        strangers.append(
                            f"rank {program.rank} calls {operator.op} ({cell_path(operator.node.scope)}) in the group "
                            f"{list(participants(operator, program.rank))}, which it is not in"
                        )
                elif operator.op not in KERNELS:
                    missing.setdefault(operator.op, f"{dict(operator.node.attributes)} in {operator.node.name}")
    if missing:
        lines = "\n".join(f"  {op}: {told}" for op, told in sorted(missing.items()))
        raise RunError(
            f"The graphs have operators that the virtual cluster does not compute; nothing was run.\n{lines}\n"
            "  msparallel dryrun shows the same graphs without executing them."
        )
    if strangers:
        raise RunError("The graphs do not fit together; nothing was run.\n  " + "\n  ".join(strangers[:5]))
