"""MindFormers YAML -> recipe: what is carried, what is told, what is refused."""

from __future__ import annotations

import json

import pytest
import yaml
from interop.mindformers_files import EXPERTS, GONE, document, line_of, write

from msparallel.errors import RecipeError
from msparallel.interop.import_mindformers import Imported, import_mindformers
from msparallel.interop.import_sections import ATTENTION_CORE
from msparallel.interop.model_names import preset_config
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
CONFIG = "model.model_config."


def imported(folder, changes=None, **arguments) -> Imported:
    return import_mindformers(write(folder, changes), **arguments)


def refused(folder, changes=None, **arguments):
    with pytest.raises(RecipeError) as error:
        import_mindformers(write(folder, changes), **arguments)
    return error.value.problems


def kinds(result: Imported) -> dict[str, str]:
    return {item.key: item.kind for item in result.not_carried}


def test_every_value_with_a_word_is_carried(tmp_path):
    recipe = imported(tmp_path).recipe
    parallel, optimizer, train, model = recipe.parallel, recipe.optimizer, recipe.train, recipe.model
    assert (parallel.mode, parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stages) == (
        "semi_auto_parallel", 2, 4, 2)  # fmt: skip
    assert (parallel.micro_batch_num, parallel.stage_layers, parallel.sequence_parallel) == (4, [4, 5], True)
    assert (parallel.optimizer_shard, parallel.optimizer_shard_threshold_kib, parallel.recompute) == (True, 32, "full")
    assert (optimizer.learning_rate, optimizer.min_learning_rate, optimizer.warmup_steps) == (2e-4, 1e-5, 20)
    assert (optimizer.schedule, optimizer.beta1, optimizer.beta2, optimizer.eps) == ("cosine", 0.9, 0.98, 1e-9)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.05, 0.5)
    assert (train.micro_batch_size, train.seq_length, train.dtype, train.seed) == (2, 2048, "bfloat16", 7)
    assert (train.steps, train.output_dir, train.log_interval) == (600, "./runs/small", 5)
    assert (train.checkpoint_interval, train.keep_checkpoints) == (100, 3)
    assert (model.num_layers, model.hidden_size, model.ffn_size, model.num_kv_heads) == (9, 512, 1536, 4)
    assert (model.qk_norm, model.rope_theta, model.init_std, model.head_dim) == (True, 1e6, 0.01, 64)
    assert resolve(recipe).global_batch_size == 2 * 2 * 4


