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

from msparallel.errors import Problem, RecipeError, short
from msparallel.interop.yaml_tree import Tree, read_tree
from msparallel.recipe.recipe import COMMAND_LINE

_ROWS, _DEGREE = "parallel.dataset_strategy", "parallel_config.data_parallel"


def with_overrides(tree: Tree, texts: Iterable[str]) -> tuple[Tree, dict[str, Any]]:
    """The tree with other values, and dotted key -> value.

    Raises:
        RecipeError: a text that is no override, or that stands in the way of what the file has; all of them.
    """
    changes: dict[str, Any] = {}
    problems: list[Problem] = []
    changed = tree
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        told = _wrong(changed, key, value) if equals and key else _no_override(tree, key)
        if key in changes:
            told = f"Given twice: {short(changes[key])} and {short(value)}. Keep one."
        if told:
            problems.append(_told(key or text, value or None, told))
            continue
        try:
            changes[key] = read_tree("value: " + " ".join(value.splitlines()), COMMAND_LINE).values["value"]
        except RecipeError as error:
            problems += [replace(problem, key=key, value=value, line=None) for problem in error.problems]
        else:
            changed = with_values(changed, {key: changes[key]})
    if problems:
        raise RecipeError(problems)
    rows = changed.get(_ROWS)
    if _DEGREE in changes and _ROWS not in changes and isinstance(rows, list):
        changes[_ROWS] = [[changes[_DEGREE], *row[1:]] if isinstance(row, list) else row for row in rows]
    return replace(with_values(changed, changes), elsewhere=dict.fromkeys(changes, COMMAND_LINE)), changes


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
    unknown = [key for key in changes if key not in tree.lines and key not in read]
    if unknown:
        raise RecipeError([_told(key, changes[key], _no_override(tree, key, read)) for key in unknown])


def _wrong(tree: Tree, key: str, value: str) -> str:
    """Why a value cannot be put under a key, empty where it can."""
    parts = key.split(".")
    for count in range(1, len(parts)):
        around = ".".join(parts[:count])
        found = tree.get(around)
        if isinstance(found, list):
            return f"{short(around)} is a list; it is replaced as a whole: {short(around)}=[...]"
        if found is not None and not isinstance(found, dict):
            return _no_override(tree, key)
    section = tree.get(key)
    if isinstance(section, dict) and section:
        return f"{key} is a section; an override is one of its keys, such as {key}.{next(iter(section))}=..."
    return "" if value.strip() else "Nothing stands after `=`. Write a value, or null for none."


def _no_override(tree: Tree, key: str, read: Collection[str] = ()) -> str:
    """That a key is not one of the file's, and which was meant."""
    known = sorted(name for name in {*tree.lines, *read} if not isinstance(tree.get(name), dict))
    last = key.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last] if last else []
    close = get_close_matches(short(key), same or known, n=1, cutoff=0.0 if same else 0.5)
    meant = f"Did you mean {close[0]}=...?" if close else "An example is parallel_config.model_parallel=8."
    return f"{tree.file} is a MindFormers YAML: an override is one of its dotted keys. {meant}"


def _told(key: str, value: Any, message: str) -> Problem:
    return Problem(key=key or "override", value=value, rule="override", message=message, file=COMMAND_LINE)
