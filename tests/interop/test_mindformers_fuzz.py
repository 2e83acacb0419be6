"""Nothing that a YAML can hold ends in anything but a recipe or a list of problems."""

from __future__ import annotations

import copy
import datetime
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interop.mindformers_files import DENSE, EXPERTS, document

from msparallel.cli.import_ import report_lines
from msparallel.compile.mindformers_job import mindformers_job
from msparallel.errors import RecipeError, UserError, printable
from msparallel.interop.import_mindformers import import_mindformers
from msparallel.interop.mindformers import is_mindformers, read_mindformers
from msparallel.interop.model_names import read_model
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
QUIET = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
BASES = [DENSE, document(EXPERTS)]
TEXT = yaml.safe_dump(DENSE, sort_keys=False)
SIGNS = "abc019 \t\n:,-[]{}#&*!|>'\"%@`~<=?\\\x00\u2028\ud800é"
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2**31, 10**25, -(10**25), 0.0, 1.5, -0.5, 1e308, math.inf, -math.inf, math.nan, "",
    "x", "auto", "3e-4", "\ud800", "\x00", "\u2028", "a\nb: c", "]\ntrain: {steps: 1}", "#", "&a", "*a", "qwen3_moe",
    "gpt2", "llama", "deepseek_v3", [], [[]], [1], [1, 2], [[1, 2], [3]], [0, 1], [True, False], ["a"], [None], {},
    {"a": 1}, {"type": "x"}, [{"type": "CheckpointMonitor"}], [{"save_checkpoint_steps": []}],
    datetime.date(2026, 1, 1),
]  # fmt: skip


def goes_well(path: Path) -> str:
    """Import a file and use what comes of it as the command does; problems must say something."""
    try:
        is_mindformers(path)
        result = import_mindformers(path)
    except RecipeError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        json.dumps([problem.to_json() for problem in error.problems])
        printable(str(error)).encode("utf-8", "backslashreplace")
        return "refused"
    result.text.encode("utf-8")
    json.dumps(result.to_json(), default=str)
    printable("\n".join(report_lines(result))).encode("utf-8", "backslashreplace")
    return "carried"


def places(values: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to every value of a document."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [place for key, value in items for place in [(*way, key), *places(value, (*way, key))]]


def with_value(base: Any, way: tuple[Any, ...], value: Any) -> Any:
    result = copy.deepcopy(base)
    target = result
    for key in way[:-1]:
        target = target[key]
    target[way[-1]] = value
    return result


def try_values(path: Path, base: Any, ways: list[tuple[Any, ...]], each: int) -> set[str]:
    """`each` odd values in every place, another choice in each; all of them where `each` is their number."""
    outcomes = set()
    for number, way in enumerate(ways):
        for step in range(each):
            value = ODD[(number * each + step) % len(ODD)]
            path.write_bytes(yaml.safe_dump(with_value(base, way, value)).encode("utf-8", "surrogatepass"))
            outcomes.add(goes_well(path))
    return outcomes


@pytest.mark.parametrize("base", BASES, ids=["dense", "experts"])
def test_some_value_in_any_place(tmp_path, base):
    assert try_values(tmp_path / "file.yaml", base, places(base), 3) == {"carried", "refused"}


LONG = ["x" * 100_000, "x " * 50_000]


def told_of(path: Path) -> str:
    """All that `import` and `dryrun` say of a file before anything is compiled."""
    told = ""
    try:
        told += "\n".join(report_lines(import_mindformers(path)))
    except UserError as error:
        told += str(error)
    try:
        mindformers_job(read_mindformers(path))
    except UserError as error:
        told += str(error)
    return told


@pytest.mark.parametrize("long", LONG, ids=["one word", "words"])
def test_what_is_very_long_is_not_told_in_full(tmp_path, long):
    path = tmp_path / "file.yaml"
    for way in places(DENSE)[:: 4 if long == LONG[0] else 9]:
        path.write_text(yaml.safe_dump(with_value(DENSE, way, long), width=10**6), encoding="utf-8")
        assert len(told_of(path)) < 20_000, way
    for tail in (f"a: *{long}", f"a: '{long}", f"? {long}", f"{long}: 1", f"a: !{long} 1", f"%{long}"):
        path.write_text(f"{TEXT}{tail}\n", encoding="utf-8")
        assert len(told_of(path)) < 20_000, tail[:9]
    path.write_text(TEXT, encoding="utf-8")
    for text in (long, f"{long}=1", f"seed={long}", f"seed=[{long}", f"parallel_config.{long}=1", f"seed=*{long}"):
        for read in (lambda texts: read_mindformers(path, None, texts), lambda texts: load_recipe("quickstart", texts)):
            with pytest.raises(UserError) as error:
                read([text, text])
            assert len(str(error.value)) < 30_000, text[:20]


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES, ids=["dense", "experts"])
def test_any_value_in_any_place(tmp_path, base):
    assert try_values(tmp_path / "file.yaml", base, places(base), len(ODD)) == {"carried", "refused"}


