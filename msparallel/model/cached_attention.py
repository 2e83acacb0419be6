"""Attention of new tokens over what is remembered: keys and values of every request stay in a cache.

In: queries, keys and values of R rows, one for each request, of S new tokens; where each row's tokens stand. Out:
[R, S, N * D]. A request has a slot: room for the keys and values of `length` tokens. N query heads share KV key heads,
G = N / KV of them each. For one device and plain operators; Ascend's form is in `paged_attention.py`, what stands
around it here in `packed.py`.

The flat cache of a layer is [slots * KV * length, D], a row for each slot, key head and position, so that new rows are
written in place and the rows that a request can see are read by their numbers. A token sees positions up to its own;
what a slot holds behind them is never read, so a slot needs no clearing.

>>> core = FlatCore(shape, ms.float32, slots=8, length=1024)  # doctest: +SKIP
>>> mixed = core(query, key, value, places)  # doctest: +SKIP
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model.attention_mask import HIDDEN
from msparallel.model.shape import ModelShape


class CachePlaces(nn.Cell):
    """Positions [R, S], slots [R] and a window [W] -> which cache rows are written and read, and who sees what.

    All layers share them. `window` is 0 .. W - 1: its length says how far back the longest row can see.

    Returns:
        write: int32 [R * KV * S]; read: int32 [R * KV * W]; mask: float32 [R, 1, S, 1, W], 0 or HIDDEN.
    """

    def __init__(self, kv_heads: int, slots: int, length: int) -> None:
        super().__init__()
        first = (np.arange(slots)[:, None] * kv_heads + np.arange(kv_heads)) * length
        self.first_row = Tensor(first.astype(np.int32))
        self.kv_heads = kv_heads

    def construct(self, positions, slots, window):
        rows, new, seen, kv = positions.shape[0], positions.shape[1], window.shape[0], self.kv_heads
        first = ops.reshape(ops.gather(self.first_row, slots, 0), (rows, kv, 1))
        write = ops.reshape(first + ops.reshape(positions, (rows, 1, new)), (rows * kv * new,))
        read = ops.reshape(first + ops.reshape(window, (1, 1, seen)), (rows * kv * seen,))
        later = ops.greater(ops.reshape(window, (1, 1, seen)), ops.reshape(positions, (rows, new, 1)))
        mask = ops.cast(later, ms.float32) * HIDDEN
        return write, read, ops.reshape(mask, (rows, 1, new, 1, seen))


class FlatCore(nn.Cell):
    """Queries [R, S, N, D], keys and values [R, S, KV, D] of new tokens -> [R, S, N * D], the new ones remembered; in
    operators that the CPU has."""

    def __init__(self, shape: ModelShape, compute_dtype: ms.Type, *, slots: int, length: int) -> None:
        super().__init__()
        self.kv_heads, self.head_dim = shape.num_kv_heads, shape.head_dim
        self.group = shape.num_heads // shape.num_kv_heads
        rows = slots * shape.num_kv_heads * length
        self.key_cache = Parameter(initializer("zeros", (rows, shape.head_dim), compute_dtype), name="key_cache")
        self.value_cache = Parameter(initializer("zeros", (rows, shape.head_dim), compute_dtype), name="value_cache")
        self.factor = 1.0 / math.sqrt(shape.head_dim)
        self.remember, self.recall = ops.ScatterUpdate(), ops.Gather()
        self.scores, self.weigh, self.softmax = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(), ops.Softmax(-1)

    def construct(self, query, key, value, places):
        write, read, mask = places
        rows, new, seen = mask.shape[0], mask.shape[2], mask.shape[4]
        kv, group, d = self.kv_heads, self.group, self.head_dim
        keys = self.keep(self.key_cache, key, write, read, rows, seen)
        values = self.keep(self.value_cache, value, write, read, rows, seen)
        query = ops.reshape(query * self.factor, (rows, new, kv, group * d))
        query = ops.reshape(self.by_head(query), (rows, kv, new * group, d))
        scores = ops.reshape(ops.cast(self.scores(query, keys), ms.float32), (rows, kv, new, group, seen))
        weights = ops.cast(self.softmax(scores + mask), key.dtype)
        mixed = self.weigh(ops.reshape(weights, (rows, kv, new * group, seen)), values)
        return self.by_token(ops.reshape(mixed, (rows, kv, new, group * d)))

    def keep(self, cache, fresh, write, read, rows, seen):
        """Write new rows [R, S, KV, D] into a cache, and read what the requests see, [R, KV, W, D]."""
        fresh = ops.reshape(self.by_head(fresh), (-1, self.head_dim))
        cache = self.remember(cache, write, fresh)
        return ops.reshape(self.recall(cache, read, 0), (rows, self.kv_heads, seen, self.head_dim))

    def by_head(self, x):
        """[R, S, KV, n] -> [R, KV, S, n]; with one token there is nothing to move."""
        if x.shape[1] == 1:
            return ops.reshape(x, (x.shape[0], x.shape[2], 1, x.shape[3]))
        return ops.transpose(x, (0, 2, 1, 3))

    def by_token(self, x):
        """[R, KV, S, n] -> [R, S, KV, n]."""
        if x.shape[2] == 1:
            return ops.reshape(x, (x.shape[0], 1, x.shape[1], x.shape[3]))
        return ops.transpose(x, (0, 2, 1, 3))
