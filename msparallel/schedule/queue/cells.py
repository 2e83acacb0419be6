"""The cells of one row of a trace, as values.

In: text by column. Out: words, choices, whole numbers, seconds; or a problem that is kept, and None.

>>> cells = Cells({"devices": "8", "priority": "high"})
>>> cells.whole("devices", None, least=1, most=64), cells.whole("priority", 0, least=0, most=9)
(8, None)
>>> cells.problems[0][:2]
('priority', 'high')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

_WHOLE = re.compile(r"[+-]?[0-9]{1,12}")
_DECIMAL = re.compile(r"\+?[0-9]{1,12}(\.[0-9]{0,9})?")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*")


class Cells:
    """Attributes:
    problems: column, what stands there, the rule, a value that works.
    """

    def __init__(self, cells: Mapping[str, str]):
        self._cells = cells
        self.problems: list[tuple[str, str | None, str, str]] = []

    def has(self, column: str) -> bool:
        """Whether something stands there."""
        return bool(self.text(column))

    def text(self, column: str) -> str:
        """As it stands there."""
        return self._cells.get(column, "")

    def note(self, column: str, message: str, suggestion: str = "") -> None:
        self.problems.append((column, self.text(column) or None, message, suggestion))

    def word(self, column: str, default: str | None, *, length: int) -> str | None:
        """A name."""
        text = self.text(column)
        if not text:
            return self._absent(column, default, needed=default is None)
        if len(text) > length or not _WORD.fullmatch(text):
            return self.note(column, f"A name is letters, digits and any of _ . : / @ + - (at most {length}, the first "
                             "a letter, a digit or _), for example llama_13b-3.")  # fmt: skip
        return text

    def choice(self, column: str, words: Sequence[str], default: str) -> str | None:
        """One of a few words."""
        text = self.text(column) or default
        if text in words:
            return text
        close = get_close_matches(text, words, n=1)
        return self.note(column, f"It is one of {', '.join(words)}.", f"{column}={close[0]}" if close else "")

    def whole(
        self, column: str, default: int | None, *, least: int, most: int, needed: bool = False
    ) -> int | None:
        """A whole number."""
        text = self.text(column)
        if not text:
            return self._absent(column, default, needed)
        if not _WHOLE.fullmatch(text):
            return self.note(column, f"This is no whole number. It is one from {least:,} to {most:,}.")
        if not least <= int(text) <= most:
            return self.note(column, f"It is a whole number from {least:,} to {most:,}.")
        return int(text)

    def seconds(
        self, column: str, default: float | None, *, most: float, least: float = 0.0, needed: bool = False
    ) -> float | None:
        """A plain decimal number of seconds."""
        text = self.text(column)
        if not text:
            return self._absent(column, default, needed)
        if not _DECIMAL.fullmatch(text):
            return self.note(column, "This is no plain number of seconds, such as 3600 or 0.5. Dates and h:m:s are "
                             "converted before.")  # fmt: skip
        if not least <= float(text) <= most:
            return self.note(column, f"It is from {least:g} to {most:,.0f} seconds.")
        return float(text)

    def _absent(self, column: str, default, needed: bool):
        if needed:
            self.note(column, "It is missing, and there is no default.")
            return None
        return default
