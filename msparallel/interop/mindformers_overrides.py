"""Values typed over a MindFormers YAML: `section.sub.key=value`, as MindFormers' own dotted keys.

In: the file's tree and texts. Out: the tree with the values in it, and the changes as MindFormers takes them. A YAML
that cuts its batch by an alias of data_parallel (`dataset_strategy: [[*dp, 1], ...]`) means both: the first number of
each row follows data_parallel.

>>> from msparallel.interop.yaml_tree import read_tree
>>> tree, changes = with_overrides(read_tree("parallel_config: {data_parallel: 1}", "f.yaml"),
...                                ["parallel_config.data_parallel=2"])
>>> tree.get("parallel_config.data_parallel"), changes
(2, {'parallel_config.data_parallel': 2})
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from msparallel.errors import Problem, RecipeError
from msparallel.interop.yaml_tree import Tree, read_tree
from msparallel.recipe.recipe import COMMAND_LINE

_ROWS, _DEGREE = "parallel.dataset_strategy", "parallel_config.data_parallel"


def with_overrides(tree: Tree, texts: Iterable[str]) -> tuple[Tree, dict[str, Any]]:
    """The tree with other values, and dotted key -> value.

    Raises:
        RecipeError: a text that is no override, or whose section the file does not have; all of them.
    """
    changes: dict[str, Any] = {}
    problems = []
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        around = tree.get(key.rpartition(".")[0])
        if not equals or not value.strip() or not isinstance(around, dict):
            problems.append(_problem(text, key, tree))
        elif key in changes:
            problems.append(_told(key, value, f"Given twice: {changes[key]} and {value}. Keep one."))
        else:
            changes[key] = read_tree(f"value: {value}", COMMAND_LINE).values["value"]
    if problems:
        raise RecipeError(problems)
    rows = changes.get(_ROWS, tree.get(_ROWS))
    if _DEGREE in changes and _ROWS not in changes and isinstance(rows, list):
        changes[_ROWS] = [[changes[_DEGREE], *row[1:]] if isinstance(row, list) else row for row in rows]
    return with_values(tree, changes), changes


def with_values(tree: Tree, changes: Mapping[str, Any]) -> Tree:
    """The tree with the values of dotted keys in it, sections made where they are missing."""
    values = copy.deepcopy(dict(tree.values))
    for key, value in changes.items():
        *way, name = key.split(".")
        section: Any = values
        for part in way:
            if isinstance(section, list):
                section = section[int(part)]
                continue
            if not isinstance(section.get(part), (dict, list)):
                section[part] = {}
            section = section[part]
        section[int(name) if isinstance(section, list) else name] = value
    return replace(tree, values=values)


def check_known(tree: Tree, changes: Mapping[str, Any], read: Collection[str]) -> None:
    """Raise RecipeError for an override of a key that the file has not and nobody asked for.

    Args:
        tree: the file's own.
        read: keys that were asked for.
    """
    unknown = [key for key in changes if tree.get(key) is None and key not in tree.lines and key not in read]
    if unknown:
        raise RecipeError([_problem(key, key, tree, read) for key in unknown])


def _problem(text: str, key: str, tree: Tree, read: Collection[str] = ()) -> Problem:
    known = sorted({*tree.lines, *read})
    close = get_close_matches(key, known, n=1, cutoff=0.5) or [k for k in known if k.endswith(f".{key}")][:1]
    meant = f"Did you mean {close[0]}=...?" if close else "An example is parallel_config.model_parallel=8."
    return _told(text, None, f"{tree.file} is a MindFormers YAML: an override is one of its dotted keys. {meant}")


def _told(key: str, value: Any, message: str) -> Problem:
    return Problem(key=key or "override", value=value, rule="override", message=message, file=COMMAND_LINE)
