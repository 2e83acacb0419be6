"""Layers of one processor in few operators: what reads the same input is one product.

In and out: as the layers they stand for, `Attention` and `FeedForward`. Weights are those of the separate
projections, one below the other; `parts_of` says which, so that they can be read from where the separate ones are.
What stands between the products is in `served_kernels.py`.

A processor starts every operator anew, which was a third of a step of decoding when a layer had 45 of them; now a
dense one has 10.

>>> parts_of("model.layers.0.mlp.gate_up_proj.weight", shape)  # doctest: +SKIP
[Part(name='model.layers.0.mlp.gate_proj.weight', rows=1536), Part(name='...up_proj.weight', rows=1536)]
"""

from __future__ import annotations

from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common.initializer import initializer

from msparallel.model.feed_forward import Gelu
from msparallel.model.served_kernels import KernelLinear, attend, swiglu
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class Part(NamedTuple):
    """Attributes:
    rows: of this parameter; 0: it is one row, a norm's weight [D].
    """

    name: str
    rows: int


def parts_of(name: str, shape: ModelShape) -> list[Part]:
    """The parameters of training that a parameter consists of, from top to bottom; of one that is not packed, none."""
    heads, kv, d, f = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.ffn_size
    packed = {
        "qkv_proj": [("q_proj", heads * d), ("k_proj", kv * d), ("v_proj", kv * d)],
        "qk_norm": [("q_norm", 0), ("k_norm", 0)],
        "gate_up_proj": [("gate_proj", f), ("up_proj", f)],
    }
    path, _, parameter = name.rpartition(".")
    block, _, cell = path.rpartition(".")
    return [Part(f"{block}.{part}.{parameter}", rows) for part, rows in packed.get(cell, [])]


class QkNorm(nn.Cell):
    """Weights of the norms of queries and keys, [2, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer("ones", (2, width), ms.float32), name="weight")


class PackedAttention(nn.Cell):
    """x [T, H] -> [T, H]: project, norm and turn queries and keys, remember and attend, project back.

    The cache has a slot for each request: [slots, KV, length, D], keys and values each. A token sees its slot up to
    its own position; what stands behind is never read, so a slot needs no clearing.
    """

    def __init__(self, shape: ModelShape, *, slots: int, length: int) -> None:
        super().__init__()
        h, d, heads, kv = shape.hidden_size, shape.head_dim, shape.num_heads, shape.num_kv_heads
        self.qkv_proj = KernelLinear(h, (heads + 2 * kv) * d, bias=shape.attention_bias)
        self.o_proj = KernelLinear(heads * d, h, bias=shape.output_bias)
        cache = (slots, kv, length, d)
        self.key_cache = Parameter(initializer("zeros", cache, ms.float32), name="key_cache")
        self.value_cache = Parameter(initializer("zeros", cache, ms.float32), name="value_cache")
        self.has_qk_norm, self.has_rotary = shape.qk_norm, shape.position == "rope"
        if self.has_qk_norm:
            self.qk_norm = QkNorm(d)
        self.none, self.eps = Tensor(np.zeros(1, np.float32)), Tensor(np.array([shape.norm_eps], np.float32))
        self.attend = attend()

    def construct(self, x, rows, places, *rotary):
        positions, slots = places
        cosine, sine = rotary if self.has_rotary else (self.none, self.none)
        norms = self.qk_norm.weight if self.has_qk_norm else self.none
        return self.o_proj(
            self.attend(
                self.qkv_proj(x), positions, slots, self.key_cache, self.value_cache, cosine, sine, norms, self.eps
            )
        )


class PackedFeedForward(nn.Cell):
    """x [T, H] -> down(silu(gate(x)) * up(x)), gate and up in one product; or down(gelu(up(x)))."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        h, f, bias = shape.hidden_size, shape.ffn_size, shape.ffn_bias
        self.gated = shape.activation == "swiglu"
        if self.gated:
            self.gate_up_proj = KernelLinear(h, 2 * f, bias=bias)
            self.swiglu = swiglu()
        else:
            self.up_proj = KernelLinear(h, f, bias=bias)
            self.gelu = Gelu(OpParallelConfig(sharded=False), fused=False)
        self.down_proj = KernelLinear(f, h, bias=bias)

    def construct(self, x):
        y = self.swiglu(self.gate_up_proj(x)) if self.gated else self.gelu(self.up_proj(x))
        return self.down_proj(y)
