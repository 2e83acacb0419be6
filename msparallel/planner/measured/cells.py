"""Cells of a table of measurements: text and numbers by column.

In: a row's cells. Out: values, or why the row cannot be used, with the column's name.

>>> Cells({"layers": "32"}).count("layers")
32
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.errors import short


class CannotUse(Exception):
    """Why a row is skipped."""


@dataclass(frozen=True)
class Cells:
    """Of one row, stripped.

    Attributes:
        by_column: column -> text.
    """

    by_column: dict[str, str]

    def text(self, column: str, default: str | None = None) -> str:
        """A cell; `default` where it is empty or there is no such column."""
        if self.by_column.get(column):
            return self.by_column[column]
        if default is None:
            raise CannotUse(f"column {column}: {'empty' if column in self.by_column else 'not in the file'}")
        return default

    def has(self, column: str) -> bool:
        """Whether a cell is filled."""
        return bool(self.by_column.get(column))

    def count(self, column: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        written = self.text(column, None if default is None else str(default))
        try:
            number = int(written)
        except ValueError:
            raise CannotUse(f"column {column}: {short(written, 40)!r} is no whole number") from None
        if not 1 <= number <= 10**9:
            raise CannotUse(f"column {column}: {short(written, 40)} must be at least 1 and at most a thousand million")
        return number

    def yes(self, column: str) -> bool:
        """Whether a cell says yes; an empty one says no."""
        written = self.text(column, "no")
        if written not in ("yes", "no"):
            raise CannotUse(f"column {column}: {short(written, 40)!r} is neither yes nor no")
        return written == "yes"

    def numbers(self, column: str, default: str | None = None) -> list[float]:
        """Positive numbers with spaces between them, none so small or large that it is a slip of the pen."""
        try:
            found = [float(word) for word in self.text(column, default).split()]
        except ValueError:
            raise CannotUse(f"column {column}: {short(self.text(column, default), 40)!r} is no number") from None
        if not all(1e-6 <= number <= 1e12 for number in found):
            raise CannotUse(f"column {column}: {short(self.text(column, default), 40)} must be from 1e-6 to 1e12")
        return found

    def value(self) -> float:
        found = self.numbers("value")
        if len(found) != 1:
            raise CannotUse(f"column value: {short(self.text('value'), 40)!r} is not one number")
        return found[0]

    @property
    def flags(self) -> dict[str, str]:
        """Flag -> what stands behind its `=`, empty where nothing does."""
        return {name: value for name, _, value in (word.partition("=") for word in self.text("flags", "").split())}


def whole_numbers(written: str, place: str) -> list[int]:
    """Numbers with commas between them, of a flag or a note. Raises CannotUse, which names the place."""
    try:
        return [int(word) for word in written.split(",")]
    except ValueError:
        raise CannotUse(f"{place}: {short(written, 40)!r} are no whole numbers") from None
