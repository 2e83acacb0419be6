"""Log files as blocks of whole lines, so that a file of any size takes the same memory.

In: a path, plain or gzip. Out: blocks of bytes that end at a line's end. A line longer than `LONGEST_LINE_BYTES` is cut
there. Bytes are not decoded here: a log with broken characters is a log all the same.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 16
MOST_UNPACKED_BYTES = 4 << 30
"""Of one gzip file: a small file can unpack to any size."""
HEAD_BYTES = 8192


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


def blocks(path: Path) -> Iterator[bytes]:
    """Blocks of whole lines, each at most `BLOCK_BYTES` plus a line.

    Raises:
        Unreadable: after the blocks that could be read.
    """
    rest, read = b"", 0
    try:
        with open_log(path) as file:
            while block := file.read(BLOCK_BYTES):
                read += len(block)
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
