"""Lines and tables of a terminal's width.

In: cells. Out: lines that are not wider than the terminal.

>>> table([("stage", "GiB"), ("0", "12.50")], width=80, right={1})
['  stage    GiB', '  0      12.50']
"""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100
"""Where the output is no terminal."""
LEAST_WIDTH = 60


def terminal_width(width: int | None = None) -> int:
    """Of a line; `width` is asked for, or the terminal's own."""
    return max(LEAST_WIDTH, width or shutil.get_terminal_size((WIDTH, 24)).columns)


def fit(line: str, width: int, hang: int | None = None) -> list[str]:
    """A line, or its parts where it is wider than the terminal; `hang` spaces before all but the first."""
    hang = len(line) - len(line.lstrip()) + 4 if hang is None else hang
    return textwrap.wrap(line, width, subsequent_indent=" " * hang, break_on_hyphens=False) or [""]


def command_lines(words: Iterable[str], width: int) -> list[str]:
    r"""A command to copy, two spaces before it: each word as a shell reads it, on lines that end with a backslash where
    the next one goes on. A word is never parted.

    >>> command_lines(["msparallel", "plan", "my recipe.yaml", "parallel.recompute=full"], width=40)
    ["  msparallel plan 'my recipe.yaml' \\", '      parallel.recompute=full']
    """
    lines = [" "]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(" " * 5)
        lines[-1] += f" {word}"
    return lines


def table(rows: Iterable[Sequence[str]], width: int, right: Iterable[int] = ()) -> list[str]:
    """Columns as wide as their longest cell, two spaces between and before them. A last cell that is too wide wraps in
    its column, or below the row where the column is narrow."""
    rows, right = list(rows), set(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    hang = sum(size + 2 for size in widths[:-1] if size) + 2
    lines = []
    for row in rows:
        cells = [
            cell.rjust(size) if place in right else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
            if size
        ]
        line = ("  " + "  ".join(cells)).rstrip()
        if len(line) <= width or width - hang >= 24:
            lines += fit(line, width, hang)
        else:
            lines += [line[:hang].rstrip(), *fit(" " * 6 + row[-1], width, 6)]
    return lines
