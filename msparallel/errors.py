"""What goes wrong through a user's hands, as values.

In: a place (file, line, key), what was written there, the rule with its numbers. Out: text that a person can act on,
and the same as JSON. Nothing here is caught and turned into a guess.

>>> print(Problem(key="parallel.model_parallel", value=3, rule="heads", file="r.yaml", line=14,
...               message="40 attention heads cannot be split over 3 devices (40 % 3 = 1). Use 4.",
...               suggestion="parallel.model_parallel=4"))
r.yaml:14  parallel.model_parallel: 3
  40 attention heads cannot be split over 3 devices (40 % 3 = 1). Use 4.
  Try: parallel.model_parallel=4
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor, colour it or turn the direction of text; tab and line feed are not among
them."""

_LONG_WORD = re.compile(r"\S{1001,}")
"""Longer than any path that is worth reading."""


def printable(text: str) -> str:
    r"""Text in which control characters are seen as their codes.

    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def short(value: Any, most: int = 200) -> str:
    """What a user wrote, on one line of a message: booleans as YAML writes them, no more than `most` characters.

    >>> short("x" * 500, most=5)
    'xxxxx... (500 characters)'
    """
    return _cut((str(value).lower() if isinstance(value, bool) else str(value)).replace("\n", " "), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _readable(text: str) -> str:
    """A message without the words, and the length, that only what a user wrote can give it."""
    return _cut(_LONG_WORD.sub(lambda found: _cut(found[0], 200), text), 10_000)


class UserError(Exception):
    """Bad input, or a machine that cannot do what was asked: printed as text, never as a traceback.

    Attributes:
        exit_code: 2 where the input is wrong, 1 where a run failed.
    """

    exit_code = 2

    def __str__(self) -> str:
        return _readable(super().__str__())


class RunError(UserError):
    """A run that started and failed for a reason outside the recipe (disk full, worker killed, port taken)."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One broken rule.

    Attributes:
        key: dotted recipe key, `section.key`, or the section alone.
        value: what was written (or derived), None where the key is absent.
        rule: name of the rule function that found it.
        message: the rule with its numbers, in sentences.
        suggestion: overrides that mend it, as typed on a command line (`section.key=value`, several separated by
            spaces); empty where only the user can know.
        file, line: where it stands; line is None for a value that no line states.
    """

    key: str
    value: Any
    rule: str
    message: str
    suggestion: str = ""
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        written = short(self.key) if self.value is None else f"{short(self.key)}: {short(self.value)}"
        text = f"{place}  {written}\n  {self.message}" if place else f"{written}\n  {self.message}"
        return _readable(f"{text}\n  Try: {self.suggestion}" if self.suggestion else text)

    def to_json(self) -> dict[str, Any]:
        """The fields of `validate --json`."""
        return asdict(self)


class RecipeError(UserError):
    """A recipe with one or more problems.

    Attributes:
        problems: all of them, in the order of the file.
    """

    def __init__(self, problems: list[Problem]):
        self.problems = sorted(problems, key=lambda p: (p.file, p.line is None, p.line or 0, p.key))
        super().__init__(str(self))

    def __str__(self) -> str:
        count = len(self.problems)
        end = f"{count} problem{'s' * (count > 1)} found, nothing was started."
        return "\n\n".join([*map(str, self.problems), end])
