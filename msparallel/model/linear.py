"""A matrix product with an optional bias, and how it is cut over devices.

In: x [T, in_features] in the compute dtype. Out: [T, out_features] in the compute dtype; `weight` is float32 [out, in].
"""

from __future__ import annotations

from typing import Literal

import mindspore as ms
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model import strategies
from msparallel.parallel_config import OpParallelConfig


class Linear(nn.Cell):
    """x [T, in] -> x @ weight.T (+ bias).

    Args:
        in_features, out_features: widths.
        cut: `column` cuts the output features over tp, `row` the input features.
        compute_dtype: the product's dtype; weight and bias are cast to it.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        parallel: OpParallelConfig,
        compute_dtype: ms.Type,
        *,
        cut: Literal["column", "row"],
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.weight = Parameter(initializer("zeros", (out_features, in_features), ms.float32), name="weight")
        self.bias = Parameter(initializer("zeros", (out_features,), ms.float32), name="bias") if bias else None
        self.has_bias = bias
        self.dtype = compute_dtype
        self.cast = ops.Cast()
        self.matmul = ops.MatMul(transpose_b=True)
        self.add = ops.Add()
        if parallel.sharded:
            self.shard(parallel, cut)

    def construct(self, x):
        y = self.matmul(x, self.cast(self.weight, self.dtype))
        if self.has_bias:
            y = self.add(y, self.cast(self.bias, self.dtype))
        return y

    def shard(self, parallel: OpParallelConfig, cut: str) -> None:
        """The table of strategies; a parameter's cast takes that of the operator behind it."""
        tp = parallel.model_parallel
        if cut == "column":
            operands, result, bias = strategies.column_parallel(parallel), strategies.features(parallel), (tp,)
        else:
            operands, result, bias = strategies.row_parallel(parallel), strategies.residual(parallel), (1,)
        self.matmul.shard(operands, (result,))
        self.add.shard((result, bias))
