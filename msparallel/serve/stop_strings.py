"""Stop strings in a text that comes in pieces.

In: pieces of text. Out: what can be shown, and whether a stop string was met. The end of a piece that may be the
beginning of a stop string waits for the next piece, so that no part of it is ever shown. The stop string that is whole
first counts; of two that become whole at the same character, the longer one. How the text is cut changes nothing.

>>> stops = StopStrings(["\\n\\nUser:"])
>>> [stops.feed(piece) for piece in ("Hello.\\n", "\\nUs", "er: and more")]
[('Hello.', False), ('', False), ('', True)]
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Args:
    strings: none of them empty; may be none at all.
    """

    def __init__(self, strings: Sequence[str]):
        self._strings = tuple(strings)
        self._longest = max(map(len, self._strings), default=0)
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether text waits for the next piece."""
        return bool(self._held)

    def feed(self, text: str) -> tuple[str, bool]:
        """(what can be shown, whether the answer ends here)."""
        text = self._held + text
        found = [(start + len(string), start) for string in self._strings if (start := text.find(string)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        keep = next((size for size in range(min(self._longest - 1, len(text)), 0, -1) if self._may_begin(text[-size:])),
                    0)  # fmt: skip
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def _may_begin(self, end: str) -> bool:
        return any(string.startswith(end) for string in self._strings)

    def end(self) -> str:
        """What still waits: the answer is over, so it begins no stop string."""
        held, self._held = self._held, ""
        return held
