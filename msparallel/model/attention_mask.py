"""Which keys a query may see: those before it in its own document.

In: segment_ids int32 [B, S], the document number of every token. Out, by `form`, G = query heads per key head:
    "flash"    uint8 [B, 1, S, S], 1 is hidden, as Ascend's FlashAttentionScore wants it
    "grouped"  float32 [B, 1, S, 1, S], 0 or HIDDEN, to be added to scores [B, KV, S, G, S]
    "rows"     the same for every head, float32 [B * KV * S * G, S]: on the CPU an addition of equal shapes is three
               times as fast as one that repeats its operand, and all layers share the mask

>>> mask = DocumentMask(shape, parallel, seq_length=256, form="rows")(segment_ids)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Literal

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from msparallel.model import strategies
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig

HIDDEN = -1e9
"""Added to the scores of hidden pairs: exp() of it is exactly 0 in float32."""


class DocumentMask(nn.Cell):
    """segment_ids [B, S] -> the mask, see the module."""

    def __init__(
        self,
        shape: ModelShape,
        parallel: OpParallelConfig,
        seq_length: int,
        form: Literal["flash", "grouped", "rows"],
    ) -> None:
        super().__init__()
        self.form = form
        self.seq_length = seq_length
        self.kv_heads, self.group = shape.num_kv_heads, shape.num_heads // shape.num_kv_heads
        self.order = Tensor(np.arange(seq_length, dtype=np.int32))
        self.other, self.later, self.hidden = ops.NotEqual(), ops.Greater(), ops.LogicalOr()
        self.cast, self.mul, self.tile = ops.Cast(), ops.Mul(), ops.Tile()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, segment_ids):
        batch, seq = segment_ids.shape
        order = self.order if seq == self.seq_length else self.order[:seq]
        other_document = self.other(
            ops.reshape(segment_ids, (batch, 1, 1, seq)), ops.reshape(segment_ids, (batch, 1, seq, 1))
        )
        later = self.later(ops.reshape(order, (1, 1, 1, seq)), ops.reshape(order, (1, 1, seq, 1)))
        hidden = self.hidden(other_document, later)
        if self.form == "flash":
            return self.cast(hidden, ms.uint8)
        bias = self.mul(self.cast(hidden, ms.float32), HIDDEN)
        if self.form == "grouped":
            return ops.reshape(bias, (batch, 1, seq, 1, seq))
        bias = self.tile(ops.reshape(bias, (batch, 1, seq, 1, seq)), (1, self.kv_heads, 1, self.group, 1))
        return ops.reshape(bias, (batch * self.kv_heads * seq * self.group, seq))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        axes, (queries, _) = strategies.axes(parallel), strategies.attention_axes(parallel)
        mask, order = axes("dp", "None", queries, "None"), axes("None", "None", queries, "None")
        self.other.shard((axes("dp", "None", "None", "None"), mask))
        self.later.shard((axes("None", "None", "None", "None"), order))
        self.hidden.shard((mask, order))
        self.cast.shard((mask,))
        self.mul.shard((mask, axes()))