MODEL_KEYS = [
    "layer_types", "rope_scaling", "rope_parameters", "mlp_only_layers", "window_size", "architectures", "qk_layernorm",
    "hidden_act", "activation_function", "num_experts", "n_group", "pp_interleave_num", "mlp_bias", "add_bias_linear",
]  # fmt: skip
KINDS = ["qwen3", "qwen3_moe", "telechat3", "qwen2", "llama", "gpt2"]


def test_some_value_of_any_model_key(tmp_path):
    for at, kind in enumerate(KINDS):
        base = document({"model.model_config.model_type": kind})
        try_values(tmp_path / "file.yaml", base, [("model", "model_config", key) for key in MODEL_KEYS][at % 2 :: 2], 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_value_of_any_model_key(tmp_path, kind):
    base = document({"model.model_config.model_type": kind})
    ways = [("model", "model_config", key) for key in MODEL_KEYS]
    try_values(tmp_path / "file.yaml", base, ways, len(ODD))


@QUIET
@given(start=st.integers(0, len(TEXT)), length=st.integers(0, 60), put=st.text(st.sampled_from(SIGNS), max_size=12))
def test_broken_text(tmp_path_factory, start, length, put):
    path = tmp_path_factory.mktemp("broken") / "file.yaml"
    path.write_bytes((TEXT[:start] + put + TEXT[start + length :]).encode("utf-8", "surrogatepass"))
    goes_well(path)


@QUIET
@given(first=st.integers(0, 200), second=st.integers(0, 200))
def test_lines_taken_out_and_moved(tmp_path_factory, first, second):
    lines = TEXT.splitlines()
    line = lines.pop(first % len(lines))
    lines.insert(second % len(lines), line)
    path = tmp_path_factory.mktemp("moved") / "file.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    goes_well(path)


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
TRAPS = [
    "", "---\n---\n", "- a\n- b\n", "word", "42", "\ufeffrun_mode: train\n",
    "run_mode: train\ntrainer: &t {type: *t}\n",
    "run_mode: train\ntrainer: &t [*t]\n", f"run_mode: train\ntrainer: {{}}\n{LAUGHS}", "run_mode: train\n" * 3000,
    "run_mode: train\ntrainer: " + "[" * 5000 + "]" * 5000, "run_mode: train\ntrainer: " + "{a: " * 500 + "}" * 500,
    "run_mode: !!python/object/apply:os.system [ls]\ntrainer: 1\n", "run_mode: !!binary aGk=\ntrainer: 1\n",
    "run_mode: train\ntrainer: {<<: {a: 1}}\n", "run_mode: train\ntrainer: =\n",
    "run_mode: train\ntrainer: 2026-13-45\n",
    "run_mode: train\ntrainer: 0b_\n", "run_mode: train\ntrainer: " + "9" * 6000 + "\n", "? [a, b]\n: c\nrun_mode: x\n",
    "run_mode: train\ntrainer: 1:70:99\nuse_legacy: 0\n", "run_mode: train\ntrainer: .inf\nrunner_config: .nan\n",
    "1: 2\nrun_mode: train\nnull: 3\ntrainer: {true: 4}\n", "run_mode: train\n\ttrainer: 1\n", "run_mode: 'x\n",
    "run_mode: train\nuse_legacy: false\nrunner_config:\nparallel_config:\nmodel:\n",
    "a.b: 1\nrun_mode: train\ntrainer: {a.b: {c.d: 1}, '': 2}\n", "run_mode: train\ntrainer: \x07\n",
]  # fmt: skip


@pytest.mark.parametrize("text", TRAPS, ids=range(len(TRAPS)))
def test_traps(tmp_path, text):
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    assert goes_well(path) == "refused"


@pytest.mark.parametrize("data", [b"\x00\x01", b"\xff\xfe\x00", b"run_mode: \xe9\n", b"x" * 300_000])
def test_bytes_that_are_no_text(tmp_path, data):
    path = tmp_path / "file.yaml"
    path.write_bytes(data)
    assert goes_well(path) == "refused"


@QUIET
@given(st.dictionaries(st.sampled_from([*MODEL_KEYS, "hidden_size", "num_hidden_layers", "num_attention_heads"]),
                       st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                                    lambda inner: st.lists(inner, max_size=3))),
       st.sampled_from(KINDS))  # fmt: skip
def test_any_config_json(config, kind):
    read_model(config, kind)
