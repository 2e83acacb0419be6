"""Log files as blocks of whole lines, so that a file of any size takes the same memory.

In: a path, plain or gzip. Out: blocks of bytes that end at a line's end. A line longer than `LONGEST_LINE_BYTES` is cut
there. Bytes are not decoded here: a log with broken characters is a log all the same. Two things are mended, since the
rules look for ASCII: UTF-16 (what PowerShell writes) becomes UTF-8, and holes of NUL bytes, which a crashed host or a
rotation that cuts a file off leaves behind, are left out.

>>> encoding_of(b"\xff\xfe[\x00E\x00"), encoding_of(b"[ERROR]"), encoding_of(b"ab\x00cd")
('utf-16', 'utf-8', None)
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 16
MOST_UNPACKED_BYTES = 4 << 30
"""Of one gzip file: a small file can unpack to any size."""
HEAD_BYTES = 8192
_HOLE = re.compile(rb"\0{16,}")
_MOSTLY = 0.7
"""Of every second byte NUL, so much makes UTF-16 without a mark."""


class Unreadable(Exception):
    """A file whose rest cannot be read; the text says why."""


def open_log(path: Path) -> BinaryIO:
    """The file, unpacked where its first bytes are gzip's."""
    file = path.open("rb")
    packed = file.read(2) == b"\x1f\x8b"
    file.close()
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


def head_of(path: Path) -> bytes:
    """The first bytes of a file.

    Raises:
        OSError, EOFError: where it cannot be read.
    """
    with open_log(path) as file:
        try:
            return file.read(HEAD_BYTES)
        except zlib.error as error:
            raise OSError(f"broken gzip: {error}") from None


def encoding_of(head: bytes) -> str | None:
    """How a file that begins so is written; None where it is not text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    text = _HOLE.sub(b"", head)
    if b"\0" not in text:
        return "utf-8"
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if head[first::2].count(0) > _MOSTLY * len(head) / 2 > 2 * head[1 - first :: 2].count(0):
            return name
    return None


def as_text(head: bytes) -> bytes:
    """First bytes of a file as `blocks` gives them."""
    encoding = encoding_of(head) or "utf-8"
    text = head if encoding == "utf-8" else head.decode(encoding, "replace").encode("utf-8", "replace")
    return text.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"")


def _decoded(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of an open file, in blocks, as UTF-8 without holes and marks."""
    block = file.read(BLOCK_BYTES)
    encoding = encoding_of(block[:HEAD_BYTES])
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding and encoding != "utf-8" else None
    block = block.removeprefix(codecs.BOM_UTF8)
    while block:
        if decoder is not None:
            yield decoder.decode(block).encode("utf-8", "replace")
        else:
            yield block.replace(b"\0", b"") if b"\0" in block else block
        block = file.read(BLOCK_BYTES)


def blocks(path: Path, told: Callable[[int], object] = lambda count: None) -> Iterator[bytes]:
    """Blocks of whole lines, each at most `BLOCK_BYTES` (of UTF-16 three halves of that) plus a line; `told` hears of
    every byte, also of those that a line too long leaves out.

    Raises:
        Unreadable: after the blocks that could be read.
    """
    rest, read = b"", 0
    try:
        with open_log(path) as file:
            for block in _decoded(file):
                read += len(block)
                told(len(block))
                end = block.rfind(b"\n") + 1
                if end:
                    yield rest + block[:end]
                    rest = block[end:]
                else:
                    rest += block
                if len(rest) > LONGEST_LINE_BYTES:
                    yield rest[:LONGEST_LINE_BYTES]  # the middle of such a line is dropped, its end is kept
                    rest = rest[-LONGEST_LINE_BYTES:]
                if isinstance(file, gzip.GzipFile) and read > MOST_UNPACKED_BYTES:
                    raise Unreadable(f"unpacks to more than {MOST_UNPACKED_BYTES >> 30} GiB; the rest was not read")
    except (OSError, EOFError, zlib.error) as error:
        if rest:
            yield rest
        raise Unreadable(f"cannot be read to its end: {getattr(error, 'strerror', None) or error}") from None
    if rest:
        yield rest
