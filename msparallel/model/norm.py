"""Normalisation over the last dimension, in float32 whatever comes in.

RMSNorm: Zhang and Sennrich 2019, as in Llama (no mean, no bias). LayerNorm: Ba et al. 2016, as in GPT-2.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model import strategies
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class RMSNorm(nn.Cell):
    """x [..., width] -> x / sqrt(mean(x^2) + eps) * weight, same shape and dtype.

    Args:
        fused: use the Ascend kernel RmsNorm; the CPU has none.
    """

    def __init__(self, width: int, eps: float, strategy: tuple[int, ...] | None, *, fused: bool = False) -> None:
        super().__init__()
        self.weight = Parameter(initializer("ones", (width,), ms.float32), name="weight")
        self.eps = eps
        self.fused = fused
        self.cast_in, self.cast_out = ops.Cast(), ops.Cast()
        self.square, self.mean, self.add, self.rsqrt = ops.Square(), ops.ReduceMean(True), ops.Add(), ops.Rsqrt()
        self.normalise, self.scale = ops.Mul(), ops.Mul()
        self.rms_norm = ops.RmsNorm(eps) if fused else None
        if strategy:
            self.shard(strategy)

    def construct(self, x):
        dtype = x.dtype
        x = self.cast_in(x, ms.float32)
        if self.fused:
            y = self.rms_norm(x, self.weight)[0]
        else:
            y = self.normalise(x, self.rsqrt(self.add(self.mean(self.square(x), -1), self.eps)))
            y = self.scale(y, self.weight)
        return self.cast_out(y, dtype)

    def shard(self, x: tuple[int, ...]) -> None:
        """The table of strategies; `x` never cuts the last dimension."""
        for unary in (self.cast_in, self.cast_out, self.square, self.mean, self.rsqrt):
            unary.shard((x,))
        self.add.shard((x, ()))
        self.normalise.shard((x, x))
        self.scale.shard((x, (1,)))
        if self.fused:
            self.rms_norm.shard((x, (1,)))


class LayerNorm(nn.Cell):
    """x [..., width] -> (x - mean) / sqrt(variance + eps) * weight + bias, same shape and dtype.

    Args:
        fused: use the kernel LayerNorm; on the CPU it is slower than its parts.
    """

    def __init__(self, width: int, eps: float, strategy: tuple[int, ...] | None, *, fused: bool = False) -> None:
        super().__init__()
        self.weight = Parameter(initializer("ones", (width,), ms.float32), name="weight")
        self.bias = Parameter(initializer("zeros", (width,), ms.float32), name="bias")
        self.eps = eps
        self.fused = fused
        self.cast_in, self.cast_out = ops.Cast(), ops.Cast()
        self.square, self.mean, self.add, self.rsqrt = ops.Square(), ops.ReduceMean(True), ops.Add(), ops.Rsqrt()
        self.centre, self.normalise, self.scale, self.shift = ops.Sub(), ops.Mul(), ops.Mul(), ops.Add()
        self.layer_norm = ops.LayerNorm(-1, -1, eps)
        if strategy:
            self.shard(strategy)

    def construct(self, x):
        dtype = x.dtype
        x = self.cast_in(x, ms.float32)
        if self.fused:
            y = self.layer_norm(x, self.weight, self.bias)[0]
        else:
            x = self.centre(x, self.mean(x, -1))
            y = self.normalise(x, self.rsqrt(self.add(self.mean(self.square(x), -1), self.eps)))
            y = self.shift(self.scale(y, self.weight), self.bias)
        return self.cast_out(y, dtype)

    def shard(self, x: tuple[int, ...]) -> None:
        """The table of strategies; `x` never cuts the last dimension."""
        for unary in (self.cast_in, self.cast_out, self.square, self.mean, self.rsqrt):
            unary.shard((x,))
        self.add.shard((x, ()))
        self.centre.shard((x, x))
        self.normalise.shard((x, x))
        self.scale.shard((x, (1,)))
        self.shift.shard((x, (1,)))
        self.layer_norm.shard((x, (1,), (1,)))


def block_norm(shape: ModelShape, parallel: OpParallelConfig, *, fused: bool) -> nn.Cell:
    """The norm of the residual stream [T, H] that `shape.norm` names."""
    strategy = strategies.residual(parallel) if parallel.sharded else None
    if shape.norm == "layer":
        return LayerNorm(shape.hidden_size, shape.norm_eps, strategy, fused=fused)
    return RMSNorm(shape.hidden_size, shape.norm_eps, strategy, fused=fused)
