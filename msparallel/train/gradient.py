"""What happens to gradients between the backward pass and the optimizer, as graph code.

In: a tuple of gradients, one a parameter. Out: their global norm, gradients clipped to it, the loss scale that
float16 needs. Both trainers (`step`, `sharded_step`) are made of these pieces.

>>> squares = total_square((ms.Tensor([3.0]), ms.Tensor([4.0])))  # float32 [1]: 25.0
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

SCALE_START = 2.0**16
SCALE_WINDOW = 1000
"""A dynamic loss scale starts at SCALE_START, doubles after SCALE_WINDOW steps without overflow and halves on one
(Micikevicius et al. 2018, Mixed Precision Training)."""
SCALE_LIMITS = (1.0, 2.0**24)

_square = ops.MultitypeFuncGraph("gradient_square")
_multiply = ops.MultitypeFuncGraph("gradient_multiply")
# The engine looks for this mark: below it, it divides by the number of ranks that hold the same slice, and before the
# root that follows it adds over all ranks of the stage and over the stages.
_mark = ops.ExpandDims().add_prim_attr("grad_scale", True)
_sum = ops.ReduceSum()


@_square.register("Tensor")
def _square_of(gradient):
    return _mark(_sum(ops.square(ops.cast(gradient, ms.float32))), 0)


@_multiply.register("Tensor", "Tensor")
def _multiply_by(factor, gradient):
    return gradient * ops.cast(factor, ops.dtype(gradient))


def total_square(gradients):
    """Sum of the squares of all gradients, float32 of shape (1,)."""
    return ops.addn(ops.HyperMap()(_square, gradients))


def scale(factor, gradients):
    """Every gradient times `factor`, a tensor of shape () or (1,)."""
    return ops.HyperMap()(ops.partial(_multiply, factor), gradients)


class ClipByGlobalNorm(nn.Cell):
    """Unscale gradients and bring their global norm down to at most `clip_norm` (Pascanu et al. 2013).

    Args:
        clip_norm: largest norm; 0 measures the norm and leaves gradients alone.

    Inputs:
        gradients: of the scaled loss. loss_scale: float32 of shape (), or None where the loss was not scaled.

    Outputs:
        (gradients, norm): norm is float32 of shape (1,), of the unscaled gradients before clipping.
    """

    def __init__(self, clip_norm: float):
        super().__init__()
        self.clips = clip_norm > 0
        self.limit = Tensor([clip_norm], ms.float32)
        self.one = Tensor([1.0], ms.float32)

    def construct(self, gradients, loss_scale=None):
        norm = ops.sqrt(total_square(gradients))
        factor = self.one
        if loss_scale is not None:
            factor = factor / loss_scale
            norm = norm * factor
        if self.clips:
            factor = factor * self.limit / ops.maximum(norm, self.limit)
        if self.clips or loss_scale is not None:
            gradients = scale(factor, gradients)
        return gradients, norm


class LossScale(nn.Cell):
    """Loss scale of float16, fixed or dynamic, as state of the graph.

    Args:
        fixed: factor that stays, or None for a dynamic one.

    Inputs:
        overflow: bool of shape (), whether this step's gradients were not finite.

    Outputs:
        the loss scale of the next step, float32 of shape ().
    """

    def __init__(self, fixed: float | None):
        super().__init__(auto_prefix=False)
        self.dynamic = fixed is None
        start = SCALE_START if fixed is None else float(fixed)
        self.value = Parameter(Tensor(start, ms.float32), name="loss_scale", requires_grad=False)
        self.good_steps = Parameter(Tensor(0, ms.int32), name="loss_scale_good_steps", requires_grad=False)
        self.low, self.high = (Tensor(limit, ms.float32) for limit in SCALE_LIMITS)
        self.window, self.none, self.one = (Tensor(n, ms.int32) for n in (SCALE_WINDOW, 0, 1))
        self.half, self.double = Tensor(0.5, ms.float32), Tensor(2.0, ms.float32)

    def construct(self, overflow):
        if not self.dynamic:
            return self.value
        good = ops.select(overflow, self.none, self.good_steps + self.one)
        grows = good >= self.window
        grown = ops.select(grows, ops.minimum(self.value * self.double, self.high), self.value)
        new = ops.select(overflow, ops.maximum(self.value * self.half, self.low), grown)
        good = ops.select(grows, self.none, good)
        new = ops.depend(new, ops.assign(self.good_steps, good))
        return ops.depend(new, ops.assign(self.value, new))
