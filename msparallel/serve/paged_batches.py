"""Pieces of prompts and steps of decoding, filled up to the shapes that were compiled. Pure.

In: blocks, sizes, and what runs a graph. Out: `prefill` and `decode`, as engines have them. What stands behind `run` is
a device (`paged_engine.py`) or the virtual cluster that proves it (`simulate/serving.py`); all else is the same code.

>>> batches = PagedBatches(blocks, paged_buckets(16, 4096), vocab_size=151936, run=model)  # doctest: +SKIP
>>> logits = batches.prefill(slot=0, start=0, tokens=[72, 105])  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from msparallel.model.cache_blocks import Blocks
from msparallel.serve.buckets import Buckets, fit
from msparallel.serve.paged_inputs import Arrays, decode_inputs, prefill_inputs
from msparallel.serve.row import Row


class PagedBatches:
    """Args:
    run: inputs of one graph (`paged_inputs.INPUTS`) -> logits float32 [rows, vocabulary with its padding].
    """

    def __init__(self, blocks: Blocks, sizes: Buckets, vocab_size: int, run: Callable[[Arrays], np.ndarray]):
        self._blocks, self._sizes, self._vocab, self._run = blocks, sizes, vocab_size, run

    def prefill(self, *, slot: int, start: int, tokens: Sequence[int]) -> np.ndarray:
        """Read `tokens`, at most a chunk, which stand at `start` and behind it in a slot whose earlier positions are
        filled. Returns logits float32 [vocab_size] behind the last."""
        chunk = fit(self._sizes.chunks, len(tokens))
        fed = prefill_inputs(self._blocks, slot=slot, start=start, tokens=tokens, chunk=chunk)
        return self._run(fed)[0, : self._vocab]

    def decode(self, batch: Sequence[Row]) -> np.ndarray:
        """One token more for every request. Returns logits float32 [requests, vocab_size]."""
        fed = decode_inputs(self._blocks, batch, fit(self._sizes.rows, len(batch)))
        return self._run(fed)[: len(batch), : self._vocab]
