"""Dry runs of MindFormers YAMLs: MindFormers' own model, trainer and optimizer, compiled for the simulated target."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
from interop.mindformers_files import EXPERTS, GONE, line_of, wheel_configs, write

from msparallel.compile.dryrun import DryRun, dry_run, recipe_job
from msparallel.compile.mindformers_job import mindformers_job
from msparallel.errors import RecipeError, UserError
from msparallel.interop.import_mindformers import import_mindformers
from msparallel.interop.mindformers import read_mindformers
from msparallel.interop.model_names import load_model_config
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(importlib.util.find_spec("mindformers") is None, reason="MindFormers is not installed here"),
]
SMALL = {
    "model.model_config.vocab_size": 512, "model.model_config.hidden_size": 64,
    "model.model_config.intermediate_size": 128, "model.model_config.num_hidden_layers": 2,
    "model.model_config.head_dim": 16, "model.model_config.seq_length": 64, "model.model_config.offset": 0,
    "train_dataset.data_loader.config.seq_length": 64, "runner_config.batch_size": 1,
    "parallel_config.model_parallel": 2, "parallel_config.micro_batch_num": 2,
    "parallel.parallel_optimizer_config": {"parallel_optimizer_threshold": 0},
}  # fmt: skip
"""Two layers on pp2 x dp2 x tp2; every weight is cut by the optimizer shard where it can be."""
NO_PIPELINE = {"parallel_config.pipeline_stage": 1, "parallel_config.micro_batch_num": 1}


def dried(path: Path, *ranks: int, depth: str = "full", given: str | None = None, overrides=()) -> DryRun:
    config = read_mindformers(path, load_model_config(given) if given else None, overrides)
    job = mindformers_job(config, depth, given, tuple(overrides))
    return dry_run(job, ranks or job.stage_ranks(), progress=False)


def imported(path: Path, tmp_path: Path, *ranks: int) -> DryRun:
    recipe = tmp_path / "imported.yaml"
    recipe.write_text(import_mindformers(path).text, encoding="utf-8")
    return dry_run(recipe_job(resolve(load_recipe(str(recipe))), "full"), ranks, progress=False)


def weights_of(changes: dict, layers: int = 2) -> int:
    """Trained numbers of a dense model in SMALL's shape."""
    heads, kv_heads, head_dim, hidden, ffn, vocab = 8, 4, 16, 64, 128, 512
    layer = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden + 3 * hidden * ffn
    return layers * (layer + 2 * hidden + 2 * head_dim) + 2 * vocab * hidden + hidden


def test_stages_hold_the_whole_model(tmp_path):
    done = dried(write(tmp_path, SMALL))
    assert [report.rank for report in done.ranks] == [0, 4]
    weights = {p.name: prod(p.part.shape) for report in done.ranks for p in report.parameters if p.role == "weight"}
    assert sum(weights.values()) == weights_of(SMALL)
    for report in done.ranks:
        assert report.layers == (report.stage,)
        names = [p.name for p in report.parameters if p.role == "weight" and "layers." in p.name]
        assert names and all(f"decoder.layers.{report.stage}." in name for name in names)
        assert report.optimizer_bytes >= 2 * report.weights_bytes
        assert report.gradients_bytes > 0 and report.peak.bytes > 0
    assert any("Put together by MindFormers" in note for note in done.notes)


def test_a_rank_holds_what_the_imported_recipes_rank_holds(tmp_path):
    path = write(tmp_path, SMALL | {"parallel.enable_parallel_optimizer": False})
    theirs, ours = dried(path, 0, 7), imported(path, tmp_path, 0, 7)
    for mindformers, recipe in zip(theirs.ranks, ours.ranks, strict=True):
        assert mindformers.weights_bytes == recipe.weights_bytes
        assert mindformers.gradients_bytes == recipe.gradients_bytes


def test_collectives_that_the_model_makes_itself_name_their_ranks(tmp_path):
    [report] = dried(write(tmp_path, SMALL), 6).ranks
    inside = [use for use in report.collectives if use.axes == ("tp",) and use.purpose not in ("gradient", "scalar")]
    assert inside and {use.ranks for use in inside} == {(6, 7)}
    large = [use for use in report.collectives if use.bytes > 1024]
    assert all(use.axes in (("tp",), ("pp",), ("dp",)) for use in large)


def test_representative_layers_give_what_all_layers_give(tmp_path):
    path = write(tmp_path, SMALL | {"model.model_config.num_hidden_layers": 9, "model.model_config.offset": [0, 1]})
    [few], [every] = dried(path, 4, depth="representative").ranks, dried(path, 4, depth="full").ranks
    assert few.layers == every.layers == (4, 5, 6, 7, 8)
    assert sorted((p.name, p.local_shape, p.bytes) for p in few.parameters) == sorted(
        (p.name, p.local_shape, p.bytes) for p in every.parameters
    )
    assert few.collectives == every.collectives
    assert few.operators == every.operators
    assert few.peak.bytes == pytest.approx(every.peak.bytes, rel=0.02)


@pytest.mark.parametrize("steps", [1, 2])
def test_one_stage(tmp_path, steps):
    path = write(tmp_path, SMALL | NO_PIPELINE | {"runner_config.gradient_accumulation_steps": steps})
    [report] = dried(path, 3).ranks
    assert report.layers == (0, 1)
    assert bool(report.gradients_bytes) == (steps > 1)


def test_experts(tmp_path):
    of_this_size = {"model.model_config.moe_intermediate_size": 32, "model.model_config.moe_grouped_gemm": True,
                    "model.model_config.routed_scaling_factor": 1.0}  # fmt: skip
    path = write(tmp_path, SMALL | EXPERTS | of_this_size)
    [report] = dried(path, 0).ranks
    experts = [p for p in report.parameters if p.role == "weight" and ".experts." in p.name]
    assert experts and any("AlltoAll" in use.op for use in report.collectives)
    for weight in experts:
        assert prod(weight.part.shape) == weight.optimizer_shard * 4 * prod(weight.local_shape)


