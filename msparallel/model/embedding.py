"""Token and position tables: ids in, rows out.

In: ids int32 [T]. Out: [T, hidden_size] in the compute dtype. The table is `weight`, float32 [rows, hidden_size].
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model import strategies
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
        self.gather.shard(((rows_cut, 1), (strategies.gathered_tokens(parallel),)))
        self.cast.shard((strategies.residual(parallel),))
