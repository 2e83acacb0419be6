"""A DryRun by hand: pp2 x dp2 x tp2 on two nodes of four, one layer a stage, optimizer shard.

Rank 0 and rank 4 are compiled. Names can be chosen, to see what a page does with hostile ones.
"""

from __future__ import annotations

import math

from msparallel.compile.collectives import CollectiveUse
from msparallel.compile.dryrun import DryRun
from msparallel.compile.graph import TensorType
from msparallel.compile.order import LiveTensor, Peak
from msparallel.compile.rank_report import HeldParameter, RankReport
from msparallel.compile.request import Role
from msparallel.compile.strategies import OperatorCut
from msparallel.mesh import Mesh
from msparallel.slice import Slice

MESH = Mesh(pp=2, dp=2, tp=2)
GIB = 2**30


def held(
    name: str, shape: tuple[int, ...], bounds: tuple[tuple[int, int], ...], cut_by: tuple[tuple[str, ...], ...],
    shard: int = 1, role: Role = "weight",
) -> HeldParameter:  # fmt: skip
    size = 4 * math.prod(stop - start for start, stop in bounds)
    part = Slice(shape=shape, bounds=bounds, cut_by=cut_by)
    return HeldParameter(name=name, role=role, dtype="Float32", part=part, optimizer_shard=shard, bytes=size)


def parameters(stage: int) -> tuple[HeldParameter, ...]:
    """Of the first rank of a stage: tp 0, dp 0."""
    layer = f"model.layers.{stage}"
    own = [
        held(f"{layer}.norm.weight", (8,), ((0, 8),), ((),)),
        held(f"{layer}.up_proj.weight", (16, 8), ((0, 4), (0, 8)), (("tp", "optimizer_shard"), ()), shard=2),
        held(f"{layer}.down_proj.weight", (8, 16), ((0, 8), (0, 8)), ((), ("tp",))),
    ]
    if stage == 0:
        own.insert(0, held("model.embed_tokens.weight", (32, 8), ((0, 8), (0, 8)), (("optimizer_shard",), ()), shard=4))
    up = held(f"grads.{layer}.up_proj.weight", (16, 8), ((0, 8), (0, 8)), (("tp",), ()), role="gradient")
    moment = held(f"adam_m.{layer}.down_proj.weight", (8, 16), ((0, 8), (0, 8)), ((), ("tp",)), role="optimizer")
    return (*own, up, moment)


def use(op: str, ranks: tuple[int, ...], axes: tuple[str, ...], size: int, count: int, purpose: str) -> CollectiveUse:
    links = "inside a server" if len({rank // 4 for rank in ranks}) == 1 else "between servers"
    return CollectiveUse(op=op, ranks=ranks, axes=axes, bytes=size, count=count, links=links, purpose=purpose)


def report(stage: int, scope: str) -> RankReport:
    first = 4 * stage
    border = use("Send", (0, 4), ("pp",), 2**20, 2, "pipeline") if stage == 0 else None
    tensor = LiveTensor(op="MatMul", scope=scope, type=TensorType(dtype="Float32", shape=(512, 1024)), micro=0)
    small = LiveTensor(op="Exp", scope="head", type=TensorType(dtype="Float32", shape=(16,)), micro=None)
    return RankReport(
        rank=first,
        stage=stage,
        layers=(stage,),
        parameters=parameters(stage),
        collectives=tuple(
            one
            for one in (
                use("AllReduce", (first, first + 1), ("tp",), 2**20, 8, "forward"),
                use("AllReduce", (first, first + 2), ("dp",), 3 * 2**20, 1, "gradient"),
                border,
            )
            if one
        ),
        cuts=(
            OperatorCut(layers="0-1", cell="up_proj", op="MatMul", strategy=((2, 1), (2, 1)), count=1),
            OperatorCut(layers="0-1", cell="", op="Add", strategy=((2, 1), (2, 1)), count=2),
            OperatorCut(layers="", cell="head", op="Exp", strategy=((1, 1),), count=3),
        ),
        operators={"MatMul": 4},
        peak=Peak(bytes=(1 + stage) * GIB, tensors=(tensor, small, tensor)),
        build_s=1.0,
        compile_s=2.5 + stage,
        process_peak_bytes=GIB,
    )


def small_job(
    source: str = "small.yaml", overrides: tuple[str, ...] = (), scope: str = "layers.0.up_proj",
    notes: tuple[str, ...] = (),
) -> DryRun:  # fmt: skip
    ranks = (report(0, scope), report(1, scope))
    return DryRun(source=source, overrides=overrides, mesh=MESH, devices_per_node=4, ranks=ranks, notes=notes)
