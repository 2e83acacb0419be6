"""The dense feed-forward layer.

In: x [T, hidden_size]. Out: [T, hidden_size]. SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x)). GELU, in the tanh
form of GPT-2: down(gelu(up(x))).
"""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import nn, ops
from mindspore.ops.auto_generate import SiLU

from msparallel.model import strategies
from msparallel.model.linear import Linear
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class FeedForward(nn.Cell):
    """x [T, H] -> [T, H], the hidden width cut over tp.

    Args:
        fused: use Ascend's kernels where the CPU is faster without.
    """

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, *, fused: bool = False
    ) -> None:
        super().__init__()
        h, f, bias = shape.hidden_size, shape.ffn_size, shape.ffn_bias
        self.gated = shape.activation == "swiglu"
        self.up_proj = Linear(h, f, parallel, compute_dtype, cut="column", bias=bias)
        if self.gated:
            self.gate_proj = Linear(h, f, parallel, compute_dtype, cut="column", bias=bias)
            self.silu, self.mul = SiLU(), ops.Mul()
        else:
            self.gelu = Gelu(parallel, fused=fused)
        self.down_proj = Linear(f, h, parallel, compute_dtype, cut="row", bias=bias)
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x):
        if self.gated:
            return self.down_proj(self.mul(self.silu(self.gate_proj(x)), self.up_proj(x)))
        return self.down_proj(self.gelu(self.up_proj(x)))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        x = strategies.features(parallel)
        if self.gated:
            self.silu.shard((x,))
            self.mul.shard((x, x))


class Gelu(nn.Cell):
    """x -> x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2, which is x * sigmoid(2 * ...): one multiply less.

    The CPU kernel GeLU takes five times as long as these parts.
    """

    def __init__(self, parallel: OpParallelConfig, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.linear = 2 * math.sqrt(2 / math.pi)
        self.cubic = 0.044715 * self.linear
        self.gelu, self.square, self.sigmoid = ops.GeLU(), ops.Square(), ops.Sigmoid()
        self.by_cubic, self.add, self.by_x, self.gate = ops.Mul(), ops.Add(), ops.Mul(), ops.Mul()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x):
        if self.fused:
            return self.gelu(x)
        slope = self.add(self.by_cubic(self.square(x), self.cubic), self.linear)
        return self.gate(x, self.sigmoid(self.by_x(x, slope)))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        x = strategies.features(parallel)
        for unary in (self.gelu, self.square, self.sigmoid):
            unary.shard((x,))
        self.by_cubic.shard((x, ()))
        self.add.shard((x, ()))
        self.by_x.shard((x, x))
        self.gate.shard((x, x))
