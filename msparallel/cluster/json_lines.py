"""JSON of any origin, each value with its line.

In: the path or the bytes of a file that nobody has checked. Out: `Node`s, or one error that names file and line.
Stricter than Python's own reader: no duplicate keys, no NaN, no comments; length, depth and numbers are bounded.

>>> node = parse('{"status":\\n "completed"}', "table.json")
>>> node.value["status"]
Node(value='completed', line=2)
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from json.decoder import JSONDecodeError, scanstring
from pathlib import Path
from typing import Any, NoReturn

from msparallel.errors import Problem, RecipeError, short

MOST_BYTES = 32 * 1024 * 1024
"""65,536 ranks at some 250 bytes are 16 MiB."""
MOST_DEPTH = 16
"""A rank table is at most 8 deep."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?![0-9.eE])")
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Node:
    """Attributes:
    value: text, integer, bool, None, a list of Nodes, or a dict of them.
    line: on which it begins, from 1.
    """

    value: Any
    line: int


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """All of a regular file. Raises RecipeError for anything else, and for more than `most` bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody writes to must not hold us
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise refused(str(path), None, "not a regular file: a folder, pipe or device cannot be read here")
            with os.fdopen(os.dup(handle), "rb") as stream:
                data = stream.read(most + 1)
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise refused(str(path), None, f"cannot be read: {reason}") from None
    if len(data) > most:
        raise refused(str(path), None, f"larger than {most:,} bytes, the most that is read here")
    return data


def refused(file: str, line: int | None, message: str) -> RecipeError:
    """A file that is not what it should be."""
    return RecipeError([Problem(key="file", value=None, rule="readable", message=f"{message}.", file=file, line=line)])


def decode(data: bytes, file: str) -> str:
    """UTF-8 text. Raises RecipeError with the line of the first byte that is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise refused(file, line, f"not UTF-8 text: byte {data[error.start]:#04x} at offset {error.start}") from None


def parse(text: str, file: str) -> Node:
    """The document. Raises RecipeError with file and line."""
    return _Reader(text, file).document()


class _Reader:
    def __init__(self, text: str, file: str):
        self.text, self.file, self.at, self.line, self.counted = text, file, 0, 1, 0

    def document(self) -> Node:
        self._skip()
        if self.at == len(self.text):
            self._fail("the file is empty; expected a JSON object, for example {\"version\": \"1.0\", ...}")
        node = self._value(1)
        self._skip()
        if self.at < len(self.text):
            self._unexpected("the end of the file")
        return node

    def _value(self, depth: int) -> Node:
        if depth > MOST_DEPTH:
            self._fail(f"nested deeper than {MOST_DEPTH} levels; a rank table has at most 8")
        line, first = self._line(), self.text[self.at : self.at + 1]
        if first == "{":
            return Node(self._object(depth), line)
        if first == "[":
            return Node(self._array(depth), line)
        if first == '"':
            return Node(self._string(), line)
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return Node(int(number[0]), line)
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return Node(value, line)
        self._unexpected("a value: text in double quotes, a whole number of at most 18 digits, an object or a list")

    def _object(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._step()
        while not self._ends("}", started=bool(found)):
            if self.text[self.at : self.at + 1] != '"':
                self._unexpected("a key in double quotes")
            key = self._string()
            if key in found:
                self._fail(f"the key {short(key, 40)} stands twice in one object (first on line {found[key].line}); "
                           "readers keep the last and lose the first")  # fmt: skip
            self._skip()
            if self.text[self.at : self.at + 1] != ":":
                self._unexpected(f"':' after the key {short(key, 40)}")
            self._step()
            found[key] = self._value(depth + 1)
            self._skip()
        return found

    def _array(self, depth: int) -> list[Node]:
        found: list[Node] = []
        self._step()
        while not self._ends("]", started=bool(found)):
            found.append(self._value(depth + 1))
            self._skip()
        return found

    def _ends(self, bracket: str, *, started: bool) -> bool:
        """Whether the list or object ends here; else the comma before its next element is taken."""
        if self.text[self.at : self.at + 1] == bracket:
            self.at += 1
            return True
        if started:
            if self.text[self.at : self.at + 1] != ",":
                self._unexpected(f"',' or '{bracket}'")
            self._step()
            if self.text[self.at : self.at + 1] == bracket:
                self._fail(f"a comma before '{bracket}': JSON has none after the last element; delete it")
        return False

    def _string(self) -> str:
        try:
            value, self.at = scanstring(self.text, self.at + 1, True)
        except JSONDecodeError as error:
            self.at = min(error.pos, len(self.text))
            self._fail(f"text in double quotes is broken: {error.msg.lower()}")
        return value

    def _step(self) -> None:
        self.at += 1
        self._skip()

    def _skip(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]

    def _line(self) -> int:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = max(self.counted, self.at)
        return self.line

    def _unexpected(self, expected: str) -> NoReturn:
        rest = self.text[self.at : self.at + 20].split("\n")[0]
        if rest.startswith(("//", "/*", "#")):
            self._fail(f"a comment ({short(rest)}): JSON has none, HCCL refuses the file; delete every comment")
        self._fail(f"expected {expected}, found {short(rest) if rest else 'the end of the file'}")

    def _fail(self, message: str) -> NoReturn:
        raise refused(self.file, self._line(), message)
