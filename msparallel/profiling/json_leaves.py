"""The innermost records of a large JSON file, one at a time.

In: a path. Out: (keys on the way, record, line) of every object that begins with one of the profilers' own keys. What
stands around it (group, step, p2p or collective, operator, rank) comes in any order and depth, as the profilers differ
in it. Only one record is in memory at a time.

>>> for keys, record, line in json_leaves(Path("communication.json")):  # doctest: +SKIP
...     print(keys, record["Communication Time Info"]["Elapse Time(ms)"])
('step1', 'collective', 'hcom_allReduce__5_0_1@77') 1.5
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msparallel.profiling.table import Refused, Told

RECORD_KEYS = frozenset(("Communication Time Info", "Communication Bandwidth Info", "Transport Type",
                         "Transit Time(ms)", "Transit Size(MB)", "Bandwidth(GB/s)", "Op Name", "op_name"))  # fmt: skip
"""A record begins with one of them."""
CHUNK = 1 << 20
LARGEST_VALUE = 8 << 20
"""Characters of one record, or of a value that is passed over; a record has some hundred."""
DEEPEST = 8
LONGEST_KEY = 4096
_SPACE = " \t\r\n"
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')


def json_leaves(path: Path, told: Told = lambda count: None) -> Iterator[tuple[tuple[str, ...], dict[str, Any], int]]:
    """All records of a file, in order.

    Raises:
        Refused: where it is no JSON of this form, after the records that stand before that place.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from _Reader(file, told).records()
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from None


class _Reader:
    """A window over the text."""

    def __init__(self, file: Any, told: Told):
        self.file, self.told = file, told
        self.text, self.at, self.ended = "", 0, False
        self.line, self.counted = 1, 0
        self.decode = json.JSONDecoder().raw_decode

    def records(self) -> Iterator[tuple[tuple[str, ...], dict[str, Any], int]]:
        keys: list[str] = []
        if self.sign() != "{":
            raise self.refused("an object { is expected")
        self.at += 1
        opened = True
        while True:
            sign = self.sign()
            if sign == "}":
                self.at += 1
                if not keys:
                    break
                keys.pop()
                opened = False
                continue
            if not opened:
                if sign != ",":
                    raise self.refused("a comma or } is expected")
                self.at += 1
                sign = self.sign()
            opened = False
            key = self.value()
            if not isinstance(key, str) or self.sign() != ":":
                raise self.refused("a key and a colon are expected")
            self.at += 1
            if self.sign() != "{" or self.is_record():
                line = self.line_now()
                value = self.value()
                if isinstance(value, dict):
                    yield (*keys, key), value, line
            else:
                keys.append(key)
                if len(keys) > DEEPEST:
                    raise self.refused(f"objects are nested deeper than {DEEPEST}")
                self.at += 1
                opened = True
        if self.sign() != "":
            raise self.refused("text behind the last }")

    def more(self) -> bool:
        """Read on; what was passed is dropped."""
        if self.ended:
            return False
        self.line_now()
        chunk = self.file.read(max(CHUNK, len(self.text) - self.at))
        self.ended = not chunk
        self.told(len(chunk))
        self.text = self.text[self.at :] + chunk
        self.at = self.counted = 0
        if len(self.text) > 2 * LARGEST_VALUE:
            raise self.refused(f"a value is longer than {LARGEST_VALUE:,} characters")
        return not self.ended

    def line_now(self) -> int:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return self.line

    def sign(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            text, at, end = self.text, self.at, len(self.text)
            while at < end and text[at] in _SPACE:
                at += 1
            self.at = at
            if at < end:
                return text[at]
            if not self.more():
                return ""

    def is_record(self) -> bool:
        """Whether the object that begins here is one: by its first key."""
        while True:
            found = _FIRST_KEY.match(self.text, self.at)
            if found is not None:
                return found[1] in RECORD_KEYS
            if len(self.text) - self.at > LONGEST_KEY or not self.more():
                return False

    def value(self) -> Any:
        """The value that begins here, whole."""
        self.sign()
        while True:
            try:
                value, end = self.decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.more():
                    continue
                raise self.refused(error.msg) from None
            except RecursionError:
                raise self.refused("values are nested too deep") from None
            except ValueError as error:  # a whole number of thousands of digits
                raise self.refused(str(error)[:80]) from None
            if end == len(self.text) and self.more():
                continue  # a number may go on
            self.at = end
            return value

    def refused(self, why: str) -> Refused:
        return Refused(f"line {self.line_now()}: no JSON as profilers write it: {why}")
