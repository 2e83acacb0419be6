"""Every rule: broken on an otherwise valid recipe, and mended by its own suggestion."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from msparallel.errors import RecipeError
from msparallel.mesh import Mesh
from msparallel.recipe.load import load_text
from msparallel.recipe.rules import RULES
from msparallel.recipe.rules.mode import infeasible_group

pytestmark = pytest.mark.pure

MODEL = """
model:
  num_layers: 8
  hidden_size: 64
  num_heads: 8
  num_kv_heads: 4
  ffn_size: 128
  vocab_size: 1024
  max_positions: 512
"""
TRAIN = "train: {global_batch_size: 16, micro_batch_size: 1, seq_length: 128, steps: 100, dtype: bfloat16}\n"
NPU = "cluster: {hardware: atlas_800t_a2}\n"
HYBRID = (
    MODEL
    + "parallel: {mode: semi_auto_parallel, data_parallel: 2, model_parallel: 2, pipeline_stages: 2}\n"
    + TRAIN
    + NPU
)
TENSOR = MODEL + "parallel: {mode: semi_auto_parallel, model_parallel: 4}\n" + TRAIN + NPU
REPLICAS = MODEL + "parallel: {mode: semi_auto_parallel, data_parallel: 4}\n" + TRAIN + NPU
PIPELINE = MODEL + "parallel: {mode: semi_auto_parallel, pipeline_stages: 4}\n" + TRAIN + NPU
CONTEXT = MODEL + "parallel: {mode: semi_auto_parallel, context_parallel: 4}\n" + TRAIN + NPU
EXPERTS = (
    MODEL + "  num_experts: 8\n  experts_per_token: 2\n  expert_ffn_size: 32\n"
    "parallel: {mode: semi_auto_parallel, data_parallel: 4, expert_parallel: 4}\n" + TRAIN + NPU
)
ONE = MODEL + "train: {global_batch_size: 16, micro_batch_size: 4, seq_length: 128, steps: 100}\n"
WORKERS = (
    MODEL + "parallel: {mode: data_parallel, data_parallel: 4}\n"
    "train: {global_batch_size: 16, micro_batch_size: 2, seq_length: 128, steps: 100}\n"
)
SEARCH = MODEL + "parallel: {mode: auto_parallel, data_parallel: 8}\n" + TRAIN + NPU
SERVED = (
    MODEL + "parallel: {mode: semi_auto_parallel, model_parallel: 2}\nserve: {weights: random, max_length: 256}\n" + NPU
)
SERVED_EXPERTS = (
    MODEL + "  num_experts: 8\n  experts_per_token: 2\n  expert_ffn_size: 32\n"
    "parallel: {mode: semi_auto_parallel, model_parallel: 2, expert_parallel: 2}\n"
    "serve: {weights: random, max_length: 256}\n" + NPU
)
BASES = (HYBRID, TENSOR, REPLICAS, PIPELINE, CONTEXT, EXPERTS, ONE, WORKERS, SEARCH, SERVED, SERVED_EXPERTS)


@dataclass(frozen=True)
class Case:
    rule: str
    base: str
    broken: str
    """Overrides that break it."""
    tells: str
    """Part of the message: the arithmetic, or the value."""
    also: tuple[str, ...] = ()
    """Rules that break with it."""


CASES = [
    Case("trains_or_serves", MODEL, "", "`train:` section"),
    Case("trains_or_serves", MODEL + NPU, "parallel.mode=semi_auto_parallel parallel.data_parallel=2", "nothing to do"),
    Case("serving_is_tensor_parallel", SERVED, "parallel.data_parallel=2", "data_parallel 2 would be idle"),
    Case(
        "serving_is_tensor_parallel",
        SERVED,
        "parallel.model_parallel=1 parallel.pipeline_stages=2",
        "pipeline_stages 2",
    ),
    Case("served_experts_over_model_parallel", SERVED_EXPERTS, "parallel.expert_parallel=1", "the 2 devices of"),
    Case(
        "served_experts_over_model_parallel",
        SERVED_EXPERTS,
        "model.num_experts=9 parallel.expert_parallel=1",
        "expert_parallel 1",
    ),
    Case("warmup_shorter_than_run", ONE, "optimizer.warmup_steps=100", "100 steps, but the run has 100"),
    Case(
        "minimum_rate_below_peak", ONE, "optimizer.learning_rate=0.001 optimizer.min_learning_rate=0.01", "end at 0.01"
    ),
    Case(
        "minimum_rate_needs_cosine", ONE, "optimizer.schedule=constant optimizer.min_learning_rate=0.0001", "constant"
    ),
    Case("intervals_within_run", ONE, "train.eval_interval=101", "Every 101 steps is never"),
    Case("intervals_within_run", ONE, "train.checkpoint_interval=1000", "has 100"),
    Case("intervals_within_run", ONE, "train.log_interval=200", "has 100"),
    Case(
        "long_timeout_not_below_hang_timeout",
        ONE,
        "supervise.hang_timeout_s=1200.0 supervise.long_timeout_s=600.0",
        "given 600 s where a step is given 1200 s",
    ),
    Case("long_timeout_not_below_hang_timeout", ONE, "supervise.hang_timeout_s=7200.0", "given 3600 s"),
    Case("restart_settings_need_restarts", ONE, "supervise.max_restarts=0 supervise.restart_delay_s=5.0", "again"),
    Case("restart_settings_need_restarts", ONE, "supervise.max_restarts=0 supervise.on_node_fault=exclude", "again"),
    Case(
        "restart_settings_need_restarts",
        ONE,
        "supervise.on_node_fault=stop supervise.node_wait_s=60.0",
        "on_node_fault stop",
    ),
    Case("sample_prompt_needs_sample", ONE, "train.sample_tokens=0 train.sample_prompt=class", "no sample"),
    Case("text_field_needs_json_lines", ONE, "data.text_field=body", "python_stdlib is plain text"),
    Case("text_field_needs_json_lines", ONE, "data.corpus=a/*.txt data.text_field=body", "a/*.txt is plain text"),
    Case("training_sections_need_train", SERVED, "optimizer.learning_rate=0.001", "`optimizer:`"),
    Case("training_sections_need_train", SERVED, "data.tokenizer=byte data.corpus=x", "`data:`"),
    Case("training_sections_need_train", SERVED, "supervise.max_restarts=3", "`supervise:`"),
    Case("training_settings_need_train", SERVED, "parallel.recompute=full", "only training reads it"),
    Case(
        "training_settings_need_train",
        SERVED,
        "parallel.sequence_parallel=true parallel.micro_batch_num=4",
        "no train section",
    ),
    # shape
    Case("known_preset", ONE, "model.preset=qwen3_9b", "Did you mean qwen3_8b?"),
    Case("shape_is_complete", ONE, "model.num_heads=null model.num_kv_heads=null", "num_heads is missing"),
    Case("hidden_over_heads", ONE, "model.num_heads=6 model.num_kv_heads=3", "64 % 6 = 4"),
    Case("hidden_over_heads", ONE, "model.hidden_size=65", "65 % 8 = 1"),
    Case("query_heads_over_kv_heads", ONE, "model.num_kv_heads=3", "8 % 3 = 2"),
    Case("rotary_head_dim_is_even", ONE, "model.head_dim=7", "7 wide"),
    Case("rotary_head_dim_is_even", ONE, "model.num_heads=64 model.num_kv_heads=8", "1 wide"),
    Case("vocab_holds_all_bytes", ONE, "model.vocab_size=256", "least 257"),
    Case("vocab_holds_all_bytes", TENSOR, "model.vocab_size=128 data.tokenizer=byte", "128 tokens are too few"),
    Case("sequence_within_positions", ONE, "train.seq_length=1024", "1024 tokens are more than the 512"),
    Case("served_length_within_positions", SERVED, "serve.max_length=513", "513 tokens"),
    Case("experts_are_complete", EXPERTS, "model.experts_per_token=null", "experts_per_token"),
    Case("experts_are_complete", ONE, "model.num_experts=4", "experts_per_token and expert_ffn_size"),
    Case("experts_chosen_among_all", EXPERTS, "model.experts_per_token=9", "9 of 8"),
    Case("experts_are_swiglu", EXPERTS, "model.activation=gelu", "SwiGLU"),
    Case("experts_are_swiglu", EXPERTS, "model.ffn_bias=true", "no bias"),
    Case("expert_settings_need_experts", ONE, "model.router_aux_loss=0.01", "no experts"),
    Case("expert_settings_need_experts", ONE, "model.experts_per_token=2 model.expert_ffn_size=32", "no experts"),
    Case("rope_theta_needs_rope", ONE, "model.position=learned model.rope_theta=10000.0", "learned"),
    # hardware
    Case("known_hardware", TENSOR, "cluster.hardware=atlas_800t_a3", "Did you mean atlas_800t_a2?"),
    Case("known_hardware", TENSOR, "cluster.hardware=910B", "Did you mean atlas_800t_a2?"),
    Case("dtype_on_hardware", ONE, "train.dtype=bfloat16", "float32, not in bfloat16"),
    Case("dtype_on_hardware", TENSOR, "cluster.hardware=atlas_800_a1", "910A"),
    Case("dtype_on_hardware", WORKERS, "train.dtype=float16 train.loss_scale=1024", "not in float16"),
    Case("loss_scale_needs_float16", TENSOR, "train.loss_scale=dynamic", "bfloat16 has the range"),
    Case("flash_needs_ascend", ONE, "model.attention=flash", "Ascend kernel"),
    Case("flash_needs_half_precision", TENSOR, "train.dtype=float32", "float32"),
    # mode
    Case("stand_alone_is_one_device", WORKERS, "parallel.mode=stand_alone", "ask for 4"),
    Case("stand_alone_is_one_device", ONE, "parallel.data_parallel=2", "ask for 2"),
    Case("stand_alone_is_one_device", HYBRID, "parallel.mode=null", "pipeline_stages 2 x data_parallel 2"),
    Case("replica_modes_are_data_parallel", HYBRID, "parallel.mode=data_parallel", "model_parallel 2"),
    Case("replica_modes_are_data_parallel", TENSOR, "parallel.mode=hybrid_parallel", "model_parallel 4"),
    Case("operator_modes_need_ascend", WORKERS, "parallel.mode=semi_auto_parallel", "Invalid backend: CPU"),
    Case("operator_modes_need_ascend", TENSOR, "cluster.hardware=cpu train.dtype=float32", "Invalid backend: CPU"),
    Case("operator_modes_need_devices", TENSOR, "parallel.model_parallel=1", "nothing to cut"),
    Case("device_number_suits_mindspore", REPLICAS, "parallel.data_parallel=6 train.global_batch_size=24", "not 6"),
    Case("device_number_suits_mindspore", SEARCH, "parallel.data_parallel=7 train.global_batch_size=14", "not 7"),
    Case("device_number_suits_mindspore", HYBRID, "parallel.data_parallel=3 train.global_batch_size=24", "not 12"),
    Case("search_needs_power_of_two", SEARCH, "parallel.data_parallel=24 train.global_batch_size=24", "not 24"),
    Case(
        "search_needs_power_of_two",
        SEARCH,
        "parallel.search_mode=recursive_programming parallel.data_parallel=40 train.global_batch_size=40",
        "not 40",
    ),
    Case(
        "groups_fit_servers",
        REPLICAS,
        "parallel.data_parallel=8 parallel.context_parallel=3 train.seq_length=96",
        "0, 1, 2 would be one group",
    ),
    Case(
        "groups_fit_servers",
        HYBRID,
        "parallel.data_parallel=12 parallel.model_parallel=1 train.global_batch_size=24",
        "would be one group",
    ),
    Case("search_needs_flash", SEARCH, "model.attention=plain", "Flash attention compiles"),
    Case(
        "search_needs_flash",
        SEARCH,
        "model.attention=plain train.dtype=float32 parallel.data_parallel=2 parallel.pipeline_stages=4",
        "recursive_programming",
    ),
    Case(
        "propagation_spreads_batch",
        SEARCH,
        "parallel.search_mode=sharding_propagation parallel.data_parallel=2 parallel.model_parallel=4",
        "data_parallel 2 of a stage's 8 devices; data_parallel must be 1 or 8",
    ),
    Case("search_needs_dense_model", EXPERTS, "parallel.mode=auto_parallel", "8 experts"),
    Case(
        "search_needs_dense_model",
        SEARCH,
        "parallel.search_mode=recursive_programming model.num_experts=4 model.experts_per_token=2 "
        "model.expert_ffn_size=32",
        "4 experts",
    ),
    Case("search_mode_needs_auto", TENSOR, "parallel.search_mode=sharding_propagation", "does not search"),
    Case("strategy_files_need_engine", WORKERS, "parallel.strategy_save_file=s.json", "no strategies"),
    Case(
        "strategy_files_need_engine",
        ONE,
        "parallel.strategy_load_file=s.json parallel.strategy_save_file=t.json",
        "no strategies",
    ),
    Case("load_file_needs_propagation", TENSOR, "parallel.strategy_load_file=s.json", "blocks' own strategies"),
    Case("load_file_needs_propagation", SEARCH, "parallel.strategy_load_file=s.json", "recursive_programming"),
    # devices
    Case(
        "one_auto",
        HYBRID,
        "parallel.data_parallel=auto parallel.model_parallel=auto cluster.devices_per_node=8",
        "only one",
    ),
    Case("auto_needs_devices", HYBRID, "parallel.data_parallel=auto", "cluster.devices_per_node"),
    Case("auto_needs_devices", HYBRID, "parallel.data_parallel=auto cluster.devices_per_node=6", "6 % 4 = 2"),
    Case(
        "degrees_match_devices",
        HYBRID,
        "cluster.nodes=8 cluster.devices_per_node=8",
        "= 64, but the degrees ask for 8 (pipeline_stages 2 x data_parallel 2 x model_parallel 2 = 8)",
    ),
    Case("degrees_match_devices", WORKERS, "cluster.devices_per_node=2", "1 node x 2 devices = 2"),
    Case("degrees_match_nodes", HYBRID, "cluster.nodes=3", "8 % 3 = 2"),
    Case(
        "devices_fit_hardware",
        HYBRID,
        "parallel.data_parallel=4 cluster.devices_per_node=16 train.global_batch_size=16",
        "16 devices on a node",
    ),
    Case("devices_fit_hardware", HYBRID, "parallel.data_parallel=8 cluster.nodes=2", "one atlas_800t_a2 node has 8"),
    Case(
        "devices_within_mindspore", REPLICAS, "parallel.data_parallel=8192 train.global_batch_size=8192", "up to 4096"
    ),
    # cutting
    Case("heads_over_model_parallel", HYBRID, "model.num_heads=9 model.num_kv_heads=9 model.head_dim=8", "9 % 2 = 1"),
    Case(
        "heads_over_model_parallel",
        TENSOR,
        "parallel.model_parallel=16",
        "8 % 16 = 8",
        ("kv_heads_over_model_parallel",),
    ),
    Case("kv_heads_over_model_parallel", TENSOR, "model.num_kv_heads=2", "2 % 4 = 2"),
    Case("vocab_over_model_parallel", TENSOR, "model.vocab_size=1001", "1001 % 4 = 1"),
    Case("ffn_over_model_parallel", TENSOR, "model.ffn_size=130", "130 % 4 = 2"),
    Case("sequence_over_context_parallel", CONTEXT, "train.seq_length=130", "130 % 4 = 2"),
    Case(
        "tokens_over_sequence_parallel", TENSOR, "parallel.sequence_parallel=true train.seq_length=126", "126 % 4 = 2"
    ),
    Case(
        "tokens_over_sequence_parallel",
        EXPERTS,
        "parallel.data_parallel=2 parallel.model_parallel=4 parallel.sequence_parallel=true train.seq_length=126",
        "126 % 4 = 2",
    ),
    Case("ulysses_heads", CONTEXT, "parallel.context_parallel_algo=ulysses model.num_kv_heads=2", "num_kv_heads is 2"),
    Case("experts_over_expert_parallel", EXPERTS, "model.num_experts=6", "6 % 4 = 2"),
    Case("devices_over_expert_parallel", EXPERTS, "parallel.expert_parallel=8", "4 % 8 = 4"),
    Case(
        "experts_on_neighbours",
        EXPERTS,
        "parallel.data_parallel=6 parallel.model_parallel=4 parallel.expert_parallel=6 model.num_experts=12 "
        "train.global_batch_size=24 train.micro_batch_size=4 cluster.nodes=3 cluster.devices_per_node=8",
        "6 is neither",
    ),
    Case(
        "sequence_over_shared_slots",
        EXPERTS,
        "parallel.data_parallel=2 parallel.model_parallel=4 parallel.expert_parallel=1 train.seq_length=126",
        "126 % 4 = 2",
    ),
    # pipeline
    Case("layers_over_stages", HYBRID, "model.num_layers=9", "9 % 2 = 1"),
    Case("layers_over_stages", PIPELINE, "model.num_layers=3", "3 layers are fewer"),
    Case("layers_over_stages", PIPELINE, "parallel.virtual_stages=3", "pipeline_stages 4 x virtual_stages 3 = 12"),
    Case("stage_layers_length", PIPELINE, "parallel.stage_layers=[4,4]", "2 numbers for pipeline_stages 4"),
    Case("stage_layers_sum", PIPELINE, "parallel.stage_layers=[7,7,7,7]", "7 + 7 + 7 + 7 = 28"),
    Case("stage_layers_sum", PIPELINE, "parallel.stage_layers=[2,2,2,1]", "= 7 layers, but the model has 8"),
    Case("stage_layers_need_pipeline", TENSOR, "parallel.stage_layers=[8]", "one stage"),
    Case("gpipe_needs_virtual_stages", HYBRID, "parallel.pipeline_schedule=gpipe", "virtual_stages 1"),
    Case("schedule_needs_pipeline", TENSOR, "parallel.pipeline_schedule=1f1b", "one stage"),
    Case("virtual_stages_need_pipeline", TENSOR, "parallel.virtual_stages=2", "one stage", ()),
    Case("micro_batches_fill_pipeline", PIPELINE, "train.global_batch_size=3", "cannot fill 4 stages"),
    Case("micro_batches_fill_pipeline", PIPELINE, "train.micro_batch_size=8", "2 micro-batches"),
    Case(
        "micro_batches_fill_pipeline",
        PIPELINE,
        "train.global_batch_size=null parallel.micro_batch_num=1",
        "1 micro-batch a step",
    ),
    Case("tied_embeddings_without_pipeline", PIPELINE, "model.tie_embeddings=true", "LM head"),
    # batch
    Case("batch_is_stated", ONE, "train.global_batch_size=null", "Only micro_batch_size is stated"),
    Case("batch_is_stated", PIPELINE, "train.global_batch_size=null train.micro_batch_size=null", "None is stated"),
    Case("batch_is_stated", WORKERS, "train.micro_batch_size=null", "Only global_batch_size is stated"),
    Case("batch_comes_out", WORKERS, "train.global_batch_size=17", "17 % 8 = 1"),
    Case("batch_comes_out", HYBRID, "train.micro_batch_size=null parallel.micro_batch_num=3", "16 % 6 = 4"),
    Case(
        "batch_agrees",
        HYBRID,
        "parallel.micro_batch_num=4",
        "data_parallel 2 x micro_batch_size 1 x micro_batch_num 4 = 8",
    ),
    # optimizer shard
    Case("shard_needs_copies", TENSOR, "parallel.optimizer_shard=true", "nothing to cut but norms"),
    Case("shard_needs_operator_mode", WORKERS, "parallel.optimizer_shard=level2", "data_parallel does not use"),
    Case(
        "shard_size_divides_copies",
        REPLICAS,
        "parallel.optimizer_shard=true parallel.optimizer_shard_size=3",
        "4 % 3 = 1",
    ),
    Case(
        "shard_size_divides_copies",
        REPLICAS,
        "parallel.optimizer_shard=true parallel.optimizer_shard_size=8",
        "4 % 8 = 4",
    ),
    Case(
        "shard_size_divides_copies",
        REPLICAS,
        "parallel.optimizer_shard=true parallel.optimizer_shard_size=1",
        "takes 1 for all 4 copies",
    ),
    Case("shard_level3_without_pipeline", HYBRID, "parallel.optimizer_shard=level3", "does not compile level3"),
    Case("shard_details_need_shard", REPLICAS, "parallel.optimizer_shard_size=2", "optimizer_shard is off"),
    Case("shard_details_need_shard", REPLICAS, "parallel.optimizer_shard_threshold_kib=0", "optimizer_shard is off"),
    # effect
    Case(
        "sequence_parallel_needs_model_parallel",
        REPLICAS,
        "parallel.sequence_parallel=true",
        "model_parallel, which is 1",
    ),
    Case("expert_parallel_needs_experts", REPLICAS, "parallel.expert_parallel=2", "no experts"),
    Case("expert_parallel_needs_engine", EXPERTS, "parallel.mode=data_parallel", "holds all experts"),
    Case(
        "context_algo_needs_context_parallel", REPLICAS, "parallel.context_parallel_algo=ulysses", "context_parallel 1"
    ),
    Case("fusion_needs_gradient_sum", TENSOR, "parallel.comm_fusion=auto", "no gradients are summed"),
    Case("fusion_needs_gradient_sum", WORKERS, "parallel.comm_fusion=64", "data_parallel does not use it"),
    Case("overlap_needs_gradient_sum", PIPELINE, "parallel.overlap_gradients=true", "no gradients are summed"),
    Case("overlap_needs_gradient_sum", WORKERS, "parallel.overlap_gradients=true", "data_parallel does not use it"),
]


def problems(text: str, overrides: str) -> list:
    try:
        load_text(text, "r.yaml", overrides.split())
    except RecipeError as error:
        return error.problems
    return []


@pytest.mark.parametrize("base", BASES, ids=range(len(BASES)))
def test_base_is_valid(base: str) -> None:
    assert problems(base, "") == []


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{number}" for number, case in enumerate(CASES)])
def test_rule_and_its_suggestion(case: Case) -> None:
    found = problems(case.base, case.broken)
    assert {problem.rule for problem in found} == {case.rule, *case.also}
    told = next(problem for problem in found if problem.rule == case.rule)
    assert case.tells in told.message
    for problem in found:
        assert problem.suggestion, "every rule here has a value that works"
        mended = {item.partition("=")[0]: item for item in [*case.broken.split(), *problem.suggestion.split()]}
        left = problems(case.base, " ".join(mended.values()))
        if len(found) == 1:
            assert left == []
        else:
            assert {p.rule for p in left} < {p.rule for p in found}


def test_every_rule_has_a_case_and_a_statement() -> None:
    names = [rule.__name__ for rule in RULES]
    assert len(names) == len(set(names)) >= 35
    assert {case.rule for case in CASES} == set(names)
    for rule in RULES:
        statement = (rule.__doc__ or "").split("\n\n")[0]
        assert statement and statement.rstrip().endswith("."), rule.__name__


# What MindSpore 2.9's own engine did with these on a simulated Ascend target: dp, cp, tp, pp -> compiled or
# "Create communication group failed".
OBSERVED = [
    ((8, 1, 3, 1), False),
    ((4, 1, 3, 2), False),
    ((2, 1, 12, 1), False),
    ((12, 1, 1, 2), False),
    ((3, 1, 8, 1), True),
    ((12, 1, 2, 1), True),
    ((6, 1, 4, 1), True),
    ((24, 1, 1, 1), True),
    ((2, 1, 4, 3), True),
    ((1, 1, 8, 3), True),
    ((4, 1, 2, 6), True),
    ((1, 1, 8, 5), True),
    ((4, 1, 1, 6), True),
]


@pytest.mark.parametrize(("degrees", "compiles"), OBSERVED)
def test_groups_that_mindspore_refuses(degrees: tuple[int, int, int, int], compiles: bool) -> None:
    dp, cp, tp, pp = degrees
    assert (infeasible_group(Mesh(dp=dp, cp=cp, tp=tp, pp=pp)) is None) is compiles


def test_powers_of_two_always_fit_servers() -> None:
    powers = (1, 2, 4, 8, 16)
    for dp, cp, tp, pp in itertools.product(powers, repeat=4):
        mesh = Mesh(dp=dp, cp=cp, tp=tp, pp=pp)
        if mesh.size in (1, 2, 4) or mesh.size % 8 == 0:
            assert infeasible_group(mesh) is None, mesh


def test_many_devices_are_judged_quickly_enough_to_search() -> None:
    """Thousands of devices in odd degrees still get their suggestion (a search over hundreds of candidates)."""
    broken = (
        "parallel.data_parallel=3 parallel.model_parallel=12 parallel.context_parallel=32 train.global_batch_size=48"
    )
    found = problems(CONTEXT, broken)
    assert any(problem.rule == "groups_fit_servers" and problem.suggestion for problem in found)
