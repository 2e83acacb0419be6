"""What a line of a log says of itself: its level, where another program's prefix ends, how it may be shown.

In: bytes of a line. Out: whether it is quiet, the line without what other programs put before it, text without secrets.

>>> is_quiet(b"[WARNING] ME(1:2,MainProcess): x"), bare_of(b"[rank3]: ValueError: x")
(True, b'ValueError: x')
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder

from msparallel.diagnose.secrets import without_secrets
from msparallel.errors import printable, short

LONGEST_TEXT = 400
_LEVEL = re.compile(rb"(?<![A-Za-z.])(?:(INFO|WARNING|WARN|DEBUG|TRACE|EVENT|NOTICE|level=(?:info|warning|debug))"
                    rb"|ERROR|CRITICAL|FATAL|EXCEPTION|level=(?:error|fatal)"
                    rb"|\w*(?:Error|Exception):)(?![A-Za-z])")  # fmt: skip
"""The first level in a line, as MindSpore, CANN, Python's logging, vLLM and Go write it; group 1 is a quiet one."""
_QUIET_LETTER = re.compile(rb"^(?:\(.{1,80}?\) )?(?:\[rank\d{1,6}\]: ?)?\[?[WI]\d{0,4} "
                           rb"(?:\d\d:\d\d:\d\d[.\d]*|[\w.]{1,60}:\d+\])")  # fmt: skip
"""A level of one letter: `[W530 17:44:21.4 a.ts:526]`, `[W OpCommand.cpp:88]`, `I0709 20:08:32.572540`."""
LEVEL_BYTES = 160
_PREFIX = re.compile(rb"(?:E {1,16}|\[rank\d{1,6}\]: ?|\([\w= ,.:-]{1,80}\) ?"
                     rb"|(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w.]{1,60}:\d{1,6}\] ?"
                     rb"|/[^\s:]{1,300}[:-]\d{1,9}[:-](?:\[rank\d{1,6}\]: ?)?"
                     rb"|[\w.-]{1,60} {1,20}\| ){1,4}")  # fmt: skip
"""What pytest, torchrun, Ray, vLLM, grep and docker compose put before a line of another program."""


_QUIET_BEGINS = (b"[INFO]", b"[WARNING]", b"[EVENT]", b"[TRACE]", b"[DEBUG]")


def loud_ones(lines: list[bytes]) -> list[int]:
    """Numbers of lines that may be of level ERROR and above. Fast: most lines of most logs are quiet in one of two
    forms, and only these are told apart.

    >>> loud_ones([b"2026-03-01 10:04:25,118 - mindformers[a.py:519] - INFO - { step:[  127/10000]", b"[INFO] x", b"y"])
    [2]
    """
    return [number for number, text in enumerate(lines)
            if (b" - INFO - " not in text[:LEVEL_BYTES] if text[:2] == b"20"
                else not text.startswith(_QUIET_BEGINS))]  # fmt: skip


def is_quiet(text: bytes) -> bool:
    """Whether a line is of level WARNING or below, as far as it says so."""
    level = _LEVEL.search(text, 0, LEVEL_BYTES)
    return (level is not None and level[1] is not None) or _QUIET_LETTER.match(text) is not None


def bare_of(text: bytes) -> bytes:
    """The line without what other programs put before it; the line itself where there is nothing."""
    prefix = _PREFIX.match(text)
    return text if prefix is None else text[prefix.end() :]


def _decoded(text: bytes) -> str:
    """UTF-8, else GB 18030, which older Chinese systems write; a character that is cut off at the end is left out."""
    for encoding in ("utf-8", "gb18030"):
        try:
            return getincrementaldecoder(encoding)().decode(text)
        except UnicodeDecodeError:
            continue
    return text.decode("utf-8", "backslashreplace")


def shown(text: bytes) -> str:
    """A piece of a log as it may be shown."""
    words = _decoded(text[: 4 * LONGEST_TEXT]).strip()
    return short(printable(without_secrets(words)).replace("\t", " "), LONGEST_TEXT)
