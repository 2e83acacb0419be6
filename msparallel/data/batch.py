"""What one optimizer step reads, and how it is cut for accumulation steps and data-parallel ranks.

In: rows of packed sequences. Out: a Batch of NumPy arrays, whole or cut.

Rows of a global batch are ordered [accumulation step][data-parallel rank][row of the micro-batch]. Which sequences a
step trains on depends on the global batch size alone, so another data_parallel or micro_batch_size only moves the cuts:

>>> halves = micro_batches(batch, 2)                            # doctest: +SKIP
>>> mine = shard(halves[0], data_parallel=4, dp_rank=1)         # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """B sequences of S tokens.

    Attributes:
        input_ids: int32 [B, S].
        labels: int32 [B, S], the token after each input token.
        loss_mask: float32 [B, S], 1 where the label counts; 0 where it is another document's, and in filled-up rows.
        position_ids: int32 [B, S], from 0 at the start of the sequence and of each document in it.
        segment_ids: int32 [B, S], number of the document within the sequence, from 0; attention stays within it.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    loss_mask: np.ndarray
    position_ids: np.ndarray
    segment_ids: np.ndarray

    @property
    def valid_tokens(self) -> int:
        """Labels that count: what the loss is divided by."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def size(self) -> int:
        """B, the number of rows."""
        return len(self.input_ids)

    def rows(self, rows: slice) -> Batch:
        """Some of the rows (views, not copies)."""
        return Batch(**{name: array[rows] for name, array in vars(self).items()})

    def filled_up(self, size: int) -> Batch:
        """At least `size` rows: copies of the first row with loss_mask 0 make up the missing ones."""
        missing = size - self.size
        if missing <= 0:
            return self
        filled = {
            name: np.concatenate([array, array[:1].repeat(missing, axis=0)]) for name, array in vars(self).items()
        }
        filled["loss_mask"][self.size :] = 0
        return Batch(**filled)


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """Cut a batch into `count` equal parts, in order: the accumulation steps, or the pipeline's micro-batches.

    Raises ValueError where the rows do not divide.
    """
    size = _part(batch, count)
    return [batch.rows(slice(i * size, (i + 1) * size)) for i in range(count)]


def shard(batch: Batch, *, data_parallel: int, dp_rank: int) -> Batch:
    """The part of one micro-batch that belongs to `dp_rank`: cut with `micro_batches` first, then with this.

    Raises ValueError where the rows do not divide or the rank is outside 0..data_parallel-1.
    """
    if not 0 <= dp_rank < data_parallel:
        raise ValueError(f"dp_rank {dp_rank} is outside 0..{data_parallel - 1}")
    size = _part(batch, data_parallel)
    return batch.rows(slice(dp_rank * size, (dp_rank + 1) * size))


def _part(batch: Batch, count: int) -> int:
    if count < 1 or batch.size % count:
        raise ValueError(f"{batch.size} rows do not divide into {count} equal parts")
    return batch.size // count
