"""The few shapes that are compiled: every batch is filled up to one of them.

In: how many requests at once, how long they may be. Out: sizes, and which one a batch takes.

>>> sizes = buckets(16, 512)
>>> sizes.rows, sizes.chunks, sizes.windows, sizes.batch_windows
((1, 16), (64, 128), (128, 512), (128, 256, 512))
>>> fit(sizes.windows_of(1), 129), fit(sizes.windows_of(16), 129)
(512, 256)

Why these: a step of decoding reads all weights however many rows it has, so between 1 row and all of them little is
gained on a processor, and each further size costs a compilation at the start. Attention of one request costs little
beside the weights, of a batch as much as they do: its windows grow by two, those of one by eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHORT_CHUNK, CHUNK, FIRST_WINDOW, GROWTH, BATCH_GROWTH = 64, 128, 128, 8, 2
PAGED_CHUNKS, PAGED_GROWTH = (128, 512), 4
"""Of Ascend's form. A piece of 512 tokens keeps an Atlas 800T A2 busy with products: 295 TFLOP/s over
1.6 TB/s are 184 operations for each byte read, and a weight, two bytes, takes part in two operations a token."""


@dataclass(frozen=True)
class Buckets:
    """Attributes:
    rows: requests of a step of decoding.
    chunks: tokens of a prompt that are read at once.
    windows: tokens that a request can see, while its prompt is read and where it is alone.
    batch_windows: tokens that the longest of several can see; none: the same.
    """

    rows: tuple[int, ...]
    chunks: tuple[int, ...]
    windows: tuple[int, ...]
    batch_windows: tuple[int, ...] = ()

    def windows_of(self, rows: int) -> tuple[int, ...]:
        """Of a step with so many rows."""
        return self.batch_windows or self.windows if rows > 1 else self.windows

    def shapes(self) -> list[tuple[int, int, int]]:
        """(rows, new tokens, window) of all graphs. A short chunk is for short prompts, so it has the first window
        only."""
        decode = [(rows, 1, window) for rows in self.rows for window in self.windows_of(rows)]
        first = [(1, chunk, self.windows[0]) for chunk in self.chunks]
        return [*first, *((1, self.chunks[-1], window) for window in self.windows[1:]), *decode]


def buckets(slots: int, length: int) -> Buckets:
    """Sizes for `slots` requests of at most `length` tokens."""
    chunks = tuple(sorted({min(SHORT_CHUNK, length), min(CHUNK, length)}))
    rows = tuple(sorted({1, min(16, slots), slots}))
    return Buckets(rows, chunks, _growing(GROWTH, length), _growing(BATCH_GROWTH, length))


def _growing(factor: int, length: int) -> tuple[int, ...]:
    """Windows up to the longest."""
    windows = [min(FIRST_WINDOW, length)]
    while windows[-1] < length:
        windows.append(min(windows[-1] * factor, length))
    return tuple(windows)


def paged_buckets(slots: int, length: int) -> Buckets:
    """Sizes of Ascend's form: its kernel reads no further than each request has come, so one window is enough, and
    rows grow by four, since attention of fillers and the logits are all that a row costs.

    >>> paged_buckets(16, 4096)
    Buckets(rows=(1, 4, 16), chunks=(128, 512), windows=(4096,), batch_windows=())
    """
    rows = [1]
    while rows[-1] < slots:
        rows.append(min(rows[-1] * PAGED_GROWTH, slots))
    return Buckets(tuple(rows), tuple(sorted({min(chunk, length) for chunk in PAGED_CHUNKS})), (length,))


def fit(sizes: Sequence[int], wanted: int) -> int:
    """The smallest size that is enough. Raises ValueError where none is."""
    for size in sizes:
        if size >= wanted:
            return size
    raise ValueError(f"{wanted} is more than the largest size, {sizes[-1]}")
