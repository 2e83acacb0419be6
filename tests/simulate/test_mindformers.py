"""A cluster with MindFormers' own step computes what the same step computes alone, and what it does not is told."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from interop.mindformers_files import write

from msparallel.interop.mindformers import read_mindformers
from msparallel.simulate.mindformers import MindFormersSimulation, simulate_mindformers

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(importlib.util.find_spec("mindformers") is None, reason="MindFormers is not installed here"),
]
STEPS = 5
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


def test_one_average_over_all_tokens(tmp_path):
    found = simulated(tmp_path, PIPELINE | {"calculate_per_token_loss": True, "parallel_config.micro_batch_num": 4})
    assert found.config.micro_batches == 4
    check_same(found)
    assert found.uneven_over_tokens.same and not found.uneven_means.same


def test_replicas_average_over_the_tokens_of_all(tmp_path):
    changes = {"parallel_config.pipeline_stage": 1, "parallel_config.model_parallel": 1,
               "parallel_config.use_seq_parallel": False}  # fmt: skip
    found = simulated(tmp_path, CUT | changes)
    assert str(found.mesh) == "dp2 (2)"
    check_same(found)
    assert found.uneven_over_tokens.same


def test_weights_that_mean_another_model_under_tensor_parallel_are_told(tmp_path):
    found = simulated(tmp_path, TENSOR | {"model.model_config.use_contiguous_weight_layout_attention": True}, steps=2)
    assert not found.same and found.gradients.max_relative > 1e-2


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
