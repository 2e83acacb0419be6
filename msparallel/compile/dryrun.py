"""A dry run of a recipe: the ranks that matter, compiled and read.

In: a Plan and ranks. Out: `DryRun`, the reports of those ranks.

>>> job = dry_run(plan, ranks_to_compile(plan))
>>> [report.weights_bytes for report in job.ranks]
[1073741824, 1073741824]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msparallel.compile.memory import compile_memory_bytes
from msparallel.compile.rank_report import RankReport, read_report
from msparallel.compile.ranks import TIME_LIMIT_S, compile_ranks, temporary_folder
from msparallel.compile.request import Request
from msparallel.errors import UserError
from msparallel.mesh import Mesh
from msparallel.plan import Plan


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Attributes:
    source: recipe, as the user named it.
    ranks: reports, in the order of ranks.
    """

    source: str
    overrides: tuple[str, ...]
    mesh: Mesh
    devices_per_node: int
    ranks: tuple[RankReport, ...]

    @property
    def world_size(self) -> int:
        return self.mesh.size

    def to_json(self) -> dict[str, Any]:
        """The document of `dryrun --json`."""
        return {
            "source": self.source,
            "overrides": list(self.overrides),
            "world_size": self.world_size,
            "mesh": {axis: getattr(self.mesh, axis) for axis in ("pp", "dp", "cp", "tp")},
            "devices_per_node": self.devices_per_node,
            "ranks": [report.to_json() for report in self.ranks],
        }


def ranks_to_compile(plan: Plan, ranks: Sequence[int] = (), *, all_ranks: bool = False) -> list[int]:
    """The stated ranks, every rank, or the first of each stage: ranks of a stage are alike.

    Raises:
        UserError: the plan has no such rank.
    """
    if all_ranks:
        return list(range(plan.world_size))
    if not ranks:
        return [plan.mesh.rank(pp=stage) for stage in range(plan.mesh.pp)]
    for rank in ranks:
        if rank >= plan.world_size:
            raise UserError(f"--rank {rank}: {plan.mesh} has ranks 0 to {plan.world_size - 1}.")
    return sorted(set(ranks))


def dry_run(plan: Plan, ranks: Sequence[int], *, time_limit_s: float = TIME_LIMIT_S, progress: bool = True) -> DryRun:
    """Compile ranks of a recipe. Raises what `compile_ranks` raises."""
    requests = [
        Request(source=plan.recipe.path, overrides=list(plan.recipe.overrides), rank=rank, world_size=plan.world_size)
        for rank in ranks
    ]
    reports = []
    with temporary_folder() as folder:
        done = compile_ranks(
            requests,
            folder,
            memory_bytes=compile_memory_bytes(plan),
            time_limit_s=time_limit_s,
            progress=progress,
        )
        for rank, place in done:
            reports.append(
                read_report(
                    place,
                    rank=rank,
                    mesh=plan.mesh,
                    devices_per_node=plan.devices_per_node,
                    layer_stages=plan.layer_stages,
                )
            )
    return DryRun(
        source=plan.recipe.path,
        overrides=plan.recipe.overrides,
        mesh=plan.mesh,
        devices_per_node=plan.devices_per_node,
        ranks=tuple(sorted(reports, key=lambda report: report.rank)),
    )
