"""Values as YAML: they come back as they were, the same text every time, with comments where they belong."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.schedule.yaml_text import WIDTH, Noted, dump, dump_all, plain

pytestmark = pytest.mark.pure
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ODD = st.sampled_from(
    [
        "no",
        "Yes",
        "y",
        "1e3",
        "0x10",
        "012",
        "1_0",
        "12:30:45",
        "a: b",
        "a #b",
        "- a",
        "~",
        "=",
        "<<",
        "2001-01-01",
        ".5",
        ".inf",
        "a\n  b\n",
        "\ta\n",
        "a\n\n",
        "x \ny",
        "a:",
        "",
        " ",
        "\n",
        "#x",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "`a",
        "'a'",
        '"a"',
        "{a}",
        "[a]",
        "a\r\nb",
        "a\x85b",
        "\u2028",
        "\ufeff",
        "$(A)",
        "null",
        "true",
        "8",
        "-1",
        "huawei.com/Ascend910",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | TEXT | ODD


def noted(value: object, why: str) -> object:
    return value if isinstance(value, Noted) else Noted(value, why)


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT | ODD, inner, max_size=4)
        | st.builds(noted, inner, st.sampled_from(["why not", "a long reason " * 20, "two\nlines"]))
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_values_come_back(value: object) -> None:
    assert yaml.safe_load(dump(value)) == plain(value)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(VALUES)
def test_values_come_back_at_length(value: object) -> None:
    assert yaml.safe_load(dump(value)) == plain(value)


def test_what_another_reader_could_take_for_something_else_is_quoted() -> None:
    for word in (
        "y",
        "n",
        "on",
        "OFF",
        "1.0",
        "0o7",
        "1e3",
        "08",
        "12:30",
        "null",
    ):  # YAML 1.1 and 1.2 disagree on some
        assert dump({"a": word}) == f'a: "{word}"\n'
    assert dump({"a": "64Gi", "b": "Gi64"}) == 'a: "64Gi"\nb: Gi64\n'


def test_comments_stand_beside_a_line_or_above_it() -> None:
    value = {
        "a": Noted(1, "short"),
        "b": Noted(2, "long " * 40),
        "c": Noted(["x"], "a list"),
        "d": [Noted({"e": 1}, "an item")],
    }
    text = dump(value)
    assert text.splitlines()[0] == "a: 1  # short"
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "# a list\nc:\n  - x\n" in text and "d:\n  # an item\n  - e: 1\n" in text


def test_several_documents_are_one_file() -> None:
    text = dump_all([{"a": 1}, Noted({"b": 2}, "the second")], "what it is")
    assert text == "# what it is\na: 1\n---\n# the second\nb: 2\n"
    assert list(yaml.safe_load_all(text)) == [{"a": 1}, {"b": 2}]
