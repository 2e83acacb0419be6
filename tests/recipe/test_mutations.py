"""2,000 randomly damaged recipes: each loads or is refused with problems; nothing else is ever raised."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from msparallel.errors import RecipeError
from msparallel.plan import resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_text
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.schema import SECTIONS

pytestmark = pytest.mark.pure

TEXTS = [path.read_text(encoding="utf-8") for path in shipped_recipes().values()]
KEYS = [(section, key) for section, cls in SECTIONS.items() for key in cls.model_fields]
ODD = [
    None, True, False, "auto", "on", "off", "3e-4", "", "1:30", "none", "true", "qwen3_8b", "atlas_900_a3", "ulysses",
    "ulysses", "level3", "flash", "float16", "dynamic", "semi_auto_parallel", "auto_parallel", "data_parallel",
    "hybrid_parallel", [], [1], [4, 4], [[1]], {}, {"a": 1}, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 63, 64, 100,
    4096, 4097, 10**6,
    10**12, 10**30, 10**400, 1.5, -0.5, 1e300, float("inf"), float("nan"), "\x00", "\ud7ff", "é", "a" * 300,
]  # fmt: skip
SMALL = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64])


def shipped(name: str) -> str:
    return shipped_recipes()[name].read_text(encoding="utf-8")


COUNT = 1000
"""Examples of each of the two tests."""


@st.composite
def changed_values(draw: st.DrawFn) -> str:
    """A shipped recipe with keys replaced, added, moved, renamed or taken away."""
    document: dict[Any, Any] = yaml.safe_load(draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(1, 5))):
        section, key = draw(st.sampled_from(KEYS))
        action = draw(st.sampled_from(["set", "set", "set", "small", "drop", "rename", "section", "replace section"]))
        keys = document.get(section)
        if action == "section":
            document.pop(section, None)
        elif action == "replace section":
            document[section] = draw(st.sampled_from(ODD))
        elif action == "drop" and isinstance(keys, dict):
            keys.pop(key, None)
        elif action == "rename" and isinstance(keys, dict):
            keys[draw(st.text(max_size=12))] = keys.pop(key, 1)
        elif isinstance(keys, dict):
            keys[key] = draw(SMALL if action == "small" else st.sampled_from(ODD))
        else:
            document[section] = {key: draw(SMALL)}
    return yaml.safe_dump(document, allow_unicode=draw(st.booleans()), sort_keys=draw(st.booleans()))


@st.composite
def changed_text(draw: st.DrawFn) -> str:
    """A shipped recipe with characters and lines cut, doubled, swapped or inserted."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 40))
        action = draw(st.sampled_from(["cut", "insert", "insert", "repeat", "line", "swap"]))
        if action == "cut":
            text = text[:at] + text[at + length :]
        elif action == "insert":
            odd = [
                ":",
                "\t",
                "- ",
                "{",
                "[",
                "]",
                "}",
                "'",
                '"',
                "&a ",
                "*a",
                "!!int ",
                "<<: ",
                "---\n",
                "#",
                "|",
                ">",
                "%",
                "@",
                "0",
            ]
            text = text[:at] + draw(st.sampled_from(odd) | st.text(max_size=5)) + text[at:]
        elif action == "repeat":
            text = text[: at + length] + text[at:]
        elif action == "line":
            lines = text.splitlines(keepends=True) or [""]
            lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(lines)))
            text = "".join(lines)
        else:
            text = text[at:] + text[:at]
    return text


def loads_or_is_refused(text: str, overrides: tuple[str, ...] = ()) -> None:
    try:
        recipe = load_text(text, "r.yaml", overrides)
    except RecipeError as error:
        assert error.problems and str(error)
        for problem in error.problems:
            assert problem.message and problem.rule and problem.key
            assert problem.file in ("r.yaml", "command line")
            problem.to_json()
        if len(error.problems) == 1 and error.problems[0].suggestion and not overrides:
            load_text(text, "r.yaml", error.problems[0].suggestion.split(" "))
        return
    assert isinstance(recipe, Recipe) and not recipe.broken
    assert resolve(recipe).world_size >= 1


@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(changed_values())
@example("model: {preset: llama2_7b, num_layers: 1000000000000}\nparallel: {pipeline_stages: 1000000000000}\n")
@example(
    "model: {preset: llama2_7b}\nparallel: {data_parallel: auto, model_parallel: 999999999999}\ncluster: "
    "{devices_per_node: 8}\n"
)
def test_changed_values(text: str) -> None:
    loads_or_is_refused(text)


@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(changed_text())
def test_changed_text(text: str) -> None:
    loads_or_is_refused(text)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    st.sampled_from(TEXTS),
    st.lists(
        st.builds(lambda key, value: f"{key[0]}.{key[1]}={value}", st.sampled_from(KEYS), st.sampled_from(ODD) | SMALL)
        | st.text(max_size=20),
        max_size=4,
    ),
)
@example(shipped("gpt2_124m_dp8"), ["model.num_kv_heads=1000000"])
@example(shipped("qwen3_32b_tp4_pp4"), ["model.ffn_size=5", "parallel.context_parallel=4097"])
def test_overrides(text: str, overrides: list[str]) -> None:
    loads_or_is_refused(text, tuple(overrides))
