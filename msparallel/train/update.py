"""From the summed gradients of a step to the updated parameters, as graph code.

In: the loss and one gradient a parameter, of all tokens of the step. Out: parameters, moments, step count and loss
scale brought forward. Both trainers (`step`, `sharded_step`) end with it. There is no branch: MindSpore 2.9 does not
come to an end compiling one beside a graph that micro-batches share, so a skipped step is an update by nothing.

>>> update = Update(optimizer, clip_norm=1.0, loss_scale=None)
>>> loss, norm, overflow = update(loss, gradients)
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from msparallel.train.gradient import ClipByGlobalNorm, LossScale
from msparallel.train.optimizer import AdamW

_finite_or_zero = ops.MultitypeFuncGraph("finite_or_zero")


@_finite_or_zero.register("Tensor", "Tensor")
def _zero_unless(finite, gradient):
    return ops.where(finite, gradient, ops.cast(0.0, ops.dtype(gradient)))


class Update(nn.Cell):
    """Clip, and the optimizer unless a gradient overflowed.

    Args:
        clip_norm: largest global norm of the gradient, 0 for none.
        loss_scale: LossScale for float16, otherwise None.

    Inputs:
        loss: float32 of shape (). gradients: of loss x loss scale.

    Outputs:
        (loss, norm, overflow): float32 (), float32 (1,) of the unscaled gradients before clipping, bool ().
    """

    def __init__(self, optimizer: AdamW, *, clip_norm: float, loss_scale: LossScale | None):
        super().__init__(auto_prefix=False)
        self.optimizer, self.scaler = optimizer, loss_scale
        self.clip = ClipByGlobalNorm(clip_norm)
        self.map = ops.HyperMap()

    def construct(self, loss, gradients):
        if self.scaler is None:
            gradients, norm = self.clip(gradients)
            return ops.depend(loss, self.optimizer(gradients)), norm, Tensor(False, ms.bool_)
        gradients, norm = self.clip(gradients, self.scaler.value)
        finite = ops.isfinite(norm)
        gradients = self.map(ops.partial(_finite_or_zero, finite), gradients)
        overflow = ops.logical_not(finite).reshape(())
        loss = ops.depend(loss, self.optimizer(gradients, finite))
        return ops.depend(loss, self.scaler(overflow)), norm, overflow
