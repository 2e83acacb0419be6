"""Values of a tree by key and type, with every misfit as a Problem.

In: a `Tree`, a dotted key, what may stand there, and what holds where nothing does. Out: the value. What was asked for
is remembered: what is left over is what nobody reads.

>>> from msparallel.interop.yaml_tree import read_tree
>>> reader = TypedReader(read_tree("parallel_config: {data_parallel: two}", "f.yaml"))
>>> reader.whole("parallel_config.data_parallel", 1), reader.problems[0].message
(1, 'data_parallel takes a whole number of at least 1.')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msparallel.errors import Problem, RecipeError, short
from msparallel.interop.yaml_tree import Tree, is_number

MOST = 2**53
"""Numbers beyond it are slips."""


class TypedReader:
    """Attributes:
    tree: where values come from.
    read: dotted keys that were asked for.
    problems: values that do not fit, in the order in which they were asked for.
    """

    def __init__(self, tree: Tree):
        self.tree = tree
        self.read: set[str] = set()
        self.problems: list[Problem] = []

    def raise_problems(self) -> None:
        """Raises RecipeError where a value did not fit."""
        if self.problems:
            raise RecipeError(self.problems)

    def problem(self, rule: str, key: str, message: str) -> None:
        """Note what is wrong with a key; once for each key."""
        if any(problem.key == key for problem in self.problems):
            return
        found = self.tree.get(key)
        shown = None if found is None or isinstance(found, dict) else short(found, 60)
        file, line = self.tree.place(key)
        self.problems.append(Problem(key=key, value=shown, rule=rule, message=message, file=file, line=line))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A section; empty where it is absent or empty."""
        found = self.tree.get(key)
        parent = key.rpartition(".")[0]
        if parent and not isinstance(self.tree.get(parent), (dict, type(None))):
            return {}  # told where the parent is asked for
        if found is None:
            return {}
        if not isinstance(found, dict):
            self._misfit(key, "a section: its keys go below it, indented")
            return {}
        return found

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        found = self._found(key)
        if found is None or isinstance(found, bool):
            return default if found is None else found
        self._misfit(key, "true or false")
        return default

    def whole(self, key: str, default: int | None, least: int = 1, most: int = MOST) -> Any:
        """A whole number within limits."""
        found = self._found(key)
        if found is None:
            return default
        if type(found) is int and least <= found <= most:
            return found
        limits = f"from {least} to {most}" if most < MOST else f"of at least {least}"
        self._misfit(key, f"a whole number {limits}")
        return default

    def number(self, key: str, default: float | None, least: float = 0.0) -> Any:
        """A finite number of at least `least`."""
        found = self._found(key)
        if found is None:
            return default
        if type(found) in (int, float) and abs(found) < 1e300 and math.isfinite(found) and found >= least:
            return float(found)
        hint = ""
        if isinstance(found, str) and is_number(found):
            hint = " YAML reads this as text: an exponent needs a point before it and a sign after it, as in 3.0e-4."
        self._misfit(key, f"a number of at least {least:g}", hint)
        return default

    def text(self, key: str, default: str) -> str:
        """Text."""
        found = self._found(key)
        if found is None or isinstance(found, str):
            return default if found is None else found
        self._misfit(key, "text")
        return default

    def choice(self, key: str, options: Mapping[Any, Any], default: Any) -> Any:
        """One of some words or numbers; returns what it stands for."""
        found = self._found(key)
        if found is None:
            return options.get(default, default)
        if isinstance(found, (str, int)) and not isinstance(found, bool) and found in options:
            return options[found]
        self._misfit(key, "one of " + ", ".join(map(str, options)))
        return options.get(default, default)

    def offset(self, key: str) -> int | list[Any]:
        """0, a list of whole numbers, or a list of such lists."""
        found = self._found(key)
        rows = found if isinstance(found, list) else []
        flat = [number for row in rows for number in (row if isinstance(row, list) else [row])]
        if found is None or (isinstance(found, list) and all(_small(number) for number in flat)) or _small(found):
            return 0 if found is None else found
        self._misfit(key, "0, a list of whole numbers, or a list of such lists")
        return 0

    def recompute(self, key: str) -> Any:
        """true, false, or MindFormers' lists and patterns, which are interpreted later."""
        found = self._found(key)
        if found is None or isinstance(found, (bool, list)):
            return bool(found) if found is None else found
        if isinstance(self.tree.get(key), dict):
            return found
        self._misfit(key, "true, false or a list")
        return False

    def _found(self, key: str) -> Any:
        """Value of a key; the sections on the way are checked too."""
        self.read.add(key)
        section = key.rpartition(".")[0]
        while section:
            self.mapping(section)
            section = section.rpartition(".")[0]
        return self.tree.get(key)

    def _misfit(self, key: str, wanted: str, hint: str = "") -> None:
        self.problem("wrong_type", key, f"{key.rpartition('.')[2]} takes {wanted}.{hint}")


def _small(found: Any) -> bool:
    return type(found) is int and abs(found) <= 1_000_000
