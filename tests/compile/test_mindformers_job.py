"""What a dry run makes of a MindFormers YAML before anything is compiled."""

from __future__ import annotations

import importlib.util
import json

import pytest
from interop.mindformers_files import EXPERTS, GONE, document, line_of, wheel_configs, write

from msparallel.compile.mindformers_job import TRAINING_MODELS, mindformers_job, require_installed
from msparallel.compile.request import Request
from msparallel.compile.terms import read_terms
from msparallel.errors import RecipeError, UserError
from msparallel.interop.mindformers import read_mindformers
from msparallel.interop.model_names import EXPERT_NAMES, NAMES, preset_config
from msparallel.recipe.values import misfits

pytestmark = pytest.mark.pure
DEEP = {"model.model_config.num_hidden_layers": 33}


def job(path, *overrides, depth="auto", given=None):
    config = read_mindformers(path, preset_config(given) if given else None, overrides)
    return mindformers_job(config, depth, given, overrides)


def refused(path, *overrides, **how):
    with pytest.raises(RecipeError) as error:
        job(path, *overrides, **how)
    [problem] = error.value.problems
    return problem


def test_a_shallow_model_is_compiled_as_it_is(tmp_path):
    found = job(write(tmp_path))
    assert str(found.mesh) == "pp2 x dp2 x tp4 (16)" and found.devices_per_node == 8
    assert found.stage_layers == (4, 5)
    [variant] = found.variants
    assert variant.stage_layers == (4, 5) and variant.request.layers_of_a_group is None
    assert variant.request.kind == "mindformers" and variant.request.world_size == 16
    assert found.notes == ()


def test_a_deep_model_is_compiled_with_two_and_three_layers_of_each_group(tmp_path):
    found = job(write(tmp_path, DEEP))
    assert found.stage_layers == (16, 17)
    assert [variant.stage_layers for variant in found.variants] == [(2, 2), (3, 3)]
    assert [variant.request.layers_of_a_group for variant in found.variants] == [2, 3]
    assert "Compiled with 4 and with 6 layers; what 33 layers give" in found.notes[0]
    whole = job(write(tmp_path, DEEP), depth="full")
    assert [variant.stage_layers for variant in whole.variants] == [(16, 17)]
    assert whole.variants[0].memory_bytes > found.variants[1].memory_bytes


def test_interleaved_groups(tmp_path):
    changes = {
        "model.model_config.num_hidden_layers": 32, "model.model_config.offset": 0,
        "model.model_config.pp_interleave_num": 2, "parallel.pipeline_config.pipeline_interleave": True,
    }  # fmt: skip
    found = job(write(tmp_path, changes))
    assert found.stage_layers == (8, 8, 8, 8)
    assert [variant.stage_layers for variant in found.variants] == [(2,) * 4, (3,) * 4]


