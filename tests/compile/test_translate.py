"""What the engine refuses, told in the terms of the file: recorded words of MindSpore, and a few provoked for real."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from tiny_recipe import arguments, environment

from msparallel.compile import terms as job_terms
from msparallel.compile.refusal import network_place, read_refusal
from msparallel.compile.request import Request
from msparallel.compile.translate import SPEAKERS, engine_error
from msparallel.errors import Problem, RecipeError, UserError
from msparallel.recipe import load
from msparallel.recipe.override import read_overrides, with_values
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules import find_problems

RECORDED = json.loads((Path(__file__).parent / "refusals.json").read_text(encoding="utf-8"))
"""name -> {kind, text, log} of one refusal each, as MindSpore 2.9 and MindFormers 1.9 gave them; stacks shortened."""
BASE: dict[str, dict[str, object]] = {
    "model": {
        "num_layers": 4,
        "hidden_size": 64,
        "num_heads": 4,
        "num_kv_heads": 4,
        "ffn_size": 128,
        "vocab_size": 320,
        "vocab_multiple": 16,
    },
    "parallel": {"mode": "semi_auto_parallel", "data_parallel": 2, "model_parallel": 2, "pipeline_stages": 2},
    "train": {"global_batch_size": 8, "micro_batch_size": 2, "seq_length": 32, "dtype": "bfloat16"},
    "cluster": {"hardware": "atlas_800t_a2"},
}
WIDE = {"parallel.pipeline_stages": 1, "parallel.model_parallel": 4}
SEARCH = {**WIDE, "parallel.mode": "auto_parallel"}


def write(folder: Path, changes: dict[str, object]) -> tuple[Path, dict[str, int]]:
    """A recipe with changes; returns its path and the line of every key."""
    sections = {name: dict(values) for name, values in BASE.items()}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(sections, sort_keys=False), encoding="utf-8")
    lines, section = {}, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        name = line.partition(":")[0]
        if name.strip() == name:
            section = name
        else:
            lines[f"{section}.{name.strip()}"] = number
    return path, lines


def translated(folder: Path, name: str, source: Path, kind: str = "recipe") -> UserError:
    """A recorded refusal, as if it had come from compiling a file."""
    place = folder / "rank_0"
    place.mkdir()
    (place / "log.txt").write_text(RECORDED[name]["log"], encoding="utf-8")
    request = Request(source=str(source), kind=kind, overrides=[], world_size=8, folder=str(place))
    return engine_error(request, RECORDED[name]["kind"], RECORDED[name]["text"])


CASES = [  # recorded refusal, the recipe it came from, key, words of the explanation, words of MindSpore
    (
        "heads",
        {**WIDE, "model.num_heads": 6, "model.num_kv_heads": 6, "model.hidden_size": 96},
        "parallel.model_parallel",
        ["self_attn.rotate", "(Mul)", "num_heads 6 is cut over model_parallel 4", "6 % 4 = 2"],
        "shape value 6 at dim index 2",
    ),
    ("key_heads", {**WIDE, "model.num_kv_heads": 2}, "parallel.model_parallel", ["num_kv_heads 2", "2 % 4 = 2"],
     "shape value 2"),
    ("feed_forward", {**WIDE, "model.ffn_size": 130}, "parallel.model_parallel",
     ["layers.mlp.gate_proj.matmul (MatMul)", "ffn_size 130", "130 % 4 = 2"], "shape value 130"),
    ("vocabulary", {**WIDE, "model.vocab_size": 322, "model.vocab_multiple": 1}, "parallel.model_parallel",
     ["cross_entropy", "the vocabulary's 322 rows", "322 % 4 = 2"], "shape value 322"),
    ("sequence_over_context",
     {"parallel.model_parallel": 1, "parallel.context_parallel": 2, "train.seq_length": 31},
     "parallel.context_parallel", ["seq_length 31", "31 % 2 = 1"], "shape value 31"),
    ("tokens_over_sequence",
     {"parallel.sequence_parallel": True, "train.seq_length": 31, "train.micro_batch_size": 1},
     "parallel.model_parallel",
     ["data_parallel 2 x micro_batch_size 1 x seq_length 31 is cut over data_parallel 2 x model_parallel 2",
      "62 % 4 = 2"],
     "shape value 62"),
    ("ulysses_heads",
     {"parallel.pipeline_stages": 1, "parallel.context_parallel": 4, "parallel.context_parallel_algo": "ulysses"},
     "parallel.context_parallel", ["Transpose", "num_heads 4 / model_parallel 2 = 2", "2 % 4 = 2"],
     "the slice number is 4"),
    ("one_micro_batch", {"train.global_batch_size": 4}, "parallel.micro_batch_num",
     ["at least 2 micro-batches", "has 1"], "batch data must be split"),
    ("few_micro_batches", {"train.global_batch_size": 4}, "parallel.micro_batch_num",
     ["at least 2 micro-batches"], "greater than or equal to stage_num"),
    ("odd_micro_batches", {}, "parallel.micro_batch_num", ["16 rows", "16 % 3 = 1"], "must be divided by micro size"),
    ("device_number",
     {"parallel.pipeline_stages": 1, "parallel.data_parallel": 3, "train.global_batch_size": 12},
     "parallel.data_parallel", ["data_parallel 3 x model_parallel 2: 6 devices", "multiple of 8"], "device_num: 6"),
    ("three_stages", {}, "parallel.pipeline_stages", ["8 % 3 = 2"], "split_stage_num : 3"),
    ("stage_without_layers", {"parallel.pipeline_stages": 4, "model.num_layers": 3, "train.global_batch_size": 16},
     "parallel.pipeline_stages", ["4 stages, but only 3", "has 3 layers"], "stage used: 3"),
    ("no_stages", {}, "parallel.stage_layers", ["2 stages, but only 0", "model's code"], "stage used: 0"),
    ("stages_back", {}, "parallel.stage_layers", ["stage 1 feeds one on stage 0"], "PreNode's stage:1"),
    ("no_accumulation", {}, "parallel.pipeline_stages", ["accumulates gradients"], "pointer[grad_accu] is null"),
    ("interleave", {"parallel.virtual_stages": 2}, "parallel.virtual_stages", ["lazy_inline"], "enable lazy_inline"),
    ("shard_level", {**WIDE, "parallel.optimizer_shard": "level3"}, "parallel.optimizer_shard", ["level2 and level3"],
     "optimizer level 2/3"),
    ("shard_size",
     {"parallel.pipeline_stages": 1, "parallel.data_parallel": 8, "parallel.model_parallel": 1,
      "train.global_batch_size": 32, "parallel.optimizer_shard": True, "parallel.optimizer_shard_size": 32},
     "parallel.optimizer_shard_size", ["over 32 of 16 devices"], "should not exceed the device num 16"),
    ("shard_size",
     {"parallel.pipeline_stages": 1, "parallel.data_parallel": 2, "parallel.context_parallel": 2,
      "parallel.optimizer_shard": True, "parallel.optimizer_shard_size": 32},
     "parallel.optimizer_shard_size", ["hold them alike, data_parallel 2 x context_parallel 2"], "device num 16"),
    ("recursive_power_of_two",
     {"parallel.mode": "auto_parallel", "parallel.pipeline_stages": 1, "parallel.data_parallel": 6,
      "parallel.model_parallel": 4, "train.global_batch_size": 24, "parallel.search_mode": "recursive_programming"},
     "parallel.search_mode", ["power of two of devices, not 24"], "power of 2"),
    ("recursive_plain", {**SEARCH, "model.attention": "plain"}, "model.attention",
     ["weigh (Mul)", "[128] and [16]", "the search"], "need to broadcast"),
    ("propagation_batch", {**SEARCH, "parallel.search_mode": "sharding_propagation"}, "parallel.search_mode",
     ["data_parallel 2", "8 devices"], "No available strategy"),
    ("search_cholesky", SEARCH, "parallel.mode", ["no strategy for Cholesky"], "can not be split"),
    ("search_gather", {**SEARCH, "model.num_experts": 4, "model.experts_per_token": 2, "model.expert_ffn_size": 32},
     "parallel.mode", ["no strategy for Gather"], "strategy len: 5"),
    ("propagation_experts", {**SEARCH, "parallel.search_mode": "sharding_propagation"}, "parallel.search_mode",
     ["{1, 24} and {12}", "the search"], "accumulate of x_shape"),
    ("cholesky", WIDE, "parallel.mode", ["Cholesky", "does not cut"], "can not be split"),
    ("softmax", WIDE, "parallel.mode", ["Softmax", "does not cut"], "axis dimension(4) is not 1"),
    ("strategy_file_text", {**WIDE, "parallel.strategy_load_file": "my.json"}, "parallel.strategy_load_file",
     ["holds no strategies"], "parse error at line 1"),
    ("strategy_file_absent", {**WIDE, "parallel.strategy_load_file": "my.json"}, "parallel.strategy_load_file",
     ["does not exist"], "CheckPoint file is not found"),
    ("strategy_file_empty", {**WIDE, "parallel.strategy_load_file": "my.ckpt"}, "parallel.strategy_load_file",
     ["holds no strategies"], "Load strategy checkpoint failed"),
    ("too_many_pieces", WIDE, "parallel.mode", ["((4, 2), (4, 2)): 32 pieces", "8 devices"], "requires 32 devices"),
    ("three_pieces", WIDE, "parallel.mode", ["into 3 pieces"], "must be the power of 2, but get 3"),
    ("short_strategy", WIDE, "parallel.mode", ["one entry an input"], "strategy size: 1"),
    ("strategy_dims", WIDE, "parallel.mode", ["one number a dim"], "strategy len: 3"),
    ("inner_dims", WIDE, "parallel.mode", ["multiplied with each other"], "Invalid strategy for mat_a"),
    ("data_set_count", {}, "parallel.data_parallel", ["one entry for each input"], "strategy size: 2"),
    ("data_set_dims", {}, "parallel.data_parallel", ["one entry for each input"], "dataset_strategy[0]'s size 1"),
    ("data_set_pieces", {}, "parallel.data_parallel", ["16 pieces"], "requires 16 devices"),
    ("types", {}, "train.dtype", ["Tensor[Float32] and Tensor[Float16]"], "should be same as 'x1'"),
    ("columns", {}, "parallel.mode", ["matmul (MatMul)", "'x1_col': 17 and 'x2_row': 16", "contradict"],
     "input dimensions must be equal"),
    ("no_loss", {}, "parallel.mode", ["return the loss"], "Can not find the loss cnode"),
    ("launched", {}, "parallel.data_parallel", ["for 8"], "device_num 7"),
]  # fmt: skip


@pytest.mark.pure
@pytest.mark.parametrize(("name", "changes", "key", "told", "evidence"), CASES, ids=[case[0] for case in CASES])
def test_a_refusal_names_line_rule_and_a_value_that_works(tmp_path, monkeypatch, name, changes, key, told, evidence):
    path, lines = write(tmp_path, changes)
    loaded: list[Recipe] = []
    # Recipes that rules would refuse before the engine does: here only the words count.
    monkeypatch.setattr(load, "find_problems", lambda recipe: loaded.append(recipe) or [])
    error = translated(tmp_path, name, path)
    assert isinstance(error, RecipeError), str(error)
    (problem,) = error.problems
    assert (problem.key, problem.file) == (key, str(path))
    section_line = loaded[0].lines[key.partition(".")[0]]
    assert problem.line == lines.get(key, section_line)
    explanation, _, said = problem.message.partition("\n  MindSpore, rank 0: ")
    assert [word for word in told if word not in explanation] == []
    assert evidence in said
    assert "C++" not in said and "\n" not in said
    assert_suggestion_works(loaded[0], problem)


def assert_suggestion_works(recipe: Recipe, problem: Problem) -> None:
    if problem.suggestion:
        changes, refused, problems = read_overrides(problem.suggestion.split())
        assert not refused and not problems
        assert find_problems(with_values(recipe, changes)) == []


SUGGESTED = {
    "heads", "key_heads", "feed_forward", "vocabulary", "sequence_over_context", "tokens_over_sequence",
    "ulysses_heads", "one_micro_batch", "device_number",
    "stage_without_layers", "shard_level", "shard_size", "recursive_power_of_two", "recursive_plain",
    "propagation_batch", "propagation_experts", "search_gather", "search_cholesky",
    "interleave", "strategy_file_text", "strategy_file_absent",
}  # fmt: skip


@pytest.mark.pure
@pytest.mark.parametrize("case", [case for case in CASES if case[0] in SUGGESTED], ids=lambda case: case[0])
def test_what_a_change_can_mend_has_a_suggestion(tmp_path, monkeypatch, case):
    path, _ = write(tmp_path, case[1])
    monkeypatch.setattr(load, "find_problems", lambda recipe: [])
    error = translated(tmp_path, case[0], path)
    assert isinstance(error, RecipeError) and error.problems[0].suggestion


@pytest.mark.pure
def test_every_entry_of_the_table_has_a_recorded_refusal():
    words = [read_refusal(said["kind"], said["text"], said["log"]).words for said in RECORDED.values()]
    for table in SPEAKERS.values():
        for pattern, _ in table:
            assert any(pattern.search(sentence) for said in words for sentence in said), pattern.pattern


MINDFORMERS = """
run_mode: train
use_legacy: False
use_parallel: True
parallel:
  parallel_mode: 1
