"""Causal self-attention within documents, with grouped keys and values.

In: x [T, H] with T = B * S, cosine and sine [B, S, 1, D] (rotary) or None, the mask. Out: [T, H].
N query heads share KV key/value heads; G = N / KV. The keys are never repeated: the G queries of a key head are laid
side by side along its sequence, [B, KV, S * G, D].
"""

from __future__ import annotations

import math
from typing import Literal

import mindspore as ms
from mindspore import nn, ops

from msparallel.model.linear import Linear
from msparallel.model.norm import RMSNorm
from msparallel.model.rotary import Rotate
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig

MASKED = -1e9
"""Added to the scores of forbidden pairs: exp() of it is exactly 0 in float32."""


class DocumentMask(nn.Cell):
    """segment_ids [B, S] -> float32 [B, 1, S, 1, S]: 0 where query s may see key t (t <= s, same document)."""

    def __init__(self, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.equal, self.less_equal, self.logical_and = ops.Equal(), ops.LessEqual(), ops.LogicalAnd()
        self.cast, self.sub, self.mul = ops.Cast(), ops.Sub(), ops.Mul()

    def construct(self, segment_ids):
        batch, seq = segment_ids.shape
        order = ops.arange(0, seq, 1)
        causal = self.less_equal(ops.reshape(order, (1, 1, 1, 1, seq)), ops.reshape(order, (1, 1, seq, 1, 1)))
        same = self.equal(
            ops.reshape(segment_ids, (batch, 1, seq, 1, 1)), ops.reshape(segment_ids, (batch, 1, 1, 1, seq))
        )
        allowed = self.cast(self.logical_and(same, causal), ms.float32)
        return self.mul(self.sub(1.0, allowed), MASKED)


class AttentionCore(nn.Cell):
    """Queries [B, S, N, D], keys and values [B, S, KV, D] -> [B, S, N, D]; softmax in float32."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.group = shape.num_heads // shape.num_kv_heads
        self.factor = 1.0 / math.sqrt(shape.head_dim)
        self.transpose, self.scale, self.mask = ops.Transpose(), ops.Mul(), ops.Add()
        self.scores, self.weighted_sum = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)
        self.cast_in, self.cast_out = ops.Cast(), ops.Cast()

    def construct(self, query, key, value, mask):
        batch, seq = query.shape[0], query.shape[1]
        kv, group, d = self.kv_heads, self.group, self.head_dim
        query = self.scale(query, self.factor)
        query = self.transpose(ops.reshape(query, (batch, seq, kv, group * d)), (0, 2, 1, 3))
        query = ops.reshape(query, (batch, kv, seq * group, d))
        key = self.transpose(key, (0, 2, 1, 3))
        value = self.transpose(value, (0, 2, 1, 3))
        scores = self.cast_in(self.scores(query, key), ms.float32)
        scores = self.mask(ops.reshape(scores, (batch, kv, seq, group, seq)), mask)
        weights = self.cast_out(self.softmax(scores), value.dtype)
        mixed = self.weighted_sum(ops.reshape(weights, (batch, kv, seq * group, seq)), value)
        mixed = ops.reshape(mixed, (batch, kv, seq, group * d))
        return ops.reshape(self.transpose(mixed, (0, 2, 1, 3)), (batch, seq, kv * group, d))


class Attention(nn.Cell):
    """x [T, H] -> [T, H]."""

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, attention: Literal["plain", "flash"]
    ) -> None:
        super().__init__()
        h, d = shape.hidden_size, shape.head_dim
        self.heads, self.kv_heads, self.head_dim = shape.num_heads, shape.num_kv_heads, d
        column = {"cut": "column", "bias": shape.attention_bias}
        self.q_proj = Linear(h, shape.num_heads * d, parallel, compute_dtype, **column)
        self.k_proj = Linear(h, shape.num_kv_heads * d, parallel, compute_dtype, **column)
        self.v_proj = Linear(h, shape.num_kv_heads * d, parallel, compute_dtype, **column)
        self.o_proj = Linear(
            shape.num_heads * d, h, parallel, compute_dtype, cut="row", bias=shape.output_bias
        )
        self.has_qk_norm = shape.qk_norm
        if shape.qk_norm:
            heads = (parallel.data_parallel, parallel.context_parallel, parallel.model_parallel, 1)
            strategy = heads if parallel.sharded else None
            self.q_norm = RMSNorm(d, shape.norm_eps, strategy, fused=attention == "flash")
            self.k_norm = RMSNorm(d, shape.norm_eps, strategy, fused=attention == "flash")
        self.has_rotary = shape.position == "rope"
        if self.has_rotary:
            self.rotate_query, self.rotate_key = Rotate(d, parallel), Rotate(d, parallel)
        self.core = AttentionCore(shape, parallel)
        if parallel.recompute == "selective":
            self.core.recompute()

    def construct(self, x, mask, cosine, sine):
        batch, seq = mask.shape[0], mask.shape[-1]
        query = ops.reshape(self.q_proj(x), (batch, seq, self.heads, self.head_dim))
        key = ops.reshape(self.k_proj(x), (batch, seq, self.kv_heads, self.head_dim))
        value = ops.reshape(self.v_proj(x), (batch, seq, self.kv_heads, self.head_dim))
        if self.has_qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.has_rotary:
            query, key = self.rotate_query(query, cosine, sine), self.rotate_key(key, cosine, sine)
        mixed = self.core(query, key, value, mask)
        return self.o_proj(ops.reshape(mixed, (batch * seq, self.heads * self.head_dim)))
