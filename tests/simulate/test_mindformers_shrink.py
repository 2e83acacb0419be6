"""A MindFormers YAML made small keeps its strategy; one process gets the same work."""

from __future__ import annotations

import math

import pytest
from interop.mindformers_files import EXPERTS, GONE, wheel_configs, write

from msparallel.compile.mindformers_job import mindformers_job
from msparallel.errors import RecipeError, UserError
from msparallel.interop.mindformers import read_mindformers
from msparallel.simulate.mindformers_shrink import MODEL, alone, global_batch, shrunk

pytestmark = pytest.mark.pure
STRATEGIES = {
    "pp2-dp2-tp4": {},
    "pp2-dp2-tp2-interleaved": {
        "parallel_config.model_parallel": 2, "parallel.pipeline_config": {"pipeline_interleave": True},
        "model.model_config.pp_interleave_num": 2, "model.model_config.offset": [[0, 0], [0, 1]],
    },
    "dp3-tp5": {
        "parallel_config.data_parallel": 3, "parallel_config.model_parallel": 5, "parallel_config.pipeline_stage": 1,
        "runner_config.gradient_accumulation_steps": 8,
    },
    "no optimizer shard": {"parallel.enable_parallel_optimizer": False},
    "megatron names": {
        "model.model_config.intermediate_size": GONE, "model.model_config.ffn_hidden_size": 1536,
        "model.model_config.num_key_value_heads": GONE, "model.model_config.num_query_groups": 4,
    },
    "experts": EXPERTS,
    "alone": {"use_parallel": False},
}  # fmt: skip


def small_of(path, *overrides, **how):
    config = read_mindformers(path, None, overrides)
    changes = shrunk(config, **how)
    return config, changes, read_mindformers(path, None, overrides, changes)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_stays_and_every_size_shrinks(tmp_path, name):
    config, _, small = small_of(write(tmp_path, STRATEGIES[name]))
    full, job = mindformers_job(config, "full"), mindformers_job(small, "full")
    assert job.mesh == full.mesh
    assert len(job.stage_layers) == len(full.stage_layers) and set(job.stage_layers) <= {1, 2}
    for key in ("enable_parallel_optimizer", "pipeline_config", "dataset_strategy", "parallel_mode"):
        assert small.tree.get(f"parallel.{key}") == config.tree.get(f"parallel.{key}")
    assert small.sequence_parallel == config.sequence_parallel and small.recompute == config.recompute
    assert small.micro_batches == min(config.micro_batches, 2 * max(1, job.mesh.pp)) and small.batch_size == 1
    model = small.model
    heads, cut = model["num_attention_heads"], config.model_parallel
    keys = next(model[key] for key in ("num_key_value_heads", "num_query_groups") if key in model)
    ffn = next(model[key] for key in ("intermediate_size", "ffn_hidden_size") if key in model)
    assert keys == heads and heads % cut == 0 and model["hidden_size"] % heads == 0
    everything = cut * config.data_parallel
    for size in (model["hidden_size"], ffn, model["vocab_size"]):
        assert size % everything == 0 and size <= 4 * math.lcm(32, everything)
    assert small.seq_length % cut == 0 and small.seq_length <= 20
    assert small.tree.get("train_dataset.data_loader.config.seq_length") == small.seq_length
    assert small.compute_dtype == small.params_dtype == "float32"
    assert model["hidden_dropout"] == model["attention_dropout"] == 0 and model["use_flash_attention"] is False


def test_weights_below_the_threshold_of_the_optimizer_shard_are_cut_too(tmp_path):
    key = "parallel.parallel_optimizer_config.parallel_optimizer_threshold"
    assert small_of(write(tmp_path))[1][key] == 0
    assert key not in small_of(write(tmp_path, {"parallel.enable_parallel_optimizer": False}))[1]


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_process_gets_the_same_model_and_the_same_sequences(tmp_path, name):
    path = write(tmp_path, STRATEGIES[name])
    _, changes, small = small_of(path)
    single = read_mindformers(path, None, (), {**changes, **alone(small)})
    assert mindformers_job(single, "full").mesh.size == 1
    assert global_batch(single) == global_batch(small) == single.batch_size
    different = {key for key in single.model if single.model[key] != small.model.get(key)}
    assert different <= {"offset", "pp_interleave_num"}
    assert single.tree.get("optimizer") == small.tree.get("optimizer")
    assert single.tree.get("lr_schedule") == small.tree.get("lr_schedule")


def test_what_is_typed_wins(tmp_path):
    _, changes, small = small_of(
        write(tmp_path), "model.model_config.hidden_size=64", "model.model_config.num_attention_heads=8",
        "lr_schedule.learning_rate=0.5", "parallel_config.micro_batch_num=3",
    )  # fmt: skip
    assert small.model["hidden_size"] == 64 and small.micro_batches == 3
    assert small.model["num_attention_heads"] == small.model["num_key_value_heads"] == 8
    assert small.tree.get("lr_schedule.base_lr") == 0.5
    assert MODEL + "hidden_size" not in changes and changes[MODEL + "num_hidden_layers"] == 2


def test_a_schedule_that_is_typed_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"lr_schedule.warmup_steps: .* lr_schedule.learning_rate is the rate"):
        small_of(write(tmp_path), "lr_schedule.warmup_steps=3")


def test_sizes_that_are_less_already_stay(tmp_path):
    _, changes, small = small_of(write(tmp_path, {"model.model_config.vocab_size": 24}))
    assert small.model["vocab_size"] == 24 and MODEL + "vocab_size" not in changes


def test_full_keeps_sizes_batch_and_the_own_learning_rate(tmp_path):
    config, changes, small = small_of(write(tmp_path), full=True)
    assert {key for key in changes if not key.startswith("lr_schedule.")} == {
        *(MODEL + name for name in (
            "compute_dtype", "layernorm_compute_dtype", "softmax_compute_dtype", "rotary_dtype", "hidden_dropout",
            "attention_dropout", "use_flash_attention", "num_key_value_heads",
        )), "print_separate_loss",
    }  # fmt: skip
    assert small.model["num_key_value_heads"] == config.model["num_attention_heads"]
    assert small.tree.get("lr_schedule.base_lr") == 2e-4 and global_batch(small) == global_batch(config)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")) if (FOLDER := wheel_configs()) else [])
def test_files_of_the_wheel(path):
    try:
        config = read_mindformers(path)
        mindformers_job(config, "full")
    except RecipeError:
        return  # not for training, or without numbers of its own
    small = read_mindformers(path, None, (), shrunk(config))
    assert mindformers_job(small, "full").mesh == mindformers_job(config, "full").mesh
