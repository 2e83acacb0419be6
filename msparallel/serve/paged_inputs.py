"""What Ascend's graphs are fed: a piece of a prompt, or a step of decoding, as arrays.

In: where requests stand. Out: the inputs of `PagedTransformer`, int32, in its order (`INPUTS`). The same arrays go to
the device's engine and to the virtual cluster that proves it.

>>> blocks = Blocks(slots=2, length=32, block_size=16)
>>> ids, positions, last, rows, tables, lengths, new = prefill_inputs(blocks, slot=1, start=3, tokens=[7, 8], chunk=4)
>>> ids.tolist(), positions.tolist(), last.tolist(), rows.tolist()
([[7, 8, 0, 0]], [[3, 4, 4, 4]], [1], [35, 36, 64, 64])
>>> tables.tolist(), lengths.tolist(), new.tolist()
([[2, 3]], [5], [4])

A prompt's piece is always `chunk` new tokens for the kernel. Those that only fill it up stand where the last real one
stands, so the mask lets them see what it sees; they are written to the spare row. `batch_valid_length` is never below
the new tokens, and what it counts beyond the real ones is masked. A row that only fills a decoding step up has one
token, in the spare block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from msparallel.model.cache_blocks import Blocks
from msparallel.serve.row import Row

INPUTS = ("input_ids", "positions", "last", "slot_mapping", "block_tables", "batch_valid_length", "q_seq_lens")

Arrays = tuple[np.ndarray, ...]


def input_shapes(blocks: Blocks, rows: int, new: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of `INPUTS` for `rows` requests of `new` tokens."""
    return (rows, new), (rows, new), (rows,), (rows * new,), (rows, blocks.of_a_slot), (rows,), (rows,)


def prefill_inputs(blocks: Blocks, *, slot: int, start: int, tokens: Sequence[int], chunk: int) -> Arrays:
    """A piece of one prompt, `tokens` at `start` and behind it, filled up to `chunk`."""
    count = len(tokens)
    seen = start + count
    assert 0 < count <= chunk <= blocks.window and seen <= blocks.length, f"{count} tokens at {start}, chunk {chunk}"
    ids, positions = np.zeros((1, chunk), np.int32), np.full((1, chunk), seen - 1, np.int32)
    ids[0, :count], positions[0, :count] = tokens, np.arange(start, seen)
    rows = np.full(chunk, blocks.spare_row, np.int32)
    rows[:count] = [blocks.row(slot, position) for position in range(start, seen)]
    return (ids, positions, _array([count - 1]), rows, _array([blocks.table(slot)]), _array([max(seen, chunk)]),
            _array([chunk]))  # fmt: skip


def decode_inputs(blocks: Blocks, batch: Sequence[Row], rows: int) -> Arrays:
    """One token more for every request of a batch, filled up to `rows`."""
    assert 0 < len(batch) <= rows, f"{len(batch)} requests for {rows} rows"
    fillers = rows - len(batch)
    ids = [[row.token] for row in batch] + [[0]] * fillers
    positions = [[row.position] for row in batch] + [[0]] * fillers
    written = [blocks.row(row.slot, row.position) for row in batch] + [blocks.spare_row] * fillers
    tables = [blocks.table(row.slot) for row in batch] + [blocks.spare_table] * fillers
    lengths = [row.position + 1 for row in batch] + [1] * fillers
    return tuple(map(_array, (ids, positions, range(rows), written, tables, lengths, [1] * rows)))


def _array(values: Sequence[object] | range) -> np.ndarray:
    return np.array(values, np.int32)