def test_the_text_is_the_recipe(tmp_path):
    result = imported(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(result.text, encoding="utf-8")
    assert load_recipe(path).sections == result.recipe.sections
    assert "model_parallel: 4   # parallel_config.model_parallel" in result.text


def test_each_key_is_carried_or_told(tmp_path):
    result = imported(tmp_path)
    told = kinds(result)
    assert told["parallel_config.gradient_aggregation_group"] == "unknown"
    assert told["train_dataset.data_loader.config.data_path"] == "decided"
    assert told["runner_wrapper.scale_sense"] == "no_effect"
    line = next(item.line for item in result.not_carried if item.key == "parallel_config.gradient_aggregation_group")
    assert line == line_of(tmp_path / "small.yaml", "gradient_aggregation_group")
    carried = {"parallel_config.data_parallel", f"{CONFIG}hidden_size", "seed", "callbacks.0.per_print_times"}
    assert not carried & set(told)
    assert all(item.reason for item in result.not_carried)


def test_a_preset_takes_the_place_of_its_numbers(tmp_path):
    numbers = {f"{CONFIG}{key}": value for key, value in preset_config("qwen3_8b").items()}
    recipe = imported(tmp_path, {**numbers, f"{CONFIG}offset": 0}).recipe
    assert recipe.model.preset == "qwen3_8b"
    assert recipe.keys_stated("model") == {"preset"}
    one_off = imported(tmp_path, {**numbers, f"{CONFIG}offset": 0, f"{CONFIG}vocab_size": 151552}).recipe
    assert one_off.model.preset is None and one_off.model.vocab_size == 151552


def test_a_mixture_of_experts(tmp_path):
    result = imported(tmp_path, {**EXPERTS, f"{CONFIG}routed_scaling_factor": 2.5,
                                 f"{CONFIG}moe_router_load_balancing_type": "gbs_aux_loss"})  # fmt: skip
    model = result.recipe.model
    assert (model.num_experts, model.experts_per_token, model.expert_ffn_size) == (16, 2, 256)
    assert (model.router_aux_loss, model.normalize_expert_weights, result.recipe.parallel.expert_parallel) == (
        0.01, True, 4)  # fmt: skip
    told = kinds(result)
    assert told[f"{CONFIG}routed_scaling_factor"] == told[f"{CONFIG}moe_router_load_balancing_type"] == "differs"


def missed(result: Imported) -> list[str]:
    """Keys of the YAML that are neither carried nor told, by themselves or with all that is below a key."""
    told = {item.key for item in result.not_carried} | {key for keys in result.carried.values() for key in keys}
    tree = result.config.tree
    callbacks = enumerate(tree.get("callbacks") or [])
    items = [f"callbacks.{at}.{name}" for at, item in callbacks for name in (item if isinstance(item, dict) else ["x"])]
    leaves = [key for key, _ in tree.leaves() if key != "callbacks"] + items
    above = {key: [key[:at] for at in range(len(key) + 1) if at == len(key) or key[at] == "."] for key in leaves}
    return [key for key in leaves if not told.intersection(above[key])]


MODES = [
    {"use_parallel": False}, {"parallel_config": {}}, {"parallel.parallel_mode": 0}, {"parallel.parallel_mode": 3},
    {"parallel.parallel_mode": 1, "parallel.strategy_ckpt_config": {"save_file": "s.ckpt"}},
    {"parallel.parallel_mode": 2, "parallel.search_mode": "sharding_propagation", "parallel_config.model_parallel": 1,
     "parallel_config.pipeline_stage": 1, "parallel_config.context_parallel": 1, "parallel_config.data_parallel": 4,
     "parallel_config.expert_parallel": 1},
]  # fmt: skip
KNOWN = {
    **EXPERTS, "parallel.strategy_ckpt_config": {"save_file": "s.ckpt", "load_file": "l.ckpt"},
    "parallel.search_mode": "recursive_programming",
    "parallel.comm_fusion": {"openstate": True, "allreduce": {"mode": "auto", "config": None}},
    "parallel.pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"},
    "parallel.parallel_optimizer_config": {"optimizer_level": "level2", "gradient_accumulation_shard": True,
                                           "optimizer_weight_shard_size": 2, "parallel_optimizer_threshold": 64},
    "parallel_config.context_parallel": 2, "parallel_config.context_parallel_algo": "colossalai_cp",
    "recompute_config.select_recompute": [ATTENTION_CORE], "lr_schedule.warmup_ratio": 0.1,
    "grouped_lr_schedule": {"default": {"type": "ConstantWarmUpLR", "learning_rate": 3e-5, "total_steps": 600}},
    "optimizer.learning_rate": 1e-4,
    "runner_wrapper.scale_sense": {"type": "DynamicLossScaleUpdateCell", "loss_scale_value": 1024},
    "callbacks": [{"type": "MFLossMonitor", "per_print_times": 5, "origin_epochs": 3},
                  {"type": "ProfileMonitor", "start_step": 1}, "word"],
    "train_dataset_task.dataset_config": document()["train_dataset"],
}  # fmt: skip
"""Every key that has a word here in some mode."""


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_every_mode_each_key_is_carried_or_told_and_a_known_one_for_its_own_reason(tmp_path, mode, dtype):
    result = imported(tmp_path, KNOWN | mode | {f"{CONFIG}compute_dtype": dtype})
    assert missed(result) == []
    assert [item.key for item in result.not_carried if item.reason == "not a key that msparallel knows"] == []


