"""Slices of ranks that were not compiled: by hand, and equal to the planner's on every rank of every recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.small_job import MESH, held, small_job

from msparallel.compile.rank_report import HeldParameter
from msparallel.mesh import Mesh
from msparallel.plan import Plan, resolve
from msparallel.planner.shards import Shard, predict_shards
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe
from msparallel.report.alike import parameter_kinds
from msparallel.report.slices import bounds_on, slices_by_rank
from msparallel.slice import Slice

pytestmark = pytest.mark.pure


def kind(job, name, role="weight"):
    return next(kind for kind in parameter_kinds(job.ranks) if kind.name == name and kind.role == role)


def test_every_rank_of_a_stage_by_hand():
    """up_proj: rows 0-7 and 8-15 by tp, each cut once more over dp; ranks are (dp, tp) = 00, 01, 10, 11."""
    found = slices_by_rank(small_job(), kind(small_job(), "model.layers.0-1.up_proj.weight"))
    rows = [found.bounds[rank][0] for rank in range(8)]
    assert rows == [(0, 4), (8, 12), (4, 8), (12, 16)] * 2
    assert {bounds[1] for bounds in found.bounds.values()} == {(0, 8)} and not found.unknown


def test_the_optimizer_shard_alone_goes_over_all_copies_in_order():
    found = slices_by_rank(small_job(), kind(small_job(), "model.embed_tokens.weight"))
    assert {rank: bounds[0] for rank, bounds in found.bounds.items()} == {
        0: (0, 8),
        1: (8, 16),
        2: (16, 24),
        3: (24, 32),
    }


def test_a_layout_that_the_rule_does_not_give_is_told_of_compiled_ranks_only():
    job = small_job()
    strange = held("model.layers.0.norm.weight", (8,), ((0, 4),), (("somewhere",),))
    job = replace(job, ranks=(replace(job.ranks[0], parameters=(strange,)), job.ranks[1]))
    found = slices_by_rank(job, kind(job, "model.layers.0.norm.weight"))
    assert list(found.bounds) == [0] and found.unknown == (1, 2, 3)


def test_a_compiled_rank_that_contradicts_the_rule_switches_it_off():
    job = small_job()
    other = replace(job.ranks[0], rank=1)  # says of rank 1 what holds for rank 0
    job = replace(job, ranks=(job.ranks[0], other, job.ranks[1]))
    found = slices_by_rank(job, kind(job, "model.layers.0-1.up_proj.weight"))
    assert found.bounds[0] == found.bounds[1] == ((0, 4), (0, 8))
    assert found.unknown == (2, 3) and found.bounds[5] == ((8, 12), (0, 8))


def test_what_does_not_add_up_is_not_derived():
    """An axis of 2 cannot have made pieces of a quarter."""
    wrong = held("w", (16, 8), ((0, 4), (0, 8)), (("tp",), ()))
    assert bounds_on(wrong, MESH, 1) is None


def test_an_axis_that_is_not_of_the_mesh():
    """Experts over 4 ranks side by side, of dp 2 x tp 4: the digit lies inside and beside the axes of the mesh."""
    mesh = Mesh(dp=4, tp=2)
    experts = held("w", (8, 2), ((0, 1), (0, 2)), (("stride 1 x 4", "optimizer_shard"), ()), shard=2)
    assert [bounds_on(experts, mesh, rank)[0][0] for rank in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


SHARD = "parallel.optimizer_shard=true"
WORDS = [(), (SHARD,), (SHARD, "parallel.optimizer_shard_threshold_kib=0", "parallel.optimizer_shard_size=2")]


def cases():
    """Recipes whose weights the blocks' strategies cut, with and without the optimizer shard where it has an effect."""
    for name in sorted(shipped_recipes()):
        recipe = load_recipe(name)
        if recipe.train is None or recipe.parallel.mode != "semi_auto_parallel":
            continue
        shards = resolve(recipe).mesh.dp > 1 and not recipe.parallel.optimizer_shard
        for words in WORDS if shards else WORDS[:1]:
            yield pytest.param(name, words, id=f"{name}-{len(words)}")


@pytest.mark.parametrize(("name", "words"), list(cases()))
def test_from_one_rank_to_every_rank_as_the_planner_predicts(name, words):
    plan = resolve(load_recipe(name, words))
    compared = 0
    for stage in range(plan.mesh.pp):
        first = plan.mesh.rank(pp=stage)
        known = {key: _held(plan, key, shard) for key, shard in predict_shards(plan, first).items()}
        for rank in range(first, first + plan.mesh.size // plan.mesh.pp):
            for key, shard in predict_shards(plan, rank).items():
                assert bounds_on(known[key], plan.mesh, rank) == shard.part.bounds, (rank, key)
                compared += 1
    assert compared >= plan.world_size


def _held(plan: Plan, name: str, shard: Shard) -> HeldParameter:
    """A predicted slice as the engine's layout tells it: experts are cut along an axis of their own."""
    experts = f"stride 1 x {plan.recipe.parallel.expert_parallel}"
    cut_by = tuple(tuple(experts if axis == "ep" else axis for axis in axes) for axes in shard.part.cut_by)
    part = Slice(shape=shard.part.shape, bounds=shard.part.bounds, cut_by=cut_by)
    pieces = shard.gathered_bytes // shard.local_bytes
    return HeldParameter(
        name=name, role="weight", dtype="Float32", part=part, optimizer_shard=pieces, bytes=shard.local_bytes
    )
