"""The few shapes that are compiled: every batch is filled up to one of them.

In: how many requests at once, how long they may be. Out: sizes, and which one a batch takes.

>>> sizes = buckets(16, 512)
>>> sizes.rows, sizes.chunks
((1, 2, 4, 8, 16), (16, 32, 64, 128))
>>> fit(sizes.rows, 3)
4

Kernels read no further than each request has come, on a processor as on Ascend, so the length of a request needs no
sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHUNKS, GROWTH = (16, 32, 64, 128), 2
"""Of a processor, where a product takes the longer the more rows it has: from about 8 rows on it computes longer than
it reads weights. A piece of 128 tokens takes about as long as a few steps, which those who answer meanwhile wait
for."""
PAGED_CHUNKS, PAGED_GROWTH = (128, 512), 4
"""Of Ascend's form. A piece of 512 tokens keeps an Atlas 800T A2 busy with products: 295 TFLOP/s over
1.6 TB/s are 184 operations for each byte read, and a weight, two bytes, takes part in two operations a token. Rows are
far below that, so a filler costs its logits only."""


@dataclass(frozen=True)
class Buckets:
    """Attributes:
    rows: requests of a step of decoding.
    chunks: tokens of a prompt that are read at once.
    """

    rows: tuple[int, ...]
    chunks: tuple[int, ...]

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, new tokens) of all graphs."""
        return [*((1, chunk) for chunk in self.chunks), *((rows, 1) for rows in self.rows)]


def buckets(slots: int, length: int) -> Buckets:
    """Sizes of a processor's engine, for `slots` requests of at most `length` tokens."""
    return _buckets(slots, length, CHUNKS, GROWTH)


def paged_buckets(slots: int, length: int) -> Buckets:
    """Sizes of Ascend's form.

    >>> paged_buckets(16, 4096)
    Buckets(rows=(1, 4, 16), chunks=(128, 512))
    """
    return _buckets(slots, length, PAGED_CHUNKS, PAGED_GROWTH)


def _buckets(slots: int, length: int, chunks: Sequence[int], growth: int) -> Buckets:
    rows = [1]
    while rows[-1] < slots:
        rows.append(min(rows[-1] * growth, slots))
    return Buckets(tuple(rows), tuple(sorted({min(chunk, length) for chunk in chunks})))


def fit(sizes: Sequence[int], wanted: int) -> int:
    """The smallest size that is enough. Raises ValueError where none is."""
    for size in sizes:
        if size >= wanted:
            return size
    raise ValueError(f"{wanted} is more than the largest size, {sizes[-1]}")
