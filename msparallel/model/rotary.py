"""Rotary position embedding (Su et al. 2021) in Hugging Face's convention: dim i pairs with dim i + head_dim / 2.

In: position_ids int32 [B, S]. Out: cosine and sine, float32 [B, S, 1, head_dim], which `rotate` applies to heads.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from msparallel.parallel_config import OpParallelConfig


def rotary_tables(positions: int, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, float32 [positions, head_dim]: angle(p, i) = p * theta^(-2 (i mod head_dim/2) / head_dim)."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.arange(positions, dtype=np.float64)[:, None] * np.concatenate([frequencies, frequencies])
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class RotaryTable(nn.Cell):
    """position_ids [B, S] -> cosine, sine [B, S, 1, head_dim]."""

    def __init__(self, positions: int, head_dim: int, theta: float, parallel: OpParallelConfig) -> None:
        super().__init__()
        cosine, sine = rotary_tables(positions, head_dim, theta)
        self.cosine, self.sine = Tensor(cosine), Tensor(sine)
        self.head_dim = head_dim
        self.gather = ops.Gather()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, position_ids):
        shape = position_ids.shape + (1, self.head_dim)
        cosine = self.gather(self.cosine, position_ids, 0)
        sine = self.gather(self.sine, position_ids, 0)
        return ops.reshape(cosine, shape), ops.reshape(sine, shape)

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        self.gather.shard(((1, 1), (parallel.data_parallel, parallel.context_parallel)))


class Rotate(nn.Cell):
    """heads [B, S, N, D] turned by their positions: x * cosine + (-x2, x1) * sine, in float32, same dtype out."""

    def __init__(self, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.cast_in, self.cast_out = ops.Cast(), ops.Cast()
        self.split, self.negate, self.concat = ops.Split(-1, 2), ops.Neg(), ops.Concat(-1)
        self.by_cosine, self.by_sine, self.add = ops.Mul(), ops.Mul(), ops.Add()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x, cosine, sine):
        dtype = x.dtype
        x = self.cast_in(x, ms.float32)
        first, second = self.split(x)
        turned = self.concat((self.negate(second), first))
        return self.cast_out(self.add(self.by_cosine(x, cosine), self.by_sine(turned, sine)), dtype)

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        heads = (parallel.data_parallel, parallel.context_parallel, parallel.model_parallel, 1)
        table = (parallel.data_parallel, parallel.context_parallel, 1, 1)
        for unary in (self.cast_in, self.cast_out, self.split, self.negate):
            unary.shard((heads,))
        self.concat.shard((heads, heads))
        self.by_cosine.shard((heads, table))
        self.by_sine.shard((heads, table))
        self.add.shard((heads, heads))
