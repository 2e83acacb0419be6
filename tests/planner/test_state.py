"""State of a stage: equal to the slices of each parameter, and to bytes a parameter that are known elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msparallel.mesh import Mesh
from msparallel.model.shape import ModelShape
from msparallel.plan import resolve
from msparallel.planner.shards import state_bytes
from msparallel.planner.stack import MSPARALLEL, megatron, torchtitan
from msparallel.planner.state import stage_states
from msparallel.planner.workload import Workload, workload_of
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure

SHAPE = ModelShape(num_layers=4, hidden_size=512, num_heads=8, num_kv_heads=4, ffn_size=1536, vocab_size=4096)
EXPERTS = replace(SHAPE, num_experts=16, experts_per_token=2, expert_ffn_size=256)


def work(**changes) -> Workload:
    values = {
        "shape": SHAPE, "mesh": Mesh(), "devices_per_node": 8, "stage_layers": (4,), "micro_batch_size": 1,
        "micro_batch_num": 4, "seq_length": 512, "dtype": "bfloat16", "stack": megatron("bfloat16"),
        "vocab_parallel": True,
    }  # fmt: skip
    return Workload(**{**values, **changes})


def trained() -> list[str]:
    recipes = [name for name in shipped_recipes() if "serve" not in name]
    assert len(recipes) > 10
    return recipes


@pytest.mark.parametrize("name", trained())
def test_state_of_a_stage_is_that_of_its_fullest_rank(name: str) -> None:
    plan = resolve(load_recipe(name))
    if plan.recipe.parallel.mode == "auto_parallel":
        pytest.skip("MindSpore's search decides how weights are cut")
    ranks = plan.world_size // plan.mesh.pp
    for stage, found in enumerate(stage_states(workload_of(plan))):
        held = [state_bytes(plan, rank) for rank in range(stage * ranks, (stage + 1) * ranks)]
        assert found.weights_bytes == max(h.weights_bytes for h in held)
        assert found.optimizer_bytes == max(h.optimizer_bytes for h in held)
        assert found.gradients_bytes == max(h.gradients_bytes for h in held)


@pytest.mark.parametrize(
    "overrides",
    [
        ["parallel.optimizer_shard=true"],
        ["parallel.optimizer_shard=level2"],
        ["parallel.optimizer_shard=level2", "parallel.optimizer_shard_size=2"],
        ["parallel.optimizer_shard=true", "parallel.optimizer_shard_threshold_kib=0"],
        ["parallel.vocab_parallel=false"],
        ["parallel.sequence_parallel=true"],
    ],
)
def test_state_follows_the_optimizer_shard(overrides: list[str]) -> None:
    plan = resolve(load_recipe("llama2_13b_dp4_tp4_pp2", overrides))
    for stage, found in enumerate(stage_states(workload_of(plan))):
        held = state_bytes(plan, stage * 16)
        assert found[:3] == (held.weights_bytes, held.gradients_bytes, held.optimizer_bytes)


@pytest.mark.parametrize(
    ("stack", "level", "bytes_a_parameter"),
    [
        (megatron("bfloat16"), "none", 18),
        (megatron("bfloat16"), "level1", 6 + 12 / 4),
        (megatron("bfloat16"), "level2", 2 + 16 / 4),
        (megatron("bfloat16"), "level3", 18 / 4),
        (megatron("float16"), "none", 20),
        (megatron("float16"), "level1", 4 + 16 / 4),
        (megatron("bfloat16", reuse_fp32_param=True), "level1", 6 + 10 / 4),
        (megatron("bfloat16", half_optimizer=True, half_gradients=True), "level1", 4 + 8 / 4),
        (torchtitan(), "level3", 16 / 4),
    ],
)
def test_bytes_of_a_parameter(stack, level, bytes_a_parameter) -> None:
    (state,) = stage_states(work(stack=stack, optimizer_shard=level, mesh=Mesh(dp=2, cp=2)))
    assert state.parameters == SHAPE.parameters()
    assert state.bytes == pytest.approx(bytes_a_parameter * SHAPE.parameters())


def test_experts_have_replicas_of_their_own() -> None:
    # 8 devices, ep 4: each expert is on 2 of them; everything else on all 8.
    (state,) = stage_states(work(shape=EXPERTS, mesh=Mesh(dp=8), expert_parallel=4, optimizer_shard="level1"))
    routed = 4 * 16 * 3 * 512 * 256
    others = EXPERTS.parameters() - routed
    assert state.parameters == others + routed // 4
    assert state.bytes == pytest.approx(others * (6 + 12 / 8) + routed / 4 * (6 + 12 / 2))


def test_experts_are_cut_by_tp_where_the_stack_does() -> None:
    mesh, routed = Mesh(tp=4), 4 * 16 * 3 * 512 * 256
    narrow = stage_states(work(shape=EXPERTS, mesh=mesh))[0].parameters
    whole = stage_states(work(shape=EXPERTS, mesh=mesh, stack=MSPARALLEL))[0].parameters
    assert whole - narrow == routed - routed // 4


def test_one_table_at_both_ends_is_held_twice_by_a_pipeline() -> None:
    tied = replace(SHAPE, tie_embeddings=True)
    first, last = stage_states(work(shape=tied, mesh=Mesh(pp=2), stage_layers=(2, 2)))
    assert last.parameters - first.parameters == 512, "the last norm"
    assert stage_states(work(shape=tied))[0].parameters == tied.parameters()
