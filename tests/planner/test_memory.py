"""Memory of stages: terms add up, cutting never costs, and what compiled graphs were seen to keep alive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.mesh import Mesh
from msparallel.model.shape import ModelShape
from msparallel.plan import resolve
from msparallel.planner.memory import fullest_of, fullest_stage, stage_memories, static_bytes
from msparallel.planner.stack import MINDFORMERS, MSPARALLEL, megatron, torchtitan
from msparallel.planner.workload import Workload, workload_of
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure

GIB = 2**30
STACKS = (MSPARALLEL, MINDFORMERS, torchtitan(), megatron("bfloat16"), megatron("bfloat16", transformer_engine=True))

_NONE, _WHOLE = ["parallel.recompute=none"], "parallel.optimizer_shard=false"
_GPIPE = ["model.num_layers=8", "parallel.virtual_stages=2", "parallel.pipeline_schedule=gpipe"]


@st.composite
def workloads(draw) -> Workload:
    tp, pp, dp, cp = (draw(st.sampled_from([1, 2, 4, 8])) for _ in range(4))
    virtual = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    experts = draw(st.sampled_from([0, 16]))
    shape = ModelShape(
        num_layers=pp * virtual * draw(st.integers(1, 3)),
        hidden_size=1024 * draw(st.integers(1, 8)),
        num_heads=16,
        num_kv_heads=draw(st.sampled_from([8, 16])),
        ffn_size=4096,
        vocab_size=65536,
        num_experts=experts,
        experts_per_token=2 if experts else 0,
        expert_ffn_size=512 if experts else 0,
    )
    stack = draw(st.sampled_from(STACKS))
    return Workload(
        shape=shape,
        mesh=Mesh(pp=pp, dp=dp, cp=cp, tp=tp),
        devices_per_node=8,
        stage_layers=(shape.num_layers // (pp * virtual),) * (pp * virtual),
        micro_batch_size=draw(st.integers(1, 3)),
        micro_batch_num=draw(st.integers(1, 20)),
        seq_length=4096,
        dtype="bfloat16",
        stack=stack,
        sequence_parallel=draw(st.booleans()),
        vocab_parallel=True,
        context_parallel_algo=draw(st.sampled_from(["ring", "ulysses", "all_gather"])),
        attention=draw(st.sampled_from(["flash", "plain"])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        optimizer_shard="level3" if stack.framework == "fsdp" else draw(st.sampled_from(["none", "level1", "level2"])),
    )


@settings(max_examples=200, deadline=None)
@given(workloads())
def test_terms_add_up_and_the_band_holds_the_total(work: Workload) -> None:
    found = stage_memories(work)
    assert len(found) == work.mesh.pp and sum(stage.layers for stage in found) == work.shape.num_layers
    for stage in found:
        parts = stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes
        assert min(*parts, stage.activations_bytes, stage.other_bytes) >= 0
        assert sum(parts) == stage.state_bytes
        assert stage.total_bytes == stage.state_bytes + stage.activations_bytes + stage.other_bytes
        assert stage.low_bytes <= stage.total_bytes <= stage.high_bytes
    assert all(kept <= stage.total_bytes for kept, stage in zip(static_bytes(work), found, strict=True))


@settings(max_examples=200, deadline=None)
@given(workloads())
def test_more_tensor_parallel_never_raises_weights(work: Workload) -> None:
    """MindSpore's optimizer shard leaves a parameter whole whose rows its copies do not divide, and more of tp may mean
    more copies of an expert: there the weights before the shard are compared."""
    tp = work.mesh.tp
    if work.stack.framework == "mindspore":
        work = replace(work, optimizer_shard="none")
    more = replace(work, mesh=replace(work.mesh, tp=2 * tp))
    for stage, cut in zip(stage_memories(work), stage_memories(more), strict=True):
        assert cut.weights_bytes <= stage.weights_bytes
        assert cut.state_bytes <= stage.state_bytes


@settings(max_examples=300, deadline=None)
@given(workloads(), st.sampled_from(["1f1b", "gpipe"]), st.data())
def test_the_fullest_stage_is_found_without_asking_all(work: Workload, schedule, data) -> None:
    groups = len(work.stage_layers)
    uneven = tuple(data.draw(st.integers(1, 3)) for _ in range(groups))
    layers = [sum(uneven[stage :: work.mesh.pp]) for stage in range(work.mesh.pp)]
    some = tuple(data.draw(st.integers(0, n)) for n in layers)
    work = replace(work, schedule=schedule, shape=replace(work.shape, num_layers=sum(uneven)), stage_layers=uneven)
    for asked in (work, replace(work, recomputed_layers=some)):
        assert fullest_stage(asked) == fullest_of(stage_memories(asked))


@settings(max_examples=200, deadline=None)
@given(workloads())
def test_recompute_never_raises_activations(work: Workload) -> None:
    found = [stage_memories(replace(work, recompute=level)) for level in ("none", "selective", "full")]
    for none, selective, full in zip(*found, strict=True):
        assert none.activations_bytes >= selective.activations_bytes >= full.activations_bytes


@settings(max_examples=100, deadline=None)
@given(workloads())
def test_larger_micro_batches_and_longer_sequences_never_need_less(work: Workload) -> None:
    before = stage_memories(work)
    for more in (replace(work, micro_batch_size=work.micro_batch_size + 1), replace(work, seq_length=8192)):
        for small, large in zip(before, stage_memories(more), strict=True):
            assert large.total_bytes >= small.total_bytes


@settings(max_examples=100, deadline=None)
@given(workloads())
def test_recomputing_fewer_layers_lies_between_none_and_all(work: Workload) -> None:
    stages = work.mesh.pp
    layers = [work.layers_of_stage(stage) for stage in range(stages)]
    some = replace(work, recompute="full", recomputed_layers=tuple(n // 2 for n in layers))
    none, full = (stage_memories(replace(work, recompute=level)) for level in ("none", "full"))
    for stage, half in enumerate(stage_memories(some)):
        assert full[stage].activations_bytes <= half.activations_bytes <= none[stage].activations_bytes


@pytest.mark.parametrize(
    ("recipe", "overrides", "seen_gib"),
    [
        ("llama2_7b_dp2_tp2_pp2", ["model.num_layers=6"], [3.783, 3.276]),
        ("llama2_7b_dp2_tp2_pp2", ["model.num_layers=6", "parallel.sequence_parallel=true"], [3.392, 3.058]),
        ("llama2_7b_dp2_tp2_pp2", ["model.num_layers=6", "parallel.optimizer_shard=true"], [3.462, 3.276]),
        ("llama2_7b_dp2_tp2_pp2", ["model.num_layers=6", "parallel.recompute=full"], [2.506, 2.750]),
        ("llama2_7b_dp2_tp2_pp2", [*_NONE, "model.num_layers=6"], [3.900, 3.335]),
        ("llama2_7b_dp2_tp2_pp2", [*_NONE, "model.num_layers=8", "parallel.virtual_stages=2"], [6.494, 5.252]),
        ("llama2_7b_dp2_tp2_pp2", [*_NONE, *_GPIPE], [20.450, 26.711]),
        ("llama2_70b_dp2_tp8_pp4", [*_NONE, "model.num_layers=8", "parallel.stage_layers=[2,2,2,2]"],
         [3.071, 2.342, 1.736, 1.452]),
        ("qwen3_8b_dp2_tp4", [*_NONE, "model.num_layers=3", "parallel.optimizer_shard=level3"], [7.661]),
        ("qwen3_8b_cp4_tp2", [*_NONE, _WHOLE, "model.num_layers=3", "parallel.context_parallel_algo=all_gather",
                              "train.seq_length=8192"], [5.715]),
        ("qwen3_8b_cp4_tp2", ["model.num_layers=3"], [15.253]),
        ("llama2_7b_dp8_zero1", ["model.num_layers=3"], [4.517]),
        ("gpt2_124m_dp8", [], [21.165]),
        ("qwen3_32b_tp4_pp4", ["model.num_layers=8"], [2.541, 1.817, 1.817, 3.358]),
        ("llama2_13b_dp4_tp4_pp2", ["model.num_layers=6"], [2.290, 1.997]),
        ("llama2_7b_dp2_tp2_pp2", [], [19.55, 12.55]),
        ("qwen3_8b_dp2_tp4", ["model.num_layers=3"], [8.462]),
        ("qwen3_8b_cp4_tp2", [_WHOLE, "model.num_layers=3"], [13.554]),
        ("qwen3_30b_a3b_dp8_pp2_ep8", ["model.num_layers=4"], [2.929, 12.630]),
        ("qwen3_30b_a3b_dp8_pp2_ep8", [*_NONE, "model.num_layers=4"], [5.367, 14.371]),
        ("qwen3_30b_a3b_dp8_pp2_ep8", [*_NONE, "model.num_layers=4", "model.expert_capacity_factor=0"],
         [27.124, 23.437]),
    ],
)  # fmt: skip
def test_live_memory_is_what_dry_runs_saw(recipe: str, overrides: list[str], seen_gib: list[float]) -> None:
    """Seen with `msparallel dryrun`, MindSpore 2.9.0, 30 November 2026: alive beside the state, at the peak."""
    plan = resolve(load_recipe(recipe, overrides))
    for stage, seen in zip(stage_memories(workload_of(plan)), seen_gib, strict=True):
        assert (stage.activations_bytes + stage.other_bytes) / GIB == pytest.approx(seen, rel=0.04)


def test_transformer_engine_keeps_empty_gradients_and_exchanged_heads() -> None:
    """Megatron-LM with Transformer Engine: what published peaks show (SimuMax's B200 runs)."""
    shape = ModelShape(num_layers=2, hidden_size=1024, num_heads=8, ffn_size=4096, vocab_size=1024)
    work = Workload(
        shape=shape, mesh=Mesh(cp=2), devices_per_node=8, stage_layers=(2,), micro_batch_size=1, micro_batch_num=1,
        seq_length=4096, dtype="bfloat16", stack=megatron("bfloat16", transformer_engine=True), vocab_parallel=True,
        context_parallel_algo="ulysses",
    )  # fmt: skip
    engine = stage_memories(work)[0]
    older = stage_memories(replace(work, stack=replace(work.stack, transformer_engine=False)))[0]
    assert engine.activations_bytes - older.activations_bytes == 2 * 3 * 2048 * 1024 * 2
    matrices = 4 * 1024 * 1024 + 3 * 1024 * 4096
    largest = 2 * 1024 * 4096
    assert engine.other_bytes - older.other_bytes == 2 * (matrices - largest)


def test_what_megatron_keeps_between_steps() -> None:
    shape = ModelShape(num_layers=8, hidden_size=1024, num_heads=8, ffn_size=4096, vocab_size=1024)
    work = Workload(
        shape=shape, mesh=Mesh(pp=2, tp=2), devices_per_node=8, stage_layers=(2, 2, 2, 2), micro_batch_size=1,
        micro_batch_num=4, seq_length=4096, dtype="bfloat16", stack=megatron("bfloat16"), vocab_parallel=True,
        sequence_parallel=True, layer_table_bytes=1000, table_bytes=500,
    )  # fmt: skip
    first, last = stage_memories(work)
    hidden = 4096 // 2 * 1024 * 2
    buffer, tables = 2 * hidden, 4 * 1000 + 500
    assert static_bytes(work)[0] - first.state_bytes == 2 * 1 * hidden + buffer + tables
    assert static_bytes(work)[1] - last.state_bytes == 2 * 2 * hidden + buffer + tables
