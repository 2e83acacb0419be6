"""Strict loading: YAML's traps, unknown names, types, files and overrides, each with its line and all at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from msparallel.cli.report import grid_lines
from msparallel.errors import Problem, RecipeError
from msparallel.mesh import Mesh
from msparallel.recipe.library import shipped_recipes, summary
from msparallel.recipe.load import load_recipe, load_text
from msparallel.recipe.schema import SECTIONS

pytestmark = pytest.mark.pure

GOOD = "model:\n  preset: gpt_tiny\ntrain:\n  global_batch_size: 4\n  micro_batch_size: 2\n  seq_length: 64\n"


def problems(text: str, *overrides: str) -> list[Problem]:
    with pytest.raises(RecipeError) as caught:
        load_text(text, "r.yaml", overrides)
    return caught.value.problems


def only(text: str, *overrides: str) -> Problem:
    found = problems(text, *overrides)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def test_good_recipe_has_values_lines_and_defaults() -> None:
    recipe = load_text(GOOD, "folder/r.yaml")
    assert (recipe.name, recipe.path) == ("r", "folder/r.yaml")
    assert recipe.train is not None and recipe.train.global_batch_size == 4
    assert recipe.lines["train.micro_batch_size"] == 5 and recipe.lines["train"] == 3
    assert recipe.stated("train.seq_length") and not recipe.stated("train.steps")
    assert recipe.optimizer.beta2 == 0.95 and recipe.overrides == () == recipe.notes
    assert not recipe.broken


TRAPS = [
    # text, line, rule, part of the message, suggestion
    (GOOD + "  steps: 2\n  steps: 3\n", 8, "duplicate_key", "line 7 (2) and on line 8 (3)", ""),
    (GOOD + "model: {preset: gpt2_124m}\n", 7, "duplicate_key", "line 1 and on line 7", ""),
    (GOOD + "optimizer:\n  learning_rate: 3e-4\n", 8, "wrong_type", "write 3.0e-4", "optimizer.learning_rate=3.0e-4"),
    (GOOD + "  steps: 1e3\n", 7, "wrong_type", "write 1000", "train.steps=1000"),
    (GOOD + "parallel:\n  recompute: off\n", 8, "wrong_type", "bare off as false", "parallel.recompute=none"),
    (GOOD + "data:\n  corpus: no\n", 8, "wrong_type", "put it in quotes", ""),
    (GOOD + "  steps: yes\n", 7, "wrong_type", "bare yes as true", ""),
    (GOOD + "  tensorboard: \"on\"\n", 7, "wrong_type", 'quotes make "on" text', "train.tensorboard=true"),
    (GOOD + "  tensorboard: 1\n", 7, "wrong_type", "true or false", "train.tensorboard=true"),
    (GOOD + "  steps: \"100\"\n", 7, "wrong_type", 'quotes make "100" text', "train.steps=100"),
    (GOOD + "  steps: 100.0\n", 7, "wrong_type", "this is 100.0", "train.steps=100"),
    (GOOD + "  steps: 0\n", 7, "wrong_type", "at least 1", "train.steps=1"),
    (GOOD + "  steps: ten\n", 7, "wrong_type", "'ten'", ""),
    (GOOD + "  dtype: fp16\n", 7, "wrong_type", "float16", ""),  # would break a rule on cpu
    (GOOD + "  dtype: fp32\n", 7, "wrong_type", "float16", "train.dtype=float32"),
    (GOOD + "  steps: [100]\n", 7, "wrong_type", "a list", "train.steps=100"),
    (GOOD + "  steps: 0100\n", 7, "octal", "as 64. Write 100", "train.steps=100"),
    (GOOD + "train:\n", 7, "duplicate_key", "line 3 and on line 7", ""),
    (GOOD + "  steps: 1:30\n", 7, "sexagesimal", "as 90", ""),
    (GOOD + "  output_dir: 2026-01-31\n", 7, "date", "quotes", ""),
    (GOOD + "  steps:\n", 7, "empty_value", "nothing after the colon", ""),
    (GOOD + "  steps: null\n", 7, "empty_value", "`null` stands for nothing", ""),
    (GOOD + "optimizer:\n", 7, "empty_section", "nothing below it", ""),
    (GOOD + "optimizer: 3\n", 7, "not_a_section", "is a section", ""),
    (GOOD + "optimizer: [a]\n", 7, "not_a_section", "is a section", ""),
    (GOOD + "optimizer:\n  adam: {beta1: 0.9}\n", 8, "too_deep", "two levels", ""),
    (GOOD + "optimizer:\n  beta1: [[0.9]]\n", 8, "too_deep", "plain values", ""),
    (GOOD + "  on: 3\n", 7, "odd_key", "read as a boolean", ""),
    (GOOD + "  3: 3\n", 7, "odd_key", "read as a number", ""),
    (GOOD + "  : 3\n", 7, "yaml_syntax", "not YAML", ""),
    (GOOD + "  '': 3\n", 7, "odd_key", "nothing before the colon", ""),
    (GOOD + "  ? [a]\n  : 3\n", 7, "odd_key", "a list", ""),
    (GOOD + "  steps: &s 10\n", 7, "yaml_feature", "Anchors", ""),
    (GOOD + "  steps: !!int 10\n", 7, "yaml_feature", "Tags", ""),
    (GOOD + "  steps: !!python/object:os.system 10\n", 7, "yaml_feature", "Tags", ""),
    (GOOD + "optimizer:\n  <<: {beta1: 0.9}\n", 8, "yaml_feature", "Merge", ""),
    (GOOD + "\tsteps: 3\n", 7, "yaml_syntax", "tab", ""),
    (GOOD + "---\n" + GOOD, 7, "yaml_syntax", "second document", ""),
    (GOOD + "  steps: [1, 2\n", None, "yaml_syntax", "not YAML", ""),
    (GOOD + "  sample_prompt: a: b\n", 7, "yaml_syntax", "colon", ""),
    (GOOD + "  sample_prompt: \"\x01\"\n", 7, "yaml_syntax", "0x1", ""),
    (GOOD + "  steps: " + "[" * 2000 + "]" * 2000, 7, "yaml_syntax", "nested too deeply", ""),
    ("a: " * 3000, None, "yaml_syntax", "", ""),
    ("", None, "empty_recipe", "no keys", ""),
    ("# nothing\n", None, "empty_recipe", "no keys", ""),
    ("just text\n", 1, "not_sections", "list of sections", ""),
    ("- a\n- b\n", 1, "not_sections", "list of sections", ""),
    (GOOD + "  steps: " + "9" * 5000, 7, "wrong_type", "cannot be read as a number", ""),
    (GOOD + "  steps: 0b_\n", 7, "wrong_type", "cannot be read as a number", ""),
    (GOOD + "  clip: =\n", 7, "unknown_key", "clip", ""),
    (GOOD + "optimizer:\n  eps: .nan\n", 8, "wrong_type", "a number above 0", ""),
    (GOOD + "optimizer:\n  clip_norm: .inf\n", 8, "wrong_type", "a number", ""),
    (GOOD + "  sample_prompt: ''\n", 7, "wrong_type", "takes text; this is empty", ""),
    (GOOD + '  output_dir: "a\\0b"\n', 7, "wrong_type", "zero byte", ""),
    (GOOD + "optimizer:\n  eps: .inf\n", 8, "wrong_type", "YAML reads .inf as infinity", ""),
    (GOOD + "optimizer:\n  beta1: -.inf\n", 8, "wrong_type", "YAML reads -.inf as infinity", ""),
    (GOOD + "  steps: .nan\n", 7, "wrong_type", "YAML reads .nan as not a number", ""),
    ("model:\n  preset: ''\n", 2, "wrong_type", "this is empty", ""),
    ("model:\n  preset: " + "9" * 400 + "\n", 2, "wrong_type", "takes text", ""),
    ("model:\n  num_layers: ten\n", 2, "wrong_type", "'ten'", ""),
    ("model:\n  prest: gpt_tiny\n", 2, "unknown_key", "`preset`", ""),
    ("model:\n  zzz: 3\n", 2, "unknown_key", "no key `zzz`", ""),
    ("model: {}\n", 1, "missing_section", "`model:`", ""),
    ("train: {global_batch_size: 4, micro_batch_size: 2}\n", None, "missing_section", "`model:`", ""),
    ("model: {preset: gpt_tiny}\nserve: {port: 80, max_length: 64}\n", 2, "missing_key", "`weights`", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "rule", "tells", "suggestion"), TRAPS, ids=range(len(TRAPS)))
def test_trap_has_line_rule_and_text(text: str, line: int | None, rule: str, tells: str, suggestion: str) -> None:
    problem = only(text)
    assert (problem.rule, problem.file, problem.suggestion) == (rule, "r.yaml", suggestion)
    assert tells in problem.message
    if line is not None:
        assert problem.line == line


NAMES = [
    ("parallel:\n  tensor_parallel: 2\n", "Did you mean `model_parallel`?"),
    ("parallel:\n  tp: 2\n", "`model_parallel`"),
    ("parallel:\n  dp: 2\n", "`data_parallel`"),
    ("parallel:\n  pipeline_stage: 2\n", "`pipeline_stages`"),
    ("parallel:\n  use_seq_parallel: true\n", "`sequence_parallel`"),
    ("parallel:\n  enable_parallel_optimizer: true\n", "`optimizer_shard`"),
    ("parallel:\n  modle_parallel: 2\n", "`model_parallel`"),
    ("parallel:\n  Data-Parallel: 2\n", "`data_parallel`"),
    ("parallel:\n  steps: 2\n", "`steps` belongs in the section `train`"),
    ("parallel:\n  learning_rate: 0.1\n", "belongs in the section `optimizer`"),
    ("parallel:\n  num_hidden_layers: 2\n", "`num_layers` in the section `model`"),
    ("optimizer:\n  lr: 0.1\n", "`learning_rate`"),
    ("parallel_config:\n  data_parallel: 2\n", "Did you mean `parallel`?"),
    ("paralel:\n  data_parallel: 2\n", "Did you mean `parallel`?"),
    ("steps: 3\n", "`train.steps` is a key"),
    ("zzz:\n  qqq: 3\n", "Sections are model, parallel"),
    ("optimizer:\n  qqq: 3\n", "Its keys are learning_rate"),
]


@pytest.mark.parametrize(("extra", "tells"), NAMES)
def test_unknown_name_says_what_was_meant(extra: str, tells: str) -> None:
    problem = only(GOOD + extra)
    assert problem.rule in ("unknown_key", "unknown_section") and problem.line in (7, 8)
    assert tells in problem.message


def test_all_problems_of_all_kinds_in_one_go() -> None:
    text = (
        "model:\n  preset: gpt_tiny\n  num_heads: 6\n  norm: rsm\nparallel:\n  tp: 2\n  mode: semi_auto_parallel\n"
        "optimizer:\n  learning_rate: 3e-4\n  warmup_steps: 2000\ntrain:\n  global_batch_size: 7\n  "
        "micro_batch_size: 2\n"
    )
    found = problems(text, "train.stepz=3", "data.corpus=")
    assert {(problem.rule, problem.key) for problem in found} == {
        ("hidden_over_heads", "model.num_heads"),
        ("query_heads_over_kv_heads", "model.num_heads"),
        ("wrong_type", "model.norm"),
        ("unknown_key", "parallel.tp"),
        ("wrong_type", "optimizer.learning_rate"),
        ("batch_comes_out", "train.global_batch_size"),  # needs neither norm nor tp
        ("unknown_key", "train.stepz"),  # meant steps, so warmup_shorter_than_run cannot be judged
        ("empty_value", "data.corpus"),
    }
    lines = [problem.line for problem in found if problem.file == "r.yaml"]
    assert lines == sorted(lines)
    assert str(RecipeError(found)).endswith(f"{len(found)} problems found, nothing was started.")


@pytest.mark.parametrize(
    "wrong",
    [
        "  num_heads: three\n",
        "  num_layers: 3.5\n",
        "  vocab_size: off\n",
        "  num_heads: 3\n  num_heads: 5\n",
        "  n_head: 5\n",
    ],
)
def test_broken_value_has_no_follow_up_problems(wrong: str) -> None:
    parallel = "parallel: {mode: semi_auto_parallel, model_parallel: 4, pipeline_stages: 2}\n" + (
        "cluster: {hardware: atlas_800t_a2}\n"
    )
    train = "train: {global_batch_size: 4, micro_batch_size: 1, seq_length: 64, dtype: bfloat16}\n"
    problem = only("model:\n  preset: llama2_7b\n" + wrong + parallel + train)
    assert problem.rule in ("wrong_type", "duplicate_key", "unknown_key")


def test_misnamed_section_has_no_follow_up_problems() -> None:
    text = "model: {preset: llama2_7b}\nparallel_config: {mode: semi_auto_parallel, model_parallel: 3}\n" + (
        "train: {global_batch_size: 4, micro_batch_size: 1}\ncluster: {devices_per_node: 8, hardware: atlas_800t_a2}\n"
    )
    assert {problem.rule for problem in problems(text)} == {"unknown_section", "flash_needs_half_precision"}


OVERRIDES = [
    ("train.steps", "override", "section.key=value"),
    ("steps=3", "override", "train.steps=3"),
    ("train.a.b=3", "override", "section.key=value"),
    ("=3", "override", "section.key=value"),
    ("train.steps=", "empty_value", "Nothing stands after `=`"),
    ("train.steps=ten", "wrong_type", "'ten'"),
    ("train.steps=[", "yaml_syntax", "not a YAML value"),
    ("train.steps={a: 1}", "too_deep", "two levels"),
    ("train.steps=010", "octal", "as 8. Write 10"),
    ("optimizer.learning_rate=3e-4", "wrong_type", "write 3.0e-4"),
    ("parallel.recompute=off", "wrong_type", "bare off as false"),
    ("parallel.tp=2", "unknown_key", "`model_parallel`"),
    ("parallels.data_parallel=2", "unknown_section", "`parallel`"),
    ("parallel.tp=null", "unknown_key", "`model_parallel`"),
    ("train.steps=&a 3", "yaml_feature", "Anchors"),
    ("train.steps=3\n---\n4", "yaml_syntax", "second document"),
]


@pytest.mark.parametrize(("override", "rule", "tells"), OVERRIDES)
def test_bad_override_is_a_problem_of_the_command_line(override: str, rule: str, tells: str) -> None:
    problem = only(GOOD, override)
    assert (problem.file, problem.line, problem.rule) == ("command line", None, rule)
    assert tells in problem.message


def test_override_given_twice_is_refused() -> None:
    assert "Given twice: 3 and 4" in only(GOOD, "train.steps=3", "train.steps=4").message


def test_override_replaces_adds_and_removes() -> None:
    recipe = load_text(GOOD, "r.yaml", ["train.steps=3", "optimizer.beta1=0.5", "train.seq_length=null"])
    assert recipe.train is not None
    assert (recipe.train.steps, recipe.train.seq_length, recipe.optimizer.beta1) == (3, 1024, 0.5)
    assert not recipe.stated("train.seq_length")
    assert recipe.overrides == ("train.steps=3", "optimizer.beta1=0.5", "train.seq_length=null")


@pytest.mark.parametrize("text", [item[0] for item in TRAPS if item[4]])
def test_suggestion_for_a_value_mends_the_recipe(text: str) -> None:
    load_text(text, "r.yaml", only(text).suggestion.split())


def test_a_wrong_value_does_not_hide_a_missing_key() -> None:
    found = problems("model: {preset: gpt_tiny}\nserve: {port: 0}\n")
    assert {problem.key for problem in found} >= {"serve.port", "serve.weights"}


def test_rule_about_an_overridden_key_names_the_command_line() -> None:
    problem = only(GOOD, "train.micro_batch_size=3", "train.global_batch_size=4")
    assert (problem.file, problem.line, problem.key) == ("command line", None, "train.global_batch_size")


FOLLOW = "model: {preset: gpt_tiny}\nparallel: {mode: data_parallel, data_parallel: 2}\n" + (
    "train: {global_batch_size: 8, micro_batch_size: 1, seq_length: 64}\n"
)


def test_devices_follow_degrees_on_one_node() -> None:
    recipe = load_text(FOLLOW + "cluster: {devices_per_node: 2}\n", "r.yaml", ["parallel.data_parallel=4"])
    assert recipe.cluster.devices_per_node == 4
    assert recipe.notes == ("cluster.devices_per_node follows the degrees: 2 -> 4",)


def test_devices_do_not_follow_where_typed_or_absent() -> None:
    found = problems(
        FOLLOW + "cluster: {devices_per_node: 2}\n", "parallel.data_parallel=4", "cluster.devices_per_node=2"
    )
    assert [problem.rule for problem in found] == ["degrees_match_devices"]
    recipe = load_text(FOLLOW, "r.yaml", ["parallel.data_parallel=4"])
    assert recipe.notes == () and recipe.cluster.devices_per_node is None


def test_nodes_never_change_by_themselves() -> None:
    text = FOLLOW + "cluster: {nodes: 2, devices_per_node: 1}\n"
    problem = only(text, "parallel.data_parallel=4")
    assert problem.rule == "degrees_match_devices" and problem.suggestion == "cluster.nodes=4"


def test_data_parallel_recipe_on_one_process() -> None:
    recipe = load_recipe("gpt_tiny_dp2_cpu", ["parallel.data_parallel=1"])
    assert recipe.parallel.mode == "data_parallel" and recipe.parallel.data_parallel == 1


def test_shipped_recipes_load_by_name_and_by_path() -> None:
    shipped = shipped_recipes()
    assert "quickstart" in shipped
    for name, path in shipped.items():
        assert load_recipe(name).sections == load_recipe(path).sections
        assert summary(path)


def test_unknown_recipe_name_says_what_was_meant() -> None:
    with pytest.raises(RecipeError, match="Did you mean `quickstart`"):
        load_recipe("quikstart")
    with pytest.raises(RecipeError, match="goes by its name"):
        load_recipe("quickstart.yaml")


@pytest.mark.parametrize(
    ("content", "rule", "tells", "line"),
    [
        (b"model:\n  preset: \xff\n", "not_text", "0xff", 2),
        (b"\x7fELF\x00\x00", "not_text", "zero bytes", None),
        (b"# " + b"x" * 300_000, "too_large", "256 KiB", None),
        ("\ufeffmodel: {preset: nope}\n".encode(), "known_preset", "nope", 1),
        ("model: {preset: nope}\n".encode("utf-16"), "not_text", "", None),
    ],
)  # fmt: skip
def test_file_that_is_no_recipe(tmp_path: Path, content: bytes, rule: str, tells: str, line: int | None) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    problem = caught.value.problems[0]
    assert problem.rule == rule and tells in problem.message and problem.file == str(path)
    assert line is None or problem.line == line


def test_path_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (
        tmp_path,
        tmp_path / "absent.yaml",
        tmp_path / ("x" * 300),
        Path("a\0b.yaml"),
        tmp_path / "r.yaml" / "x.yaml",
    ):
        with pytest.raises(RecipeError) as caught:
            load_recipe(path)
        assert [problem.rule for problem in caught.value.problems] == ["no_file"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(GOOD, encoding="utf-8")
    path.chmod(0)
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("model.num_layers", 10_000),
        ("model.num_experts", 10_000),
        *((f"parallel.{name}_parallel", 65_536) for name in ("data", "model", "context")),
        ("parallel.pipeline_stages", 65_536),
        ("parallel.expert_parallel", 10_000),
        ("parallel.virtual_stages", 10_000),
        ("cluster.nodes", 65_536),
        ("cluster.devices_per_node", 65_536),
    ],
)
def test_counts_that_become_lists_are_bounded(key: str, limit: int) -> None:
    for number in (limit + 1, 10**11, 10**30):
        told = next(problem for problem in problems(GOOD, f"{key}={number}") if problem.key == key)
        assert told.rule == "wrong_type" and f"to {limit}" in told.message


SIZES = [(section, key) for section, cls in SECTIONS.items()
         for key, field in cls.model_json_schema()["properties"].items()
         if any(part.get("type") == "integer" for part in field.get("anyOf", [field]))
         and (section == "model" or key.endswith(("batch_size", "batch_num", "seq_length")))]  # fmt: skip


@pytest.mark.parametrize(("section", "key"), SIZES)
def test_no_size_of_a_tensor_goes_beyond_what_any_tensor_holds(section: str, key: str) -> None:
    for number in (10**9, 2**63, 10**21, 10**400):
        told = next(problem for problem in problems(GOOD, f"{section}.{key}={number}") if problem.key.endswith(key))
        assert told.rule == "wrong_type" and " to 1" in told.message


def test_grid_of_very_many_devices_is_cut_without_listing_them() -> None:
    lines = grid_lines(Mesh(pp=60_000, dp=60_000, cp=60_000, tp=2))
    assert len(lines) == 17 and lines[-1].endswith(f"to rank {2 * 60_000**3 - 1}")
    assert lines[1].split()[:3] == ["pp0", "dp0", "cp1"]