def without(path, key):
    """The file's text again, with a key taken out."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    *way, name = key.split(".")
    section = values
    for part in way:
        section = section[int(part) if isinstance(section, list) else part]
    section.pop(name)
    return yaml.safe_dump(values, sort_keys=False, width=1000)


SAYS_WHAT_IT_IS = ("run_mode", "use_legacy", "use_parallel", f"{CONFIG}model_type",
                   *(f"callbacks.{at}.type" for at in range(2)))  # fmt: skip


@pytest.mark.parametrize("changes", [{}, EXPERTS, {"use_parallel": False}, {"parallel.parallel_mode": 0}], ids=str)
def test_what_is_said_to_change_nothing_changes_nothing(tmp_path, changes):
    result = imported(tmp_path, changes)
    path, idle = tmp_path / "small.yaml", [item for item in result.not_carried if item.kind in ("same", "no_effect")]
    assert len(idle) > 10
    other = tmp_path / "other.yaml"
    for item in idle:
        if item.key not in SAYS_WHAT_IT_IS:
            other.write_text(without(path, item.key), encoding="utf-8")
            assert import_mindformers(other).recipe.sections == result.recipe.sections, item


CHANGES = [
    ({"parallel_config.data_parallel": 1}, "parallel.optimizer_shard", False),
    ({"parallel_config.use_seq_parallel": False}, "parallel.sequence_parallel", False),
    ({"parallel_config.model_parallel": 1, "parallel_config.data_parallel": 8}, "parallel.sequence_parallel", False),
    ({"parallel_config.pipeline_stage": 1, "parallel_config.data_parallel": 4,
      "runner_config.gradient_accumulation_steps": 6}, "parallel.micro_batch_num", 6),
    ({"parallel_config.pipeline_stage": 1, "parallel_config.data_parallel": 4}, "parallel.stage_layers", None),
    ({"parallel.parallel_optimizer_config.optimizer_level": "level2"}, "parallel.optimizer_shard", "level2"),
    ({"parallel.parallel_optimizer_config.gradient_accumulation_shard": True}, "parallel.optimizer_shard", "level2"),
    ({"parallel.parallel_optimizer_config.optimizer_weight_shard_size": 2}, "parallel.optimizer_shard_size", 2),
    ({"parallel.parallel_optimizer_config.optimizer_weight_shard_size": 256}, "parallel.optimizer_shard_size", None),
    ({"parallel_config.context_parallel": 2, "parallel_config.data_parallel": 1,
      "parallel_config.context_parallel_algo": "ulysses_cp", f"{CONFIG}num_key_value_heads": 8},
     "parallel.context_parallel_algo", "ulysses"),
    ({"parallel.pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "gpipe"}},
     "parallel.pipeline_schedule", None),
    ({"parallel.pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "gpipe"},
      f"{CONFIG}pp_interleave_num": 2, f"{CONFIG}offset": [[0, 0], [1, 0]]}, "parallel.pipeline_schedule", "gpipe"),
    ({"parallel.pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"},
      f"{CONFIG}pp_interleave_num": 2, f"{CONFIG}offset": [[0, 0], [1, 0]]}, "parallel.stage_layers", [2, 2, 3, 2]),
    ({f"{CONFIG}pp_interleave_num": 2}, "parallel.virtual_stages", 1),
    ({"recompute_config.recompute": False}, "parallel.recompute", "none"),
    ({"recompute_config.recompute": [4, 5]}, "parallel.recompute", "full"),
    ({"recompute_config.recompute": [True, 3]}, "parallel.recompute", "full"),
    ({"recompute_config.recompute": [1, 1]}, "parallel.recompute", "none"),
    ({"recompute_config": {"select_recompute": [ATTENTION_CORE]}}, "parallel.recompute", "selective"),
    ({"recompute_config": {"select_recompute": True}}, "parallel.recompute", "none"),
    ({"lr_schedule.total_steps": 5000}, "train.steps", 5000),
    ({"lr_schedule.type": "ConstantWarmUpLR"}, "optimizer.min_learning_rate", 0.0),
    ({"lr_schedule.warmup_steps": GONE, "lr_schedule.warmup_ratio": 0.1}, "optimizer.warmup_steps", 60),
    ({"lr_schedule.warmup_steps": 20, "lr_schedule.warmup_ratio": 0}, "optimizer.warmup_steps", 0),
    ({"lr_schedule": GONE}, "optimizer.learning_rate", 5e-5),
    ({"lr_schedule": GONE, "optimizer.learning_rate": 1e-4}, "optimizer.learning_rate", 1e-4),
    ({"grouped_lr_schedule": {"default": {"type": "ConstantWarmUpLR", "learning_rate": 3e-5, "warmup_steps": 9}}},
     "optimizer.warmup_steps", 9),
    ({"train_dataset.data_loader": {"type": "HFDataLoader"}}, "train.steps", 1000),
    ({"runner_wrapper.use_clip_grad": False}, "optimizer.clip_norm", 0.0),
    ({"optimizer.betas": GONE}, "optimizer.beta2", 0.999),
    ({"callbacks": [{"type": "CheckpointMonitor", "save_checkpoint_steps": 601}]}, "train.checkpoint_interval", None),
    ({f"{CONFIG}compute_dtype": "float16", "runner_wrapper.scale_sense": {"type": "DynamicLossScaleUpdateCell"}},
     "train.loss_scale", "dynamic"),
    ({f"{CONFIG}compute_dtype": "fp16", "runner_wrapper.scale_sense": 1024.0}, "train.loss_scale", 1024),
    ({f"{CONFIG}use_flash_attention": False}, "model.attention", "plain"),
    ({f"{CONFIG}model_type": "telechat3"}, "model.qk_norm", False),
    ({"parallel.comm_fusion": {"openstate": True, "allreduce": {"mode": "auto", "config": None}}},
     "parallel.comm_fusion", "auto"),
    ({"parallel.comm_fusion": {"openstate": True, "allreduce": {"mode": "size", "config": 32}}},
     "parallel.comm_fusion", 32),
    ({"parallel.comm_fusion": {"openstate": False}}, "parallel.comm_fusion", "none"),
    ({"use_parallel": False, "parallel_config": {}, "parallel": {}}, "parallel.mode", "stand_alone"),
    ({"parallel_config": {}}, "parallel.mode", "stand_alone"),
    ({"parallel.parallel_mode": 0, "parallel_config.data_parallel": 8}, "parallel.mode", "data_parallel"),
    ({"parallel.parallel_mode": "AUTO_PARALLEL", "parallel_config.data_parallel": 1}, "parallel.search_mode",
     "sharding_propagation"),
    ({"pretrained_model_dir": "/models/small"}, "data.tokenizer", "/models/small/tokenizer.json"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "key", "value"), CHANGES, ids=lambda item: item if isinstance(item, str) else "")
def test_what_becomes_of_a_setting(tmp_path, changes, key, value):
    result = imported(tmp_path, changes)
    assert result.recipe.value(key) == value
    assert missed(result) == []


DIFFERENT = [
    ({"recompute_config.recompute": [True, 3]}, "recompute_config.recompute"),
    ({"recompute_config": {"select_recompute": True}}, "recompute_config.select_recompute"),
    ({"parallel.pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "seqpipe"}},
     "parallel.pipeline_config.pipeline_scheduler"),
    ({"lr_schedule.type": "WarmUpStableDecayLR"}, "lr_schedule.type"),
    ({"lr_schedule.warmup_lr_init": 1e-6}, "lr_schedule.warmup_lr_init"),
    ({"optimizer.type": "Muon"}, "optimizer.type"),
    ({f"{CONFIG}params_dtype": "bfloat16"}, f"{CONFIG}params_dtype"),
    ({f"{CONFIG}rotary_dtype": "bfloat16"}, f"{CONFIG}rotary_dtype"),
    ({f"{CONFIG}fp32_residual_connection": True}, f"{CONFIG}fp32_residual_connection"),
    ({f"{CONFIG}hidden_dropout": 0.1}, f"{CONFIG}hidden_dropout"),
    ({f"{CONFIG}position_embedding_type": "yarn"}, f"{CONFIG}position_embedding_type"),
    ({f"{CONFIG}rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, f"{CONFIG}rope_scaling.rope_type"),
    ({"parallel.parallel_optimizer_config.optimizer_weight_shard_size": 256},
     "parallel.parallel_optimizer_config.optimizer_weight_shard_size"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "key"), DIFFERENT, ids=lambda item: item if isinstance(item, str) else "")
def test_what_changes_results_is_told_as_such(tmp_path, changes, key):
    assert kinds(imported(tmp_path, changes))[key] == "differs"


REFUSED = [
    ({"run_mode": "predict"}, "not_training", "run_mode"),
    ({"run_mode": "eval"}, "not_training", "run_mode"),
    ({"run_mode": GONE}, "not_training", "run_mode"),
    ({"use_legacy": True}, "legacy", "use_legacy"),
    ({"use_legacy": GONE}, "legacy", "use_legacy"),
    ({"context.mode": 1}, "pynative", "context.mode"),
    ({f"{CONFIG}model_type": "deepseek_v3"}, "architecture", f"{CONFIG}model_type"),
    ({f"{CONFIG}model_type": GONE, f"{CONFIG}architectures": ["Glm4ForCausalLM"]}, "architecture",
     f"{CONFIG}architectures"),
    ({f"{CONFIG}model_type": "mamba2"}, "architecture", f"{CONFIG}model_type"),
    ({f"{CONFIG}model_type": "who_knows"}, "architecture", f"{CONFIG}model_type"),
    ({f"{CONFIG}multi_latent_attention": True}, "architecture", f"{CONFIG}multi_latent_attention"),
    ({f"{CONFIG}n_shared_experts": 1}, "architecture", f"{CONFIG}n_shared_experts"),
    ({f"{CONFIG}num_nextn_predict_layers": 1}, "architecture", f"{CONFIG}num_nextn_predict_layers"),
    ({f"{CONFIG}layer_types": ["full_attention", "sliding_attention"]}, "architecture", f"{CONFIG}layer_types"),
    ({f"{CONFIG}hidden_act": "relu"}, "architecture", f"{CONFIG}hidden_act"),
    ({"model.model_config": {"offset": 0}, "pretrained_model_dir": "/models/none"}, "no_shape",
     "pretrained_model_dir"),
    ({"model": GONE}, "no_shape", "model"),
    ({"base_config": "other.yaml"}, "base_config", "base_config"),
    ({f"{CONFIG}offset": [1, 1]}, "offset", f"{CONFIG}offset"),
    ({f"{CONFIG}offset": [0, 0, 1]}, "offset", f"{CONFIG}offset"),
    ({f"{CONFIG}offset": [-4, 5]}, "offset", f"{CONFIG}offset"),
    ({"parallel_config.data_parallel": 0}, "wrong_type", "parallel_config.data_parallel"),
    ({"parallel_config.data_parallel": 10**30}, "wrong_type", "parallel_config.data_parallel"),
    ({"parallel_config": [1, 2]}, "wrong_type", "parallel_config"),
    ({"parallel.parallel_mode": 9}, "wrong_type", "parallel.parallel_mode"),
    ({"lr_schedule.learning_rate": "3e-4"}, "wrong_type", "lr_schedule.learning_rate"),
    ({"optimizer.betas": 0.9}, "wrong_type", "optimizer.betas"),
    ({f"{CONFIG}hidden_size": "wide"}, "wrong_type", f"{CONFIG}hidden_size"),
    ({"parallel_config.micro_batch_num": 1}, "micro_batches_fill_pipeline", "parallel_config.micro_batch_num"),
    ({"parallel_config.model_parallel": 3}, "heads_over_model_parallel", "parallel_config.model_parallel"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "rule", "key"), REFUSED, ids=lambda item: item if isinstance(item, str) else "")
def test_what_is_refused_stands_at_its_own_key(tmp_path, changes, rule, key):
    problems = refused(tmp_path, changes)
    found = {problem.rule: problem for problem in problems}
    assert rule in found, problems
    problem = found[rule]
    assert (problem.key, problem.file) == (key, str(tmp_path / "small.yaml"))
    stands = any(line.strip().startswith(f"{key.rpartition('.')[2]}:") for line in (tmp_path / "small.yaml").open())
    assert (problem.line is not None) == stands
    assert "msparallel has no such block" in problem.message or len(problem.message) > 20


def test_a_suggestion_can_be_typed_behind_the_file(tmp_path):
    change = {"parallel_config.micro_batch_num": 1}
    problem = refused(tmp_path, change)[0]
    assert problem.suggestion
    assert imported(tmp_path, change, overrides=problem.suggestion.split()).recipe.parallel.micro_batch_num >= 2


@pytest.mark.parametrize(("change", "told"), [
    (GONE, "states no run_mode"), (None, "states no run_mode"), ("", "states no run_mode"),
    ("predict", "generates text"), ("eval", "does not train"),
])  # fmt: skip
def test_a_run_mode_that_does_not_train(tmp_path, change, told):
    [problem] = refused(tmp_path, {"run_mode": change})
    assert told in problem.message and (problem.value == change or not change or change is GONE)


@pytest.mark.parametrize("size", [3, 16])
def test_a_shard_size_that_does_not_divide_the_copies_is_told_with_their_number(tmp_path, size):
    changes = {"parallel_config.context_parallel": 4, "parallel_config.context_parallel_algo": "colossalai_cp",
               "parallel.parallel_optimizer_config.optimizer_weight_shard_size": size}  # fmt: skip
    result = imported(tmp_path, changes)
    [told] = [item.reason for item in result.not_carried if item.key.endswith("optimizer_weight_shard_size")]
    assert "data_parallel x context_parallel = 8" in told and result.recipe.parallel.optimizer_shard


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1, "x", [], 10**30], ids=str)
@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "rms_norm_eps", "rope_theta"])
def test_a_wrong_number_in_a_model_config_is_blamed_on_it(tmp_path, name, value):
    given = {**preset_config("qwen3_8b"), name: value}
    bare = {"model.model_config": {"offset": 0}, "pretrained_model_dir": GONE}
    if value == 10**30 and name in ("rms_norm_eps", "rope_theta"):
        assert imported(tmp_path, bare, model_config=given).recipe
        return
    problem = next(problem for problem in refused(tmp_path, bare, model_config=given) if problem.key == CONFIG + name)
    assert (problem.file, problem.line) == ("--model-config", None)
    assert "the text 'nan'" not in problem.message and "the text 'inf'" not in problem.message


def test_an_override_without_a_key_is_told(tmp_path):
    problems = refused(tmp_path, None, overrides=["parallel.no_such=1"])
    assert problems[0].file == "command line"


@pytest.mark.parametrize("preset", ["qwen3_8b", "qwen3_30b_a3b", "llama3_8b", "qwen2_7b"])
def test_a_model_config_stands_in(tmp_path, preset):
    bare = {"model.model_config": {"offset": 0}, "pretrained_model_dir": "/models/none"}
    recipe = imported(tmp_path, bare, model_config=preset_config(preset)).recipe
    expected = preset_config(preset)
    assert recipe.model.preset == preset, recipe.model
    assert resolve(recipe).shape.hidden_size == expected["hidden_size"]


def test_a_config_json_beside_the_weights_is_read(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text(json.dumps(preset_config("qwen3_14b")))
    bare = {"model.model_config": {"offset": 0}, "pretrained_model_dir": str(tmp_path / "weights")}
    result = imported(tmp_path, bare)
    assert result.recipe.model.preset == "qwen3_14b"
    assert result.config.model_source == str(tmp_path / "weights" / "config.json")


def test_the_yaml_stands_over_the_config_json(tmp_path):
    recipe = imported(tmp_path, {f"{CONFIG}num_hidden_layers": 10, f"{CONFIG}offset": 0},
                      model_config=preset_config("qwen3_8b")).recipe  # fmt: skip
    assert (recipe.model.num_layers, recipe.model.hidden_size) == (10, 512)


def test_absent_side_files_are_told_and_never_fatal(tmp_path):
    side = "context.ascend_config.parallel_speed_up_json_path"
    result = imported(tmp_path, {side: "./no/such.json"})
    assert result.absent[side] == "./no/such.json"
    assert "/data/none_such_text_document" in result.absent["train_dataset.data_loader.config.data_path"]


def test_gradient_overlap_comes_from_the_side_file(tmp_path):
    (tmp_path / "speed.json").write_text('{"grad_computation_allreduce_overlap": true}')
    result = imported(tmp_path, {"context.ascend_config.parallel_speed_up_json_path": "speed.json"})
    assert result.recipe.parallel.overlap_gradients is True


def test_keys_that_stand_twice_are_told(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text().replace("  data_parallel: 2\n", "  data_parallel: 4\n  data_parallel: 2\n"))
    result = import_mindformers(path)
    assert result.recipe.parallel.data_parallel == 2
    repeated = [item for item in result.not_carried if item.key == "parallel_config.data_parallel"]
    assert len(repeated) == 1 and "MindFormers takes the last" in repeated[0].reason


def test_validate_says_whose_file_it_is(tmp_path):
    path = write(tmp_path)
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert error.value.problems[0].rule == "mindformers_file"
    assert f"msparallel import {path}" in str(error.value)


def test_the_fixture_is_in_mindformers_format():
    assert {"run_mode", "parallel_config", "runner_config", "trainer", "model"} <= set(document())
