"""A CSV of any size as rows with named columns, line by line.

In: a path. Out: the header's columns, then rows with their line numbers. What cannot be read is refused with its line:
a file is never guessed at. Cells come as the profilers write them: a TAB before the closing quote, N/A, blanks.

>>> with open_table(Path("op_statistic.csv")) as table:  # doctest: +SKIP
...     total = table.need("Total Time(us)")
...     for line, row in table.rows():
...         number(row[total])
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

LONGEST_LINE = 1 << 18
"""Characters: the longest real line, a kernel with many shapes, has a few thousand."""
TOLD_EVERY = 1 << 20
"""Characters between two words to `told`."""
LARGEST = 1e18
"""Time stamps in microseconds are 2e15."""
_NOTHING = frozenset(("", "N/A", "NA", "n/a", "-", "None", "null"))
Told = Callable[[int], object]


class Refused(Exception):
    """A file that cannot be read, or not to its end; the text says why and where."""


class BadCell(Exception):
    """A cell that is no number."""


def number(cell: str) -> float | None:
    r"""What a cell holds; None where the profiler has nothing to say.

    Raises:
        BadCell: where it is text, not finite, or beyond what a profiler can measure.

    >>> number("1736413971558972.912\t"), number("N/A")
    (1736413971558973.0, None)
    """
    try:
        value = float(cell)  # passes over a TAB and blanks by itself
    except ValueError:
        cell = cell.strip().strip('"').strip()
        if cell in _NOTHING:
            return None
        try:
            value = float(cell)
        except ValueError:
            raise BadCell(f"{cell[:40]!r} is no number") from None
    if not -LARGEST < value < LARGEST:
        raise BadCell(f"{cell[:40]!r} is out of range")
    return value


def positive(cell: str) -> float:
    """A number that is there and not below zero. Raises BadCell otherwise."""
    value = number(cell)
    if value is None:
        raise BadCell("is empty")
    if value < 0:
        raise BadCell(f"{value:g} is below 0")
    return value


def whole(cell: str) -> int | None:
    """A whole number; None where there is none. Raises BadCell for anything else."""
    value = number(cell)
    if value is None:
        return None
    if value != int(value) or value < 0:
        raise BadCell(f"{cell.strip()[:40]!r} is no whole number from 0")
    return int(value)


@dataclass
class Table:
    """An open CSV.

    Attributes:
        columns: as the header names them, stripped; a name that stands twice is its first place.
        width: cells of the header; a row has as many.
        bad: rows that were left out, and the first of them with the reason.
    """

    columns: dict[str, int]
    width: int
    bad: int = 0
    first_bad: str = ""
    read: int = 0
    _reader: Iterator[list[str]] = field(default_factory=lambda: iter(()))

    def find(self, *names: str) -> int | None:
        """Place of the first of these columns that is there."""
        return next((self.columns[name] for name in names if name in self.columns), None)

    def need(self, *names: str) -> int:
        """The same. Raises Refused where none is there."""
        place = self.find(*names)
        if place is None:
            raise Refused(f"has no column {' or '.join(names)}")
        return place

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of every row; a row with too few cells is left out and counted.

        Raises:
            Refused: where the rest cannot be read.
        """
        width, reader = self.width, self._reader
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise Refused(f"line {reader.line_num}: {error}") from None  # type: ignore[attr-defined]
            if len(row) >= width:
                self.read += 1
                yield reader.line_num, row  # type: ignore[attr-defined]
            elif row:
                self.spoil(reader.line_num, f"{len(row)} cells of {width}")  # type: ignore[attr-defined]

    def spoil(self, line: int, why: str) -> None:
        """Count a row that says nothing usable."""
        self.bad += 1
        if not self.first_bad:
            self.first_bad = f"line {line}: {why}"


def _lines(file: TextIO, told: Told) -> Iterator[str]:
    """Lines of bounded length, so that a file without line ends takes no memory either."""
    count = passed = 0
    while line := file.readline(LONGEST_LINE):
        count += 1
        if len(line) >= LONGEST_LINE and not line.endswith("\n"):
            raise Refused(f"line {count} is longer than {LONGEST_LINE:,} characters")
        passed += len(line)
        if passed >= TOLD_EVERY:
            told(passed)
            passed = 0
        yield line
    told(passed)


@contextmanager
def open_table(path: Path, told: Told = lambda count: None) -> Iterator[Table]:
    """The table of a file; `told` hears how much was read, in characters.

    Raises:
        Refused: where it cannot be opened, or has no header.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(_lines(file, told))
            try:
                header = next(reader, [])
            except csv.Error as error:
                raise Refused(f"line 1: {error}") from None
            columns: dict[str, int] = {}
            for place, name in enumerate(header):
                columns.setdefault(name.strip(), place)
            if not columns:
                raise Refused("is empty")
            yield Table(columns, len(header), _reader=reader)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from None