@pytest.mark.parametrize("changes, told", [
    ({"model.model_config.first_k_dense_replace": 3}, "first_k_dense_replace 3"),
    ({"model.model_config.moe_layer_freq": [1, 0, 1]}, "moe_layer_freq [1, 0, 1]"),
    ({"model.model_config.num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1"),
    ({"recompute_config.recompute": [3, 4]}, "recompute_config.recompute counts layers"),
    ({"recompute_config.select_recompute": {"mlp.mul": [3, 4]}}, "select_recompute counts layers"),
    ({"swap_config.swap": True}, "swap_config.swap names layers"),
    ({"model.model_config.model_type": "deepseek_v3"}, "deepseek_v3 begins with dense layers"),
])  # fmt: skip
def test_layers_that_are_not_alike_are_all_compiled(tmp_path, changes, told):
    path = write(tmp_path, DEEP | changes)
    found = job(path)
    assert [variant.stage_layers for variant in found.variants] == [(16, 17)]
    assert told in found.notes[0]
    with pytest.raises(UserError, match="--depth representative: layers are not alike") as error:
        job(path, depth="representative")
    assert told in str(error.value) and "--depth full" in str(error.value)


@pytest.mark.parametrize("changes", [
    {"model.model_config.first_k_dense_replace": 0}, {"recompute_config.select_recompute": ["mlp.mul"]},
    {"recompute_config.recompute": False}, {"model.model_config.num_nextn_predict_layers": 0}, EXPERTS,
])  # fmt: skip
def test_layers_that_are_alike(tmp_path, changes):
    assert len(job(write(tmp_path, DEEP | changes)).variants) == 2


def test_representative_layers_of_a_short_model(tmp_path):
    with pytest.raises(UserError, match="groups of 1, 2 layers"):
        job(write(tmp_path, {"model.model_config.num_hidden_layers": 3}), depth="representative")


@pytest.mark.parametrize("changes, rule, key, told", [
    ({"use_legacy": True}, "legacy", "use_legacy", "use_legacy: False"),
    ({"use_legacy": GONE}, "legacy", "use_legacy", "where the key is absent"),
    ({"run_mode": "predict"}, "not_training", "run_mode", "train or finetune"),
    ({"run_mode": GONE}, "not_training", "run_mode", "states no run_mode"),
    ({"run_mode": None}, "not_training", "run_mode", "states no run_mode"),
    ({"context.mode": 1}, "pynative", "context.mode", "Set context.mode to 0"),
    ({"model.model_config.offset": [1, 1]}, "offset", "model.model_config.offset", "9 layers over 2 stages x 1 are 4"),
    ({"model.model_config.num_hidden_layers": 0}, "wrong_type", "model.model_config.num_hidden_layers", "from 1 to"),
    ({"model.model_config.num_hidden_layers": GONE}, "no_shape", "model", "--model-config qwen3_8b"),
    ({"model.model_config.model_type": "glm4_moe"}, "architecture", "model.model_config.model_type", "no training"),
    ({"model.model_config": {}, "pretrained_model_dir": "/none"}, "no_shape", "pretrained_model_dir", "/none"),
])  # fmt: skip
def test_what_is_not_compiled(tmp_path, changes, rule, key, told):
    path = write(tmp_path, changes)
    problem = refused(path)
    assert (problem.rule, problem.key, problem.file) == (rule, key, str(path))
    assert told in problem.message
    if changes.get(key, GONE) is not GONE:
        assert problem.line


COLUMNS = "train_dataset.input_columns"


@pytest.mark.parametrize("changes, key", [
    *(({"train_dataset": value}, "train_dataset") for value in (GONE, None, {})),
    *(({COLUMNS: value}, COLUMNS) for value in (None, [], "input_ids", [1], 3, {"a": 1})),
    ({"train_dataset": {"num_parallel_workers": 8}}, COLUMNS),
    ({COLUMNS: GONE, "train_dataset.data_loader.type": "HFDataLoader"}, COLUMNS),
])  # fmt: skip
def test_without_columns_there_is_no_batch_to_compile(tmp_path, changes, key):
    problem = refused(write(tmp_path, changes))
    assert (problem.rule, problem.key) == ("no_columns", key) and "input_columns" in problem.message


@pytest.mark.parametrize("value", [[], "data", 3])
def test_a_data_set_is_a_section(tmp_path, value):
    assert refused(write(tmp_path, {"train_dataset": value})).message.startswith("train_dataset takes a section")


@pytest.mark.parametrize("changes", [
    {COLUMNS: GONE},
    {COLUMNS: GONE, "train_dataset.data_loader": {"type": "HFDataLoader", "create_attention_mask": True}},
])  # fmt: skip
def test_columns_that_mindformers_knows_by_itself(tmp_path, changes):
    assert job(write(tmp_path, changes))


def fits(name, value):
    return name not in misfits("model", {name: value})


IMPOSSIBLE = [(theirs, value) for theirs, ours in (NAMES | EXPERT_NAMES).items()
              for value in ("x", 0, -1, 1.5, 10**21, [1], {"a": 1}, True, float("nan"), float("inf"))
              if not fits(ours, value)]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_numbers_that_no_model_has_are_told_before_anything_is_compiled(tmp_path, name, value):
    path = write(tmp_path, EXPERTS | {f"model.model_config.{name}": value})
    problem = refused(path)
    assert (problem.key, problem.rule) == (f"model.model_config.{name}", "wrong_type")
    assert problem.message.startswith(f"{name} takes ") and problem.line == line_of(path, f"    {name}:")


def test_memory_grows_with_layers_experts_and_graphs_of_their_own(tmp_path):
    dense, experts, unshared = (
        job(write(tmp_path, DEEP | changes), depth="full").variants[0].memory_bytes
        for changes in ({}, EXPERTS, {"model.model_config.disable_lazy_inline": True})
    )
    assert dense < experts < unshared


def test_experts_tokens_are_not_counted(tmp_path):
    assert "How many tokens an expert gets" in " ".join(job(write(tmp_path, EXPERTS)).notes)
    assert "expert" not in " ".join(job(write(tmp_path)).notes)


def test_a_model_named_beside_the_file(tmp_path):
    path = write(tmp_path, {"model.model_config": {"offset": 0}, "pretrained_model_dir": "/none"})
    found = job(path, given="qwen3_8b")
    assert found.stage_layers == (18, 18)
    assert found.variants[0].request.model_config == "qwen3_8b"
    config = tmp_path / "config.json"
    config.write_text(json.dumps(preset_config("qwen3_32b")), encoding="utf-8")
    read = read_mindformers(path, json.loads(config.read_text()))
    found = mindformers_job(read, "full", str(config))
    assert found.stage_layers == (32, 32) and found.variants[0].request.model_config == str(config.resolve())


@pytest.mark.parametrize("mode, mesh", [(0, "dp2 (2)"), (1, "pp2 x dp2 x tp4 (16)"), (2, "pp2 x dp2 x tp4 (16)")])
def test_degrees_that_count_in_a_mode(tmp_path, mode, mesh):
    found = job(write(tmp_path, {"parallel.parallel_mode": mode}))
    assert str(found.mesh) == mesh
    assert sum(found.stage_layers) == 9


def test_overrides_are_mindformers_own_keys(tmp_path):
    path = write(tmp_path)
    found = job(path, "parallel_config.data_parallel=4", "model.model_config.num_hidden_layers=10",
                "model.model_config.offset=0", "parallel_config.context_parallel=2")  # fmt: skip
    assert str(found.mesh) == "pp2 x dp4 x cp2 x tp4 (64)" and found.stage_layers == (5, 5)
    request = found.variants[0].request
    config = read_mindformers(path, None, request.overrides)
    assert config.changes["parallel.dataset_strategy"] == [[4, 1]] * 4, "its first numbers were data_parallel's"
    assert read_terms(request).degrees["dp"] == 4
    assert document()["parallel_config"]["data_parallel"] == 2


@pytest.mark.parametrize("text, told", [
    ("parallel_config.model_paralel=8", "Did you mean parallel_config.model_parallel=...?"),
    ("parallel.model_parallel=8", "Did you mean parallel_config.model_parallel=...?"),
    ("parallel_config.model_parallel", "dotted keys"),
    ("parallel_config.model_parallel=", "Nothing stands after"),
    ("nowhere.at.all=1", "dotted keys"),
    ("parallel_config.model_parallel.deeper=1", "dotted keys"),
    ("parallel_config.model_parallel=[", "not"),
    ("parallel_config.model_parallel=two", "whole number"),
    ("=3", "dotted keys"),
    ("run_mod=train", "Did you mean run_mode=...?"),
    ("model_parallel=8", "Did you mean parallel_config.model_parallel=...?"),
    ("parallel_config=3", "such as parallel_config.data_parallel=..."),
    ("parallel_config={data_parallel: 4}", "such as parallel_config.data_parallel=..."),
    ("callbacks.0.type=X", "callbacks is a list"),
    ("seed.deeper=1", "Did you mean seed=...?"),
    ("foo=1", "dotted keys"),
    ("parallel_config..model_parallel=1", "dotted keys"),
])  # fmt: skip
def test_overrides_that_mean_nothing(tmp_path, text, told):
    problem = refused(write(tmp_path), text)
    assert told in str(problem)
    assert (problem.file, problem.line) == ("command line", None)
    key, equals, value = text.partition("=")
    assert not (equals and value) or f"Did you mean {key}=" not in problem.message


def test_what_is_typed_can_make_a_section_and_nothing_below_a_value(tmp_path):
    path = write(tmp_path, {"parallel_config": GONE, "parallel.dataset_strategy": [[1, 1]] * 4})
    assert str(job(path, "parallel_config.data_parallel=2").mesh) == "dp2 (2)"
    with pytest.raises(RecipeError, match="foo.x"):
        job(path, "foo=1", "foo.x=2")


@pytest.mark.parametrize("text, rule", [
    ("run_mode=predict", "not_training"),
    ("use_legacy=True", "legacy"),
    ("context.mode=1", "pynative"),
    ("model.model_config.offset=[1, 1]", "offset"),
    ("model.model_config.num_hidden_layers=0", "wrong_type"),
    ("model.model_config.hidden_size=wide", "wrong_type"),
    ("parallel_config.model_parallel=x", "wrong_type"),
    ("parallel.parallel_mode=9", "wrong_type"),
    ("train_dataset.input_columns=[]", "no_columns"),
    ("model.model_config.model_type=glm4_moe", "architecture"),
])  # fmt: skip
def test_a_typed_value_is_blamed_on_the_command_line(tmp_path, text, rule):
    problem = refused(write(tmp_path), text)
    assert (problem.file, problem.line, problem.rule) == ("command line", None, rule)
    assert problem.key == text.partition("=")[0]


def test_top_level_values_can_be_typed(tmp_path):
    path = write(tmp_path, {"run_mode": GONE, "use_legacy": True, "use_parallel": False})
    found = job(path, "run_mode=finetune", "use_legacy=False", "use_parallel=True")
    assert str(found.mesh) == "pp2 x dp2 x tp4 (16)"
    assert read_terms(found.variants[0].request).config.run_mode == "finetune"


@pytest.mark.parametrize("name, value", [("hidden_size", "x"), ("rms_norm_eps", float("nan")), ("seq_length", "x"),
                                         ("num_hidden_layers", 0), ("model_type", "glm4_moe")])  # fmt: skip
def test_a_value_beside_the_file_is_blamed_on_its_own_file(tmp_path, name, value):
    for given, folder, place in (({name: value}, "", "--model-config"), (None, "weights", "weights/config.json")):
        (tmp_path / "weights").mkdir(exist_ok=True)
        (tmp_path / "weights" / "config.json").write_text(json.dumps({name: value}), encoding="utf-8")
        changes = {"pretrained_model_dir": str(tmp_path / folder)} if folder else {}
        path = write(tmp_path, changes | {f"model.model_config.{name}": GONE})
        with pytest.raises(RecipeError) as error:
            mindformers_job(read_mindformers(path, given))
        [problem] = error.value.problems
        assert problem.key == f"model.model_config.{name}" and problem.line is None
        assert problem.file == (str(tmp_path / place) if folder else place)


def test_the_same_override_twice(tmp_path):
    problem = refused(write(tmp_path), "parallel_config.model_parallel=2", "parallel_config.model_parallel=8")
    assert "Given twice: 2 and 8" in problem.message


def test_a_problem_stands_at_the_files_line(tmp_path):
    path = write(tmp_path, {"model.model_config.offset": [3, 3]})
    assert refused(path).line == line_of(path, "offset:")


@pytest.mark.skipif(importlib.util.find_spec("mindformers") is not None, reason="MindFormers is installed here")
def test_without_mindformers():
    with pytest.raises(UserError, match="not installed") as error:
        require_installed()
    assert "pip install 'msparallel[mindformers]'" in str(error.value)


FOLDER = wheel_configs()
WHEEL = [path for path in sorted(FOLDER.rglob("*.yaml")) if path.name.startswith(("pretrain_", "finetune_", "llm_"))
         ] if FOLDER else []  # fmt: skip


@pytest.mark.parametrize("path", WHEEL, ids=lambda path: path.name)
def test_files_of_the_wheel(path):
    try:
        found = job(path)
    except RecipeError as error:
        assert len(error.problems) == 1
        assert error.problems[0].rule in ("legacy", "no_shape", "offset")
        return
    config = read_mindformers(path)
    assert config.model_type in TRAINING_MODELS
    assert sum(found.stage_layers) == config.model["num_hidden_layers"]
    assert isinstance(found.variants[0].request, Request)
