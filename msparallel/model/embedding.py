"""Token and position tables and the LM head.

In: ids int32 [T], or hidden states [T, H]. Out: rows [T, H] in the compute dtype, or logits float32 [T, V]. A table is
`weight`, float32 [rows, H]; V is the vocabulary padded to the recipe's multiple.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model import strategies
from msparallel.model.attention_mask import HIDDEN
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class Embedding(nn.Cell):
    """ids [T] -> rows [T, width].

    Args:
        rows_cut: into how many pieces the rows are cut over tp; a device finds its own rows, the rest is summed.
    """

    def __init__(
        self, rows: int, width: int, parallel: OpParallelConfig, compute_dtype: ms.Type, *, rows_cut: int
    ) -> None:
        super().__init__()
        self.weight = Parameter(initializer("zeros", (rows, width), ms.float32), name="weight")
        self.dtype = compute_dtype
        self.gather, self.cast = ops.Gather(), ops.Cast()
        if parallel.sharded:
            self.shard(parallel, rows_cut)

    def construct(self, ids):
        return self.cast(self.gather(self.weight, ids, 0), self.dtype)

    def shard(self, parallel: OpParallelConfig, rows_cut: int) -> None:
        """The table of strategies."""
        tokens = strategies.gathered_tokens(parallel) if rows_cut > 1 else parallel.token_parallel
        self.gather.shard(((rows_cut, 1), (tokens,)), (strategies.residual(parallel),))
        self.cast.shard((strategies.residual(parallel),))


class Head(nn.Cell):
    """Hidden states [T, H] and a table [V, H] -> logits float32 [T, V]; padding columns never win.

    With tied embeddings it has no `weight` of its own.
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type) -> None:
        super().__init__()
        self.rows, hidden = shape.padded_vocab_size, shape.hidden_size
        rows = self.rows
        if not shape.tie_embeddings:
            self.weight = Parameter(initializer("zeros", (rows, hidden), ms.float32), name="weight")
        self.dtype = compute_dtype
        self.cast, self.cast_out = ops.Cast(), ops.Cast()
        self.matmul, self.hide_padding = ops.MatMul(transpose_b=True), ops.Add()
        self.padded = rows > shape.vocab_size
        self.padding = Tensor(np.where(np.arange(rows) < shape.vocab_size, 0, HIDDEN).astype(np.float32))
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x, table):
        logits = self.cast_out(self.matmul(x, self.cast(table, self.dtype)), ms.float32)
        return self.hide_padding(logits, self.padding) if self.padded else logits

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        tokens, vocab = logits = strategies.logits(parallel)
        self.matmul.shard(((tokens, 1), (vocab, 1)))
        self.cast_out.shard((logits,))
        self.hide_padding.shard((logits, (vocab,)))
