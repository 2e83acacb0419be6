"""Which slice of a parameter every rank of the job holds, also ranks that were not compiled.

In: a DryRun, a kind of parameter. Out: bounds of each dim by rank.
A compiled rank says its own. Ranks of a stage share one layout, so the bounds of the others follow from what cuts the
parameter: an axis cuts a dim into pieces in the order of its coordinates; the optimizer shard cuts dim 0 once more,
over the ranks that hold the same piece, in the order of ranks. The rule is used for a stage only where it gives what
every compiled rank of that stage said; otherwise the compiled ranks are all that is told.

>>> slices_by_rank(job, kind).bounds[5]
((2048, 4096), (0, 4096))
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from msparallel.compile.dryrun import DryRun
from msparallel.compile.rank_report import HeldParameter
from msparallel.mesh import Mesh
from msparallel.report.alike import ParameterKind, is_of_kind

Bounds = tuple[tuple[int, int], ...]

_STRIDE = re.compile(r"stride (\d+) x (\d+)")


@dataclass(frozen=True, kw_only=True)
class RankSlices:
    """Attributes:
    bounds: (start, stop) of each dim, by rank.
    unknown: ranks of stages that have the parameter, whose slice no rule gives.
    """

    bounds: dict[int, Bounds]
    unknown: tuple[int, ...]


def slices_by_rank(job: DryRun, kind: ParameterKind) -> RankSlices:
    """Slices on all ranks of the stages that were compiled and have the parameter."""
    mesh = job.mesh
    said: dict[int, HeldParameter] = {}
    for report in job.ranks:
        held = next((held for held in report.parameters if is_of_kind(held, kind)), None)
        if held is not None:
            said[report.rank] = held
    bounds: dict[int, Bounds] = {rank: held.part.bounds for rank, held in said.items()}
    unknown: list[int] = []
    per_stage = mesh.size // mesh.pp
    compiled = {report.rank for report in job.ranks}
    for stage in kind.stages:
        ranks = range(stage * per_stage, (stage + 1) * per_stage)
        here = [rank for rank in ranks if rank in said]
        # Of a rank that was compiled and does not have it, nothing is supposed.
        others = [rank for rank in ranks if rank not in compiled]
        for rank in others:
            if all(bounds_on(said[known], mesh, known) == said[known].part.bounds for known in here):
                derived = bounds_on(said[here[0]], mesh, rank)
                assert derived is not None, "it gave the bounds of a compiled rank"
                bounds[rank] = derived
            else:
                unknown.append(rank)
    return RankSlices(bounds=dict(sorted(bounds.items())), unknown=tuple(unknown))


def bounds_on(held: HeldParameter, mesh: Mesh, rank: int) -> Bounds | None:
    """Bounds of a parameter on another rank of its stage, None where what cuts it is not known or does not add up."""
    place = rank % (mesh.size // mesh.pp)
    result: list[tuple[int, int]] = []
    cutting: list[tuple[int, int]] = []
    for length, part, axes in zip(held.part.shape, held.local_shape, held.part.cut_by, strict=True):
        index, pieces = 0, 1
        for axis in axes:
            if axis == "optimizer_shard":
                continue
            digit = _digit(axis, mesh)
            if digit is None:
                return None
            stride, size = digit
            cutting.append(digit)
            index, pieces = index * size + place // stride % size, pieces * size
        sharded = held.optimizer_shard if "optimizer_shard" in axes else 1
        if pieces * sharded * part != length:
            return None
        whole = part * sharded
        result.append((index * whole, (index + 1) * whole))
    if held.optimizer_shard > 1:
        start = result[0][0] + _copy(place, cutting, mesh) % held.optimizer_shard * held.local_shape[0]
        result[0] = (start, start + held.local_shape[0])
    return tuple(result)


def _digit(axis: str, mesh: Mesh) -> tuple[int, int] | None:
    """(stride, size) of an axis among the ranks of a stage."""
    strides = {"tp": (1, mesh.tp), "cp": (mesh.tp, mesh.cp), "dp": (mesh.tp * mesh.cp, mesh.dp)}
    told = _STRIDE.fullmatch(axis)
    return (int(told[1]), int(told[2])) if told else strides.get(axis)


def _copy(place: int, cutting: Sequence[tuple[int, int]], mesh: Mesh) -> int:
    """Number of a rank among those that hold the same piece: its place without the digits that cut."""
    copy, factor, inner = 0, 1, 1
    end = (math.prod(mesh.shape) // mesh.pp, 1)
    for stride, size in [*sorted(cutting), end]:
        if stride > inner:
            copy += place // inner % (stride // inner) * factor
            factor *= stride // inner
        inner = stride * size
    return copy