parallel_config:
  data_parallel: 2
  model_parallel: 8
  pipeline_stage: 2
  micro_batch_num: 4
runner_config:
  batch_size: 1
model:
  model_config:
    model_type: qwen3
    num_hidden_layers: 5
    num_attention_heads: 4
    num_key_value_heads: 4
    head_dim: 16
    intermediate_size: 130
    vocab_size: 514
    seq_length: 32
    offset: 0
"""
MINDFORMERS_CASES = [
    ("mf_heads", "parallel_config.model_parallel", ["4 % 8 = 4", "Set parallel_config.model_parallel to 4"]),
    ("mf_key_heads", "parallel_config.model_parallel", ["num_key_value_heads 4 is cut over model_parallel 8"]),
    ("mf_feed_forward", "parallel_config.model_parallel", ["intermediate_size 130", "130 % 4 = 2"]),
    ("mf_vocabulary", "parallel_config.model_parallel", ["514 rows", "514 % 4 = 2"]),
    ("mf_offset_sum", "model.model_config.offset", ["5 layers over 2 groups are 2 each and 1 more",
                                                   "Set model.model_config.offset to [1, 0]"]),
    ("mf_offset_length", "model.model_config.offset", ["each of the 2 stages"]),
    ("mf_micro_batches", "parallel_config.micro_batch_num", ["2 stages needs at least 2 micro-batches"]),
    ("mf_device_number", "parallel_config.data_parallel", ["multiple of 8"]),
    ("mf_degrees", "parallel_config.data_parallel", ["for 8"]),
    ("device_number", "parallel_config.data_parallel", ["data_parallel 2 x model_parallel 8 x pipeline_stage 2"]),
    ("mf_data_set_count", "parallel.dataset_strategy", ["one entry for each input"]),
    ("mf_data_parallel_mode", "parallel.parallel_mode",
     ["mode data_parallel MindFormers sets every degree to 1", "job of 2 devices", "Set parallel.parallel_mode to 1"]),
    ("mf_unknown_key", "parallel_config.dataparallel",
     ["no key dataparallel in parallel_config", "Did you mean data_parallel?"]),
    ("mf_missing_key", "optimizer.type", ["needs optimizer.type"]),
    ("mf_batch", "parallel.dataset_strategy", ["batch into 2", "Set parallel_config.data_parallel to 2"]),
    ("mf_two_names", "model.model_config.num_layers", ["num_hidden_layers and num_layers are one", "Keep one"]),
    ("mf_other_name", "model.model_config.num_layers", ["another name for num_hidden_layers", "Write num_hidden"]),
    ("shard_level", "parallel.parallel_optimizer_config.optimizer_level", ["level1", "lazy_inline"]),
]  # fmt: skip


BY_MINDSPORE = ("mf_micro_batches", "mf_device_number", "device_number", "shard_level", "mf_data_set_count")
MINDFORMERS_CHANGES = {
    "mf_feed_forward": [("model_parallel: 8", "model_parallel: 4")],
    "mf_vocabulary": [("model_parallel: 8", "model_parallel: 4")],
    "mf_data_set_count": [("parallel_mode: 1", "parallel_mode: 1\n  dataset_strategy: [[2, 1]]")],
    "mf_data_parallel_mode": [("parallel_mode: 1", "parallel_mode: 0")],
    "mf_unknown_key": [("data_parallel: 2", "dataparallel: 2")],
    "mf_missing_key": [("model:", "optimizer:\n  betas: [0.9, 0.95]\nmodel:")],
    "mf_batch": [("parallel_mode: 1", "parallel_mode: 1\n  dataset_strategy: [[2, 1]]"), ("  data_parallel: 2\n", "")],
    "mf_other_name": [("num_hidden_layers: 5", "num_layers: 2")],
    "mf_two_names": [("num_hidden_layers: 5", "num_hidden_layers: 5\n    num_layers: 2")],
}
"""Refusal -> what the file says that led to it."""


@pytest.mark.pure
@pytest.mark.parametrize(("name", "key", "told"), MINDFORMERS_CASES, ids=[case[0] for case in MINDFORMERS_CASES])
def test_a_mindformers_file_is_told_its_own_keys(tmp_path, name, key, told):
    text = MINDFORMERS
    for old, new in MINDFORMERS_CHANGES.get(name, ()):
        text = text.replace(old, new)
    path = tmp_path / "qwen.yaml"
    path.write_text(text, encoding="utf-8")
    error = translated(tmp_path, name, path, kind="mindformers")
    assert isinstance(error, RecipeError), str(error)
    (problem,) = error.problems
    assert problem.key == key
    last = key.rpartition(".")[2]
    stated = [number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(f"{last}:")]
    section = [number for number, line in enumerate(text.splitlines(), 1) if line == f"{key.partition('.')[0]}:"]
    assert problem.line == (stated or section)[0]
    assert [word for word in told if word not in problem.message] == []
    assert "parallel.model_parallel" not in problem.message
    speaker = "MindSpore" if name in BY_MINDSPORE else "MindFormers"
    assert f"\n  {speaker}, rank 0: " in problem.message


@pytest.mark.pure
def test_words_that_no_entry_knows_are_shown_with_place_and_whole_text(tmp_path):
    path, _ = write(tmp_path, {})
    place = tmp_path / "rank_3"
    place.mkdir()
    (place / "log.txt").write_text(RECORDED["types"]["log"].replace("should be same", "is nothing like"))
    text = RECORDED["types"]["text"].replace("should be same", "is nothing like")
    request = Request(source=str(path), overrides=[], world_size=8, rank=3, folder=str(place))
    error = engine_error(request, "TypeError", text)
    told = str(error)
    assert not isinstance(error, RecipeError) and error.exit_code == 2
    assert told.startswith(str(path)) and "rank 3" in told and "no explanation" in told
    assert "TypeError: For 'MatMul', the type of 'x2' is nothing like" in told and "(MatMul)" in told
    whole = Path(told.rpartition("The whole text is in ")[2])
    try:
        assert text in whole.read_text(encoding="utf-8") and "ANALYZER" in whole.read_text(encoding="utf-8")
    finally:
        whole.unlink()


@pytest.mark.pure
def test_unknown_words_after_a_search_suggest_the_blocks_own_strategies(tmp_path):
    path, lines = write(tmp_path, SEARCH)
    request = Request(source=str(path), overrides=[], world_size=8, folder=str(tmp_path))
    text = "For primitive[ReduceScatter], the input argument[input] must be a type of {Tensor[Float16]}."
    error = engine_error(request, "TypeError", text)
    assert isinstance(error, RecipeError)
    (problem,) = error.problems
    assert (problem.key, problem.line) == ("parallel.mode", lines["parallel.mode"])
    assert "no explanation" in problem.message and "Where: ReduceScatter" in problem.message
    assert problem.suggestion == "parallel.mode=semi_auto_parallel"
    Path(problem.message.rpartition("The whole text is in ")[2]).unlink()


@pytest.mark.pure
def test_the_place_is_read_from_both_of_mindspores_lists():
    assert network_place(RECORDED["feed_forward"]["text"]) == "layers.mlp.gate_proj.matmul"
    assert network_place(RECORDED["recursive_plain"]["text"]).endswith("weigh")
    assert network_place("no list of lines") == ""


@pytest.mark.pure
@pytest.mark.parametrize(("text", "sentence"), [
    ("Wrong.\n\nMore.", "Wrong."), ("Problems:\n\n[Kind] (1)\n  - this\n\nend", "Problems: [Kind] (1) - this"),
    ("Problems:\n\n----\n- The Function Call Stack:\n----\n", "Problems:"), ("Problems:", "Problems:"), ("", ""),
])  # fmt: skip
def test_what_stands_behind_a_colon_belongs_to_the_sentence(text, sentence):
    assert read_refusal("ValueError", text).sentence == sentence


@pytest.mark.pure
def test_complaints_about_missing_ascend_software_are_no_reasons():
    log = "[ERROR] ME(1:2,MainProcess):2026-11-29-20:49:49.191.000 [mindspore/a.py:350] CheckFailed: No module 'te'\n"
    assert read_refusal("RuntimeError", "Parallel init failed", log + RECORDED["device_number"]["log"]).reasons[0] == (
        "The context configuration parameter device_num' must be divisible by 8, or equal to 1, 2 or 4, but got the "
        "value of device_num: 6"
    )


@pytest.mark.pure
def test_sizes_are_named_as_the_file_names_them(tmp_path):
    path, _ = write(tmp_path, {"model.head_dim": 20})
    terms = job_terms.recipe_terms(load.load_recipe(path))
    both = [("num_heads", "num_heads 4 x head_dim 20"), ("num_kv_heads", "num_kv_heads 4 x head_dim 20")]
    assert terms.names_of(80) == both
    assert terms.names_of(128)[0] == ("ffn_size", "ffn_size 128")
    assert terms.names_of(7777) == []


# A recipe passes the rules before the engine sees it. To hear the engine on what a rule would have caught, that rule is
# taken away in every process of the run; the others stay, and judge the suggestion.
WITHOUT_RULES = """
import os
from msparallel.recipe import rules

