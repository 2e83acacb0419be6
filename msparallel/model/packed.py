"""Layers of one device in fewer operators: what reads the same input is one product.

In and out: as the layers they stand for, `Attention` and `FeedForward`. Weights are those of the separate
projections, one below the other; `parts_of` says which, so that they can be read from where the separate ones are.

A processor starts every operator anew, which takes a third of a step of decoding; with these a layer has 45 instead
of 59.

>>> parts_of("model.layers.0.mlp.gate_up_proj.weight", shape)  # doctest: +SKIP
[Part(name='model.layers.0.mlp.gate_proj.weight', rows=1536, copies=1), Part(name='...up_proj.weight', ...)]
"""

from __future__ import annotations

from typing import NamedTuple

import mindspore as ms
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer
from mindspore.ops.auto_generate import SiLU

from msparallel.model.linear import Linear
from msparallel.model.norm import RMSNorm
from msparallel.model.rotary import Rotate
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class Part(NamedTuple):
    """Attributes:
    rows: of this parameter; 0: it is one row, a norm's weight [D].
    copies: how often it stands there.
    """

    name: str
    rows: int
    copies: int


def parts_of(name: str, shape: ModelShape) -> list[Part]:
    """The parameters of training that a parameter consists of, from top to bottom; of one that is not packed, none."""
    heads, kv, d, f = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.ffn_size
    packed = {
        "qkv_proj": [("q_proj", heads * d, 1), ("k_proj", kv * d, 1), ("v_proj", kv * d, 1)],
        "qk_norm": [("q_norm", 0, heads), ("k_norm", 0, kv)],
        "gate_up_proj": [("gate_proj", f, 1), ("up_proj", f, 1)],
    }
    path, _, parameter = name.rpartition(".")
    block, _, cell = path.rpartition(".")
    return [Part(f"{block}.{part}.{parameter}", rows, copies) for part, rows, copies in packed.get(cell, [])]


class PackedAttention(nn.Cell):
    """x [T, H] -> [T, H]: project, norm and turn queries and keys together, remember and attend, project back.

    Args:
        core: what remembers and attends, a FlatCore.
    """

    def __init__(self, shape: ModelShape, compute_dtype: ms.Type, core: nn.Cell) -> None:
        super().__init__()
        alone = OpParallelConfig(sharded=False)
        h, d, bias = shape.hidden_size, shape.head_dim, shape.attention_bias
        self.heads, self.kv_heads, self.head_dim = shape.num_heads, shape.num_kv_heads, d
        self.turned = self.heads + self.kv_heads
        self.qkv_proj = Linear(h, (self.turned + self.kv_heads) * d, alone, compute_dtype, cut="none", bias=bias)
        self.o_proj = Linear(self.heads * d, h, alone, compute_dtype, cut="none", bias=shape.output_bias)
        self.has_qk_norm, self.has_rotary = shape.qk_norm, shape.position == "rope"
        if self.has_qk_norm:
            self.qk_norm = RMSNorm(d, shape.norm_eps, None)
            self.qk_norm.weight = Parameter(initializer("ones", (self.turned, d), ms.float32), name="weight")
        if self.has_rotary:
            self.rotate = Rotate(alone)
        self.core = core

    def construct(self, x, rows, places, *rotary):
        new, d = x.shape[0] // rows, self.head_dim
        packed = ops.reshape(self.qkv_proj(x), (rows, new, self.turned + self.kv_heads, d))
        turned, value = ops.split(packed, (self.turned, self.kv_heads), 2)
        if self.has_qk_norm:
            turned = self.qk_norm(turned)
        if self.has_rotary:
            turned = self.rotate(turned, *rotary)
        query, key = ops.split(turned, (self.heads, self.kv_heads), 2)
        return self.o_proj(ops.reshape(self.core(query, key, value, places), (rows * new, self.heads * d)))


class PackedFeedForward(nn.Cell):
    """x [T, H] -> down(silu(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, shape: ModelShape, compute_dtype: ms.Type) -> None:
        super().__init__()
        alone = OpParallelConfig(sharded=False)
        h, f, bias = shape.hidden_size, shape.ffn_size, shape.ffn_bias
        self.gate_up_proj = Linear(h, 2 * f, alone, compute_dtype, cut="none", bias=bias)
        self.down_proj = Linear(f, h, alone, compute_dtype, cut="none", bias=bias)
        self.halves, self.silu = ops.Split(-1, 2), SiLU()

    def construct(self, x):
        gate, up = self.halves(self.gate_up_proj(x))
        return self.down_proj(self.silu(gate) * up)
