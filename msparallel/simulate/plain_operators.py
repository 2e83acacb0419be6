"""Primitives of which a processor has no kernel, as cells of operators that every device has.

In: a primitive's arguments. Out: a cell that is called as the primitive is and gives its result. MindFormers' models
call no others; what they call where there is no Ascend device is these.

>>> PlainAttentionScore(head_num=4, scale_value=0.35, input_layout="BNSD")(q, k, v, None, None, None, mask)[3].shape
(1, 4, 16, 8)
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from msparallel.errors import UserError

MASKED = -1e30
"""Added to a score that is left out; its exponential is 0 in float32."""


class _Plain(nn.Cell):
    """A cell that stands for a primitive."""

    def shard(self, *strategies: Any) -> _Plain:
        """A strategy means nothing to one process."""
        return self

    def recompute(self, *settings: Any) -> _Plain:
        """Nothing is computed again."""
        return self


class PlainOuter(_Plain):
    """Outer: products [N, M] of two vectors."""

    def construct(self, left: Tensor, right: Tensor) -> Tensor:
        return left.reshape(-1, 1) * right.reshape(1, -1)


class PlainOneHot(_Plain):
    """OneHotExt: a new last dim with one value at the class and another elsewhere."""

    def __init__(self, axis: int = -1):
        super().__init__()
        self.one_hot = ops.OneHot(axis)

    def construct(self, classes: Tensor, number: int, on: Tensor, off: Tensor) -> Tensor:
        return self.one_hot(classes, number, on, off)


class PlainSwiglu(_Plain):
    """Swiglu: SiLU of the first half of a dim times the second half."""

    def construct(self, x: Tensor, dim: int) -> Tensor:
        gate, up = ops.split(x, x.shape[dim] // 2, dim)
        return ops.silu(gate) * up


def plain_embedding(self: nn.Cell, tokens: Tensor, weight: Tensor) -> Tensor:
    """Rows [B, S, H] of a weight [V, H]; stands for a cell's method."""
    return ops.gather(weight, tokens, 0)


def no_overflow(self: nn.Cell, status: Tensor, gradients: Any) -> Tensor:
    """That gradients are finite; stands for the method that asks an Ascend device. Who trains looks at the losses."""
    return self.never


class PlainAttentionScore(_Plain):
    """FlashAttentionScore: softmax of scaled scores, masked, times values; in float32.

    Args:
        head_num: of queries; keys may have fewer, each serving as many.
        scale_value: on the scores.
        input_layout: "BNSD" (B batch, N heads, S sequence, D width of a head).
        sparse_mode: 0 or 1: the mask that is handed in says what is left out.

    Raises:
        UserError: dropout, another layout or mode.
    """

    def __init__(
        self,
        head_num: int,
        keep_prob: float = 1.0,
        scale_value: float = 1.0,
        pre_tokens: int = 2147483647,
        next_tokens: int = 2147483647,
        inner_precise: int = 0,
        input_layout: str = "BSH",
        sparse_mode: int = 0,
    ):
        super().__init__()
        for name, value, fits in (
            ("keep_prob", keep_prob, (1.0,)),
            ("input_layout", input_layout, ("BNSD",)),
            ("sparse_mode", sparse_mode, (0, 1)),
        ):
            if value not in fits:
                known = " or ".join(map(str, fits))
                raise UserError(f"A single process computes attention with {name} {known} only, not {value}.")
        self.head_num, self.scale = head_num, scale_value
        self.scores, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def construct(
        self, query: Tensor, key: Tensor, value: Tensor, real_shift: Any = None, drop_mask: Any = None,
        padding_mask: Any = None, attn_mask: Any = None, prefix: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The output [B, N, S, D] last, in the dtype of the queries; what the primitive gives besides is None.

        Args:
            attn_mask: 1 where a key is left out, broadcast over [B, N, S, S].
        """
        repeats = self.head_num // key.shape[1]
        if repeats > 1:
            key, value = ops.repeat_interleave(key, repeats, 1), ops.repeat_interleave(value, repeats, 1)
        scores = self.scores(query.astype(ms.float32), key.astype(ms.float32)) * self.scale
        if attn_mask is not None:
            scores = scores + attn_mask.astype(ms.float32) * MASKED
        mixed = self.mix(self.softmax(scores), value.astype(ms.float32))
        return None, None, None, mixed.astype(query.dtype)
