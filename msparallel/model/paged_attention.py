"""Attention of new tokens over a cache of blocks, in Ascend's operators: ReshapeAndCache and PagedAttention.

In: queries, keys and values of new tokens, [R, S, heads * D] for R requests of S tokens; which row of the cache each
token gets, which blocks each request reads and how far. Out: [R, S, N * D].

The cache of a layer is [blocks, block_size, KV, D], keys and values each, in float16 or bfloat16; heads are cut over
tp. ReshapeAndCache writes new tokens, PagedAttention reads. One kernel does a step of decoding (S = 1) and a piece of
a prompt over what stands before it (S > 1). For the latter it takes `q_seq_lens` and a mask [tokens, window] that is
added to the scores: 0 for keys up to the token's own position, -10000 behind it.

Operators, attributes and the mask are those of MindFormers' inference (`parallel_core/inference/transformer`:
flash_attention.py, lower_triangular_mask.py, and its older modules/paged_attention_mgr.py for the strategies). Lengths
come as graph inputs named `q_seq_lens` and `batch_valid_length`: Ascend's kernel reads these from the host by name
(MindSpore's `InternalPagedAttention`), so the names in `served.py` are part of the interface.

>>> core = PagedCore(shape, parallel, ms.bfloat16, blocks)  # doctest: +SKIP
>>> mixed = core(query, key, value, places)  # doctest: +SKIP
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.ops.auto_generate import PagedAttention, ReshapeAndCache

from msparallel.model.attention import HeadProjections
from msparallel.model.cache_blocks import Blocks
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig

BEHIND = -10000.0
"""Added to the score of a key that a token must not see (9984 in bfloat16): far beyond any score, and a sum with one
stays within float16."""


class PagedPlaces(nn.Cell):
    """Positions [R, S] and where things stand -> what the attention of every layer needs; all layers share it.

    Inputs, int32: slot_mapping [R * S], block_tables [R, blocks of a slot], batch_valid_length [R], q_seq_lens [R].

    Returns:
        slot_mapping, block_tables, batch_valid_length, q_seq_lens, and the mask [R * S, window]; with one new token a
        request there is nothing to hide.
    """

    def __init__(self, parallel: OpParallelConfig, compute_dtype: ms.Type, blocks: Blocks) -> None:
        super().__init__()
        self.window = Tensor(np.arange(blocks.window, dtype=np.int32)[None])
        self.dtype = compute_dtype
        self.later, self.cast, self.scale = ops.Greater(), ops.Cast(), ops.Mul()
        if parallel.sharded:
            self.shard()

    def construct(self, positions, slot_mapping, block_tables, batch_valid_length, q_seq_lens):
        rows, new = positions.shape
        if new == 1:
            return slot_mapping, block_tables, batch_valid_length, None, None
        later = self.later(self.window, ops.reshape(positions, (rows * new, 1)))
        mask = self.scale(self.cast(later, self.dtype), BEHIND)
        return slot_mapping, block_tables, batch_valid_length, q_seq_lens, mask

    def shard(self) -> None:
        """The table of strategies: every device has all requests."""
        self.later.shard(((1, 1), (1, 1)))
        self.cast.shard(((1, 1),))
        self.scale.shard(((1, 1), ()))


class PagedCore(nn.Cell):
    """Queries [R, S, N * D], keys and values [R, S, KV * D] of new tokens -> [R, S, N * D], the new ones remembered."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, blocks: Blocks) -> None:
        super().__init__()
        cache = (blocks.count, blocks.block_size, shape.num_kv_heads, shape.head_dim)
        self.key_cache = Parameter(initializer("zeros", cache, compute_dtype), name="key_cache", requires_grad=False)
        self.value_cache = Parameter(
            initializer("zeros", cache, compute_dtype), name="value_cache", requires_grad=False
        )
        # MindSpore cuts the operator's tensors and leaves its numbers of heads, which are those of one device.
        devices, scale = parallel.model_parallel, 1.0 / math.sqrt(shape.head_dim)
        heads, kv_heads = shape.num_heads // devices, shape.num_kv_heads // devices
        self.remember = ReshapeAndCache()
        self.attend_one = PagedAttention(heads, scale, kv_heads)
        self.attend_piece = PagedAttention(heads, scale, kv_heads)
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, query, key, value, places):
        slot_mapping, block_tables, batch_valid_length, q_seq_lens, mask = places
        written = self.remember(key, value, self.key_cache, self.value_cache, slot_mapping)
        query = ops.depend(query, written)
        if query.shape[1] == 1:
            return self.attend_one(query, self.key_cache, self.value_cache, block_tables, batch_valid_length)
        return self.attend_piece(
            query, self.key_cache, self.value_cache, block_tables, batch_valid_length, None, None, mask, q_seq_lens
        )

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies: heads are cut over tp, in the cache too."""
        tp = parallel.model_parallel
        features, cache = (1, 1, tp), (1, 1, tp, 1)
        self.remember.shard((features, features, cache, cache, (1,)))
        self.attend_one.shard((features, cache, cache, (1, 1), (1,)))
        self.attend_piece.shard((features, cache, cache, (1, 1), (1,), (1, 1), (1,)))


class CachedAttention(HeadProjections):
    """x [T, H] -> [T, H]: project, rotate, remember and attend, project back.

    Args:
        core: what remembers and attends, a PagedCore.
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, core: nn.Cell) -> None:
        super().__init__(shape, parallel, compute_dtype, fused=True)
        self.core = core

    def construct(self, x, rows, places, *rotary):
        new, d = x.shape[0] // rows, self.head_dim
        query, key, value = self.by_head(x, rows, new, rotary)
        query = ops.reshape(query, (rows, new, self.heads * d))
        key = ops.reshape(key, (rows, new, self.kv_heads * d))
        value = ops.reshape(value, (rows, new, self.kv_heads * d))
        mixed = self.core(query, key, value, places)
        return self.o_proj(ops.reshape(mixed, (rows * new, self.heads * d)))
