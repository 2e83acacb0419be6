"""A cluster with MindFormers' own step computes what the same step computes alone, and what it does not is told."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from interop.mindformers_files import write

from msparallel.cli.simulate_mindformers_text import mindformers_text
from msparallel.errors import UserError
from msparallel.interop.mindformers import read_mindformers
from msparallel.simulate.mindformers import MindFormersSimulation, simulate_mindformers

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(importlib.util.find_spec("mindformers") is None, reason="MindFormers is not installed here"),
]
STEPS = 5
KV_HEADS = "model.model_config.num_key_value_heads"
CUT = {"parallel_config.model_parallel": 2, "parallel_config.micro_batch_num": 2}
"""pp2 x dp2 x tp2, as the file has the rest: optimizer shard, sequence parallel, recompute, clipped gradients."""
NO_DATA_PARALLEL = {"parallel_config.data_parallel": 1, "parallel.dataset_strategy": [[1, 1]] * 4}
PIPELINE = CUT | NO_DATA_PARALLEL | {"parallel_config.model_parallel": 1, "parallel_config.use_seq_parallel": False}
TENSOR = CUT | NO_DATA_PARALLEL | {"parallel_config.pipeline_stage": 1}


def simulated(folder: Path, changes: dict, *overrides: str, steps: int = STEPS) -> MindFormersSimulation:
    path = write(folder, changes)
    config = read_mindformers(path, None, overrides)
    found = simulate_mindformers(config, overrides=overrides, steps=steps, progress=False)
    assert found.deadlock is None
    assert len(found.cluster_losses) == len(found.single_losses) == steps
    return found


def check_same(found: MindFormersSimulation) -> None:
    assert found.max_rel_loss_error <= 1e-5
    assert found.gradients.max_relative <= 1e-5, max(found.gradients.relative.items(), key=lambda item: item[1])
    assert found.parameters.max_absolute <= 1e-4, max(found.parameters.absolute.items(), key=lambda item: item[1])
    assert found.replicas_apart == 0
    assert found.same


@pytest.mark.parametrize("changes", [{}, {"parallel.enable_parallel_optimizer": False}], ids=["shard", "whole"])
def test_a_cluster_computes_what_one_process_computes(tmp_path, changes):
    found = simulated(tmp_path, CUT | changes)
    assert str(found.mesh) == "pp2 x dp2 x tp2 (8)" and found.config.micro_batches == 2
    check_same(found)
    assert len(set(found.single_losses)) == STEPS
    # MindFormers averages every micro-batch by itself where sequences count different numbers of tokens.
    assert found.uneven_means.same
    assert found.uneven_over_tokens.gradients.max_relative > 1e-2


def test_accumulated_gradients_without_a_pipeline(tmp_path):
    found = simulated(tmp_path, CUT | {"parallel_config.pipeline_stage": 1,
                                       "runner_config.gradient_accumulation_steps": 2})  # fmt: skip
    assert str(found.mesh) == "dp2 x tp2 (4)"
    check_same(found)
    assert found.uneven_means.same and not found.uneven_over_tokens.same


@pytest.mark.parametrize("per_token", [False, True])
def test_replicas_average_over_the_tokens_of_all(tmp_path, per_token):
    changes = {"parallel_config.pipeline_stage": 1, "parallel_config.model_parallel": 1,
               "parallel_config.use_seq_parallel": False, "calculate_per_token_loss": per_token}  # fmt: skip
    found = simulated(tmp_path, CUT | changes, steps=2)
    assert str(found.mesh) == "dp2 (2)"
    check_same(found)
    assert found.uneven_over_tokens.same


def test_two_groups_of_layers_on_a_stage(tmp_path):
    changes = {"parallel.pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"},
               "model.model_config.pp_interleave_num": 2, "model.model_config.offset": [[0, 0], [0, 1]]}  # fmt: skip
    found = simulated(tmp_path, PIPELINE | changes, steps=2)
    assert found.config.stage_layers(4) == (1, 1, 1, 1)
    check_same(found)
    assert found.uneven_means.same


@pytest.mark.parametrize(("key", "weight"), [
    ("use_contiguous_weight_layout_attention", "linear_qkv"), ("use_interleaved_weight_layout_mlp", "linear_fc1"),
])  # fmt: skip
def test_weights_that_are_another_model_under_tensor_parallel_are_told(tmp_path, key, weight):
    found = simulated(tmp_path, TENSOR | {f"model.model_config.{key}": weight == "linear_qkv"}, steps=2)
    assert {name.split(".")[-2] for name in found.reordered} == {weight}
    check_same(found)
    assert found.uneven_over_tokens.same
    assert not found.as_stored.same and found.as_stored.gradients.max_relative > 0.1
    assert f"{weight} put in the order in which MindFormers' ranks read them" in mindformers_text(found)


def test_a_copy_that_nothing_reads_is_told(tmp_path):
    found = simulated(tmp_path, PIPELINE | {"model.model_config.tie_word_embeddings": True}, steps=2)
    assert found.same and found.replicas_apart > 0
    assert "what\n  the last stage keeps of its own is never read" in mindformers_text(found)


def test_keys_that_serve_several_heads_are_refused_with_what_was_changed(tmp_path):
    with pytest.raises(UserError, match="changed for execution: .*use_flash_attention=false"):
        simulated(tmp_path, TENSOR, "model.model_config.num_attention_heads=4", KV_HEADS + "=2")


def test_the_command(tmp_path):
    path = write(tmp_path, TENSOR | {"model.model_config.hidden_act": "swiglu",
                                     "model.model_config.tie_word_embeddings": True})  # fmt: skip
    command = [sys.executable, "-m", "msparallel", "simulate", str(path), "--steps", "2"]
    done = subprocess.run(
        [*command, "--json", "model.model_config.hidden_size=48"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["same"] is True and told["world_size"] == 2 and told["source"] == str(path)
    assert told["max_rel_loss_error"] <= 1e-5 and told["uneven_over_tokens"]["max_rel_gradient_error"] <= 1e-5
    assert told["shrunk_to"]["model.model_config.num_hidden_layers"] == 2
    assert "model.model_config.hidden_size" not in told["shrunk_to"]
    assert len(told["losses"]["cluster"]) == 2
    refused = subprocess.run([*command, "--timeline"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "does not name" in refused.stderr