def test_a_model_named_beside_the_file_and_overrides(tmp_path):
    path = write(tmp_path, SMALL | {"pretrained_model_dir": "/none"} | {
        f"model.model_config.{key}": GONE for key in ("model_type", "architectures", "num_hidden_layers")
    })  # fmt: skip
    given = tmp_path / "model.json"
    given.write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 4}), encoding="utf-8")
    done = dried(path, 2, given=str(given), overrides=["parallel_config.data_parallel=1"])
    assert str(done.mesh) == "pp2 x tp2 (4)" and done.ranks[0].layers == (2, 3)


DEGREES, LAYERS = "parallel_config.", "model.model_config.num_layers"


@pytest.mark.parametrize("changes, key, told", [
    ({DEGREES + "model_parallel": 3}, DEGREES + "model_parallel", "% 3"),
    ({DEGREES + "data_parallel": GONE, DEGREES + "dataparallel": 2}, DEGREES + "dataparallel", "mean data_parallel?"),
    ({"parallel_config": GONE}, "parallel.dataset_strategy", "Set parallel_config.data_parallel to 2"),
    ({"parallel.dataset_strategy": [[2, 1]]}, "parallel.dataset_strategy", "one entry for each input"),
    ({"parallel.parallel_mode": 0}, "parallel.parallel_mode", "Set parallel.parallel_mode to 1"),
    ({LAYERS: 2}, LAYERS, "Keep one of them"),
    ({LAYERS: 2, "model.model_config.num_hidden_layers": GONE}, LAYERS, "Write num_hidden_layers"),
])  # fmt: skip
def test_what_mindformers_refuses_is_told_at_the_files_key(tmp_path, changes, key, told):
    path = write(tmp_path, SMALL | changes)
    with pytest.raises(RecipeError) as error:
        dried(path, 0)
    [problem] = error.value.problems
    assert problem.key == key and told in problem.message
    assert problem.line == line_of(path, f"  {key.rpartition('.')[2]}:") and ", rank 0: " in problem.message


def test_top_level_values_can_be_typed(tmp_path):
    path = write(tmp_path, SMALL | {"run_mode": "predict", "use_legacy": True})
    done = dried(path, 0, overrides=["run_mode=finetune", "use_legacy=False", "use_parallel=False"])
    assert str(done.mesh) == "one device (1)"
    assert sum(prod(p.part.shape) for p in done.ranks[0].parameters if p.role == "weight") == weights_of(SMALL)


def test_what_mindformers_refuses_without_an_explanation_of_ours(tmp_path):
    path = write(tmp_path, SMALL | EXPERTS | {"model.model_config.moe_grouped_gemm": False})
    with pytest.raises(UserError, match="MindFormers, rank 0: NotImplementedError: .*moe_grouped_gemm = 'False'"):
        dried(path, 0)


def test_from_outside_nothing_is_written_or_printed_but_the_result(tmp_path):
    path = write(tmp_path, SMALL)
    folder = tmp_path / "empty"
    folder.mkdir()
    code = "import sys; from msparallel.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, "dryrun", "../small.yaml", "--rank", "0", "--json"],
        cwd=folder, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["source"] == "../small.yaml" and told["world_size"] == 8
    assert done.stderr.strip() == ""
    assert not list(folder.iterdir()) and sorted(p.name for p in tmp_path.iterdir()) == ["empty", path.name]


FOLDER = wheel_configs()


@pytest.mark.slow
@pytest.mark.parametrize("name, given, devices", [
    ("qwen3/pretrain_qwen3_32b_4k.yaml", None, 16), ("qwen3/finetune_qwen3.yaml", "qwen3_32b", 16),
    ("qwen3_moe/pretrain_qwen3_30b_a3b_4k.yaml", None, 16), ("telechat3/pretrain_telechat3_36b.yaml", None, 16),
    ("general/llm_finetune_dense_template.yaml", "qwen3_32b", 8),
    ("general/llm_finetune_moe_template.yaml", "qwen3_30b_a3b", 8),
    ("general/llm_pretrain_dense_template.yaml", "qwen3_32b", 8),
    ("general/llm_pretrain_moe_template.yaml", "qwen3_30b_a3b", 8),
    ("deepseek3/pretrain_deepseek3_12b_16p_pp16.yaml", None, 16),
    ("deepseek3/pretrain_deepseek3_671b.yaml", None, 256),
])  # fmt: skip
def test_files_of_the_wheel(name, given, devices):
    done = dried(FOLDER / name, 0, depth="auto", given=given)
    [report] = done.ranks
    assert done.world_size == devices
    assert report.weights_bytes > 2**28
    assert report.process_peak_bytes < 8 * 2**30


@pytest.mark.slow
def test_qwen3_32b_is_the_imported_recipe(tmp_path):
    path = FOLDER / "qwen3" / "pretrain_qwen3_32b_4k.yaml"
    theirs = dried(path, depth="representative")
    recipe = tmp_path / "imported.yaml"
    recipe.write_text(import_mindformers(path).text, encoding="utf-8")
    job = recipe_job(resolve(load_recipe(str(recipe))), "representative")
    ours = dry_run(job, job.stage_ranks(), progress=False)
    for mindformers, recipe_rank in zip(theirs.ranks, ours.ranks, strict=True):
        assert mindformers.layers == recipe_rank.layers
        assert mindformers.weights_bytes == recipe_rank.weights_bytes
