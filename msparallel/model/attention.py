"""Causal self-attention within documents, with grouped keys and values.

In: x [T, H] with T = B * S, the mask, and with rotary positions cosine and sine [B, S, 1, D]. Out: [T, H].
N query heads share KV key/value heads, G = N / KV of them each. Keys are never repeated: the G queries of a key head
lie side by side along its sequence, [B, KV, S * G, D].

Context parallel cuts the sequence over cp everywhere else; here either the queries stay cut and keys and values are
gathered (`colossalai_cp`), or heads are cut over tp x cp while the sequence is whole (`ulysses_cp`). Both are nothing
but strategies of the same operators.
"""

from __future__ import annotations

import math
from typing import Literal

import mindspore as ms
from mindspore import nn, ops
from mindspore.ops.auto_generate import FlashAttentionScore

from msparallel.model import strategies
from msparallel.model.linear import Linear
from msparallel.model.norm import RMSNorm
from msparallel.model.rotary import Rotate
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class PlainAttention(nn.Cell):
    """Queries [B, S, N, D], keys and values [B, S, KV, D] -> [B, S, N * D]; softmax in float32."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.kv_heads, self.head_dim = shape.num_kv_heads, shape.head_dim
        self.group = shape.num_heads // shape.num_kv_heads
        self.factor = 1.0 / math.sqrt(shape.head_dim)
        self.in_rows = not parallel.sharded  # two dimensions: the CPU's softmax is twice as fast there
        self.split_query, self.split_key, self.merge = ops.Transpose(), ops.Transpose(), ops.Transpose()
        self.scores, self.weigh = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.scale, self.mask, self.softmax = ops.Mul(), ops.Add(), ops.Softmax(-1)
        self.cast_in, self.cast_out = ops.Cast(), ops.Cast()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, query, key, value, mask):
        batch, seq = query.shape[0], query.shape[1]
        kv, group, d = self.kv_heads, self.group, self.head_dim
        query = ops.reshape(self.scale(query, self.factor), (batch, seq, kv, group * d))
        query = ops.reshape(self.split_query(query, (0, 2, 1, 3)), (batch, kv, seq * group, d))
        key = self.split_key(key, (0, 2, 1, 3))
        value = self.split_key(value, (0, 2, 1, 3))
        scores = self.cast_in(self.scores(query, key), ms.float32)
        pairs = mask.shape if self.in_rows else (batch, kv, seq, group, seq)
        weights = self.softmax(self.mask(ops.reshape(scores, pairs), mask))
        weights = ops.reshape(self.cast_out(weights, value.dtype), (batch, kv, seq * group, seq))
        mixed = ops.reshape(self.weigh(weights, value), (batch, kv, seq, group * d))
        return ops.reshape(self.merge(mixed, (0, 2, 1, 3)), (batch, seq, kv * group * d))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        axes, (queries, heads) = strategies.axes(parallel), strategies.attention_axes(parallel)
        rows, keys = axes("dp", heads, queries, "None"), axes("dp", heads, "None", "None")
        pairs = axes("dp", heads, queries, "None", "None")
        self.scale.shard((axes("dp", "cp", "tp", "None"), axes()))
        self.split_query.shard((axes("dp", queries, heads, "None"),))
        self.split_key.shard((axes("dp", queries, heads, "None"),))
        self.scores.shard((rows, keys))
        self.cast_in.shard((rows,))
        self.mask.shard((pairs, axes("dp", "None", queries, "None", "None")))
        self.softmax.shard((pairs,))
        self.cast_out.shard((pairs,))
        self.weigh.shard((rows, keys))
        self.merge.shard((rows,))


class FlashAttention(nn.Cell):
    """The same through Ascend's fused kernel; float16 and bfloat16 only."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.split_query, self.split_key, self.merge = ops.Transpose(), ops.Transpose(), ops.Transpose()
        self.attend = FlashAttentionScore(
            head_num=shape.num_heads, scale_value=1.0 / math.sqrt(shape.head_dim), input_layout="BNSD", sparse_mode=0
        )
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, query, key, value, mask):
        batch, seq, heads, d = query.shape
        query = self.split_query(query, (0, 2, 1, 3))
        key = self.split_key(key, (0, 2, 1, 3))
        value = self.split_key(value, (0, 2, 1, 3))
        mixed = self.attend(query, key, value, None, None, None, mask)[3]
        return ops.reshape(self.merge(mixed, (0, 2, 1, 3)), (batch, seq, heads * d))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        axes, (queries, heads) = strategies.axes(parallel), strategies.attention_axes(parallel)
        rows, keys = axes("dp", heads, queries, "None"), axes("dp", heads, "None", "None")
        self.split_query.shard((axes("dp", queries, heads, "None"),))
        self.split_key.shard((axes("dp", queries, heads, "None"),))
        self.attend.shard((rows, keys, keys, axes("dp", "None", queries, "None")))
        self.merge.shard((rows,))


