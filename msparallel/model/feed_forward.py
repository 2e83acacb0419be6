"""The dense feed-forward layer.

In: x [T, hidden_size]. Out: [T, hidden_size]. SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x)). GELU, in the tanh
form of GPT-2: down(gelu(up(x))).
"""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops
from mindspore.ops.auto_generate import SiLU

from msparallel.model import strategies
from msparallel.model.linear import Linear
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class FeedForward(nn.Cell):
    """x [T, H] -> [T, H], the hidden width cut over tp."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type) -> None:
        super().__init__()
        h, f, bias = shape.hidden_size, shape.ffn_size, shape.ffn_bias
        self.gated = shape.activation == "swiglu"
        column = {"cut": "column", "bias": bias}
        self.up_proj = Linear(h, f, parallel, compute_dtype, **column)
        if self.gated:
            self.gate_proj = Linear(h, f, parallel, compute_dtype, **column)
        self.down_proj = Linear(f, h, parallel, compute_dtype, cut="row", bias=bias)
        self.silu, self.gelu, self.mul = SiLU(), ops.GeLU(), ops.Mul()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x):
        if self.gated:
            return self.down_proj(self.mul(self.silu(self.gate_proj(x)), self.up_proj(x)))
        return self.down_proj(self.gelu(self.up_proj(x)))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        x = strategies.features(parallel)
        self.silu.shard((x,))
        self.gelu.shard((x,))
        self.mul.shard((x, x))