left_out = os.environ["LEFT_OUT_RULES"].split(",")
rules.RULES = tuple(rule for rule in rules.RULES if rule.__name__ not in left_out)
"""
PROVOKED = [  # changes of BASE, rules left out, key, words of the explanation, words of MindSpore
    ({**WIDE, "model.num_kv_heads": 2}, "kv_heads_over_model_parallel", "parallel.model_parallel",
     "num_kv_heads 2 is cut over model_parallel 4, and 2 % 4 = 2", "cannot be divisible by strategy value 4"),
    ({"parallel.pipeline_stages": 1, "parallel.data_parallel": 3, "train.global_batch_size": 12},
     "device_number_suits_mindspore", "parallel.data_parallel", "6 devices", "device_num: 6"),
    ({**WIDE, "parallel.strategy_load_file": "strategies.json"}, "load_file_needs_propagation",
     "parallel.strategy_load_file",
     "holds no strategies", "parse error at line 1"),
]  # fmt: skip
PROVOKED_SLOWLY = [
    ({**WIDE, "model.ffn_size": 130}, "ffn_over_model_parallel", "parallel.model_parallel",
     "ffn_size 130 is cut over model_parallel 4", "shape value 130"),
    ({**WIDE, "model.vocab_size": 322, "model.vocab_multiple": 1}, "vocab_over_model_parallel",
     "parallel.model_parallel", "the vocabulary's 322 rows is cut", "shape value 322"),
    ({"parallel.model_parallel": 1, "parallel.context_parallel": 2, "train.seq_length": 31},
     "sequence_over_context_parallel", "parallel.context_parallel", "31 % 2 = 1", "shape value 31"),
    ({"parallel.sequence_parallel": True, "train.seq_length": 31, "train.micro_batch_size": 1},
     "tokens_over_sequence_parallel", "parallel.model_parallel", "62 % 4 = 2", "shape value 62"),
    ({"train.global_batch_size": 4}, "micro_batches_fill_pipeline", "parallel.micro_batch_num",
     "at least 2 micro-batches", "must be split into micro batch"),
    ({"parallel.pipeline_stages": 1, "parallel.data_parallel": 4, "parallel.model_parallel": 2,
      "train.global_batch_size": 16, "parallel.optimizer_shard": True, "parallel.optimizer_shard_size": 16},
     "shard_size_divides_copies", "parallel.optimizer_shard_size", "over 16 of 8", "should not exceed"),
    ({"parallel.mode": "auto_parallel", "parallel.pipeline_stages": 1, "parallel.data_parallel": 6,
      "parallel.model_parallel": 4, "train.global_batch_size": 24, "cluster.nodes": 3,
      "parallel.search_mode": "recursive_programming"},
     "search_needs_power_of_two", "parallel.search_mode", "not 24", "power of 2"),
    ({**SEARCH, "model.attention": "plain"}, "search_needs_flash", "model.attention", "do not fit",
     "the accumulate of x"),
]  # fmt: skip


def provoke(folder: Path, changes: dict[str, object], left_out: str, key: str, told: str, evidence: str) -> None:
    """Compile for real; the engine must refuse, and its words come with the line of the key."""
    (folder / "strategies.json").write_text("no JSON", encoding="utf-8")
    files = {key: str(folder / str(changes[key])) for key in changes if key == "parallel.strategy_load_file"}
    path, lines = write(folder, {**changes, **files})
    (folder / "sitecustomize.py").write_text(WITHOUT_RULES, encoding="utf-8")
    variables = environment()
    done = subprocess.run(
        arguments("dryrun", path, "--rank", 0),
        capture_output=True,
        text=True,
        timeout=300,
        env={**variables, "LEFT_OUT_RULES": left_out, "PYTHONPATH": f"{folder}{os.pathsep}{variables['PYTHONPATH']}"},
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "C++" not in done.stderr
    assert f"{path}:{lines.get(key, lines['parallel.mode'] - 1)}  {key}" in done.stderr
    assert told in done.stderr and evidence in done.stderr and "MindSpore, rank 0: " in done.stderr


@pytest.mark.cpu
@pytest.mark.parametrize("case", PROVOKED, ids=lambda case: case[2])
def test_the_engine_refuses_and_is_understood(tmp_path, case):
    provoke(tmp_path, *case)


@pytest.mark.cpu
@pytest.mark.slow
@pytest.mark.parametrize("case", PROVOKED_SLOWLY, ids=lambda case: f"{case[2]}-{case[1]}")
def test_the_engine_refuses_more_and_is_understood(tmp_path, case):
    provoke(tmp_path, *case)
