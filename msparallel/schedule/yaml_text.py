"""Values as YAML that is the same every time, with the reason beside a line that needs one.

In: dicts, lists, text, numbers, in the order that they shall have; `Noted` where a comment belongs. Out: text that
YAML 1.1 (Kubernetes) and 1.2 read alike: what a reader could take for a number, a date or a boolean is quoted.

>>> print(dump({"replicas": 2, "queue": Noted("no", "a queue of this name"), "args": ["a b", "1"]}), end="")
replicas: 2
queue: "no"  # a queue of this name
args:
  - a b
  - "1"
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Any

WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z/](?:[A-Za-z0-9_./@%+,=()\[\]'-]|:(?=[^\s])|\x20(?=[A-Za-z0-9_./]))*")
_RESERVED = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
"""What YAML 1.1 does not take for text."""
_BLOCK_LINE = re.compile("[\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufdff\ufe00-\ufefe\uff00-\uffef]*")


@dataclass(frozen=True)
class Noted:
    """A value, and why it is so."""

    value: Any
    why: str


def plain(value: Any) -> Any:
    """A value without its comments."""
    if isinstance(value, Noted):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def dump(value: Any) -> str:
    """One document."""
    return "\n".join(_lines(value, 0)) + "\n"


def dump_all(documents: list[Any], head: str = "") -> str:
    """Several documents in one file, with comment lines before them all."""
    top = "".join(f"{line}\n" for line in _comment(head, 0)) if head else ""
    return top + "---\n".join(dump(document) for document in documents)


def _lines(value: Any, indent: int) -> list[str]:
    """A mapping or a list; a scalar stands alone."""
    if isinstance(value, Noted):
        return [*_comment(value.why, indent), *_lines(value.value, indent)]
    pad = " " * indent
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(f"{pad}{_scalar(key)}:", item, indent)]
    if isinstance(value, (list, tuple)) and value:
        return [line for item in value for line in _item(item, indent)]
    return [pad + _scalar(value)]


def _entry(head: str, item: Any, indent: int) -> list[str]:
    """`key:` and what belongs to it."""
    why, item = (item.why, item.value) if isinstance(item, Noted) else ("", item)
    if isinstance(item, (dict, list, tuple)) and item:
        return [*_comment(why, indent), head, *_lines(item, indent + 2)]
    block = _block(item, indent + 2) if isinstance(item, str) and "\n" in item else None
    if block:
        return [*_comment(why, indent), f"{head} {block[0]}", *block[1:]]
    line = f"{head} {_scalar(item)}"
    if why and "\n" not in why and len(line) + len(why) + 4 <= WIDTH:
        return [f"{line}  # {why}"]
    return [*_comment(why, indent), line]


def _item(item: Any, indent: int) -> list[str]:
    why, item = (item.why, item.value) if isinstance(item, Noted) else ("", item)
    pad = " " * indent
    if not isinstance(item, (dict, list, tuple)) or not item:
        return _entry(f"{pad}-", Noted(item, why) if why else item, indent)
    inner = _lines(item, indent + 2)
    first = next(at for at, line in enumerate(inner) if not line.lstrip().startswith("#"))
    above = [line[2:] if line.startswith("  ") else line for line in inner[:first]]
    return [*_comment(why, indent), *above, f"{pad}- {inner[first].lstrip()}", *inner[first + 1 :]]


def _comment(why: str, indent: int) -> list[str]:
    pad = " " * indent + "# "
    return [pad + line for part in why.splitlines() for line in textwrap.wrap(part, max(40, WIDTH - len(pad)))]


def _block(text: str, indent: int) -> list[str] | None:
    """Text of several lines as a literal block; None where that cannot hold it."""
    body = text.split("\n")
    if not all(_BLOCK_LINE.fullmatch(line) for line in body) or not body[0].strip() or body[0][0] in " \t":
        return None
    ends = len(text) - len(text.rstrip("\n"))
    style = {0: "|-", 1: "|"}.get(ends, "|+")
    lines = body if not ends else body[:-1]
    return [style, *(" " * indent + line if line else "" for line in lines)]


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (dict, list, tuple)):
        return "{}" if isinstance(value, dict) else "[]"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED and not value.endswith((" ", ":")):
        return value
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    code = ord(character)
    if 0x20 <= code <= 0x7E or _BLOCK_LINE.fullmatch(character) and character != "\t":
        return character
    if code == 0x0A:
        return "\\n"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