class HeadProjections(nn.Cell):
    """What attention has around its core: x [T, H] -> queries, keys and values by head, normed and turned; and back.

    Args:
        fused: use Ascend's kernels for the norms.
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, *, fused: bool) -> None:
        super().__init__()
        h, d, bias = shape.hidden_size, shape.head_dim, shape.attention_bias
        self.heads, self.kv_heads, self.head_dim = shape.num_heads, shape.num_kv_heads, d
        self.q_proj = Linear(h, shape.num_heads * d, parallel, compute_dtype, cut="column", bias=bias)
        self.k_proj = Linear(h, shape.num_kv_heads * d, parallel, compute_dtype, cut="column", bias=bias)
        self.v_proj = Linear(h, shape.num_kv_heads * d, parallel, compute_dtype, cut="column", bias=bias)
        self.o_proj = Linear(shape.num_heads * d, h, parallel, compute_dtype, cut="row", bias=shape.output_bias)
        self.has_qk_norm, self.has_rotary = shape.qk_norm, shape.position == "rope"
        if self.has_qk_norm:
            heads = (parallel.data_parallel, parallel.context_parallel, parallel.model_parallel, 1)
            strategy = heads if parallel.sharded else None
            self.q_norm = RMSNorm(d, shape.norm_eps, strategy, fused=fused)
            self.k_norm = RMSNorm(d, shape.norm_eps, strategy, fused=fused)
        if self.has_rotary:
            self.rotate = Rotate(parallel)

    def by_head(self, x, batch, seq, rotary):
        """[T, H] -> queries [B, S, N, D], keys and values [B, S, KV, D]; for use inside a construct."""
        query = ops.reshape(self.q_proj(x), (batch, seq, self.heads, self.head_dim))
        key = ops.reshape(self.k_proj(x), (batch, seq, self.kv_heads, self.head_dim))
        value = ops.reshape(self.v_proj(x), (batch, seq, self.kv_heads, self.head_dim))
        if self.has_qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.has_rotary:
            query, key = self.rotate(query, *rotary), self.rotate(key, *rotary)
        return query, key, value


class Attention(HeadProjections):
    """x [T, H] -> [T, H]: project, rotate, attend, project back."""

    def __init__(
        self,
        shape: ModelShape,
        parallel: OpParallelConfig,
        compute_dtype: ms.Type,
        attention: Literal["plain", "flash"],
    ) -> None:
        super().__init__(shape, parallel, compute_dtype, fused=attention == "flash")
        self.core = (FlashAttention if attention == "flash" else PlainAttention)(shape, parallel)
        if parallel.recompute == "selective":
            self.core.recompute()

    def construct(self, x, mask, *rotary):
        tokens, seq = x.shape[0], mask.shape[-1]
        query, key, value = self.by_head(x, tokens // seq, seq, rotary)
        mixed = self.core(query, key, value, mask)
        return self.o_proj(ops.reshape(mixed, (tokens, self.heads * self.head_dim)))
