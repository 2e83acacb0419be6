"""AdamW as MindSpore's fused kernel runs it, and the learning rate as a function of the step.

In: trainable parameters and the recipe's `optimizer` section. Out: an `nn.Optimizer` whose state (`adam_m.NAME`,
`adam_v.NAME`, `global_step`) MindSpore's parallel-optimizer pass cuts like the weights.

>>> optimizer = AdamW(network.trainable_params(), Optimizer(learning_rate=1e-3, warmup_steps=10), steps=100)
>>> round(learning_rate_at(Optimizer(learning_rate=1e-3, warmup_steps=10), 100, step=4), 6)
0.0005
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from msparallel.recipe.schema import Optimizer


def learning_rate_at(optimizer: Optimizer, steps: int, step: int) -> float:
    """Learning rate of the optimizer step with index `step` (0 is the first) in a run of `steps` steps.

    It rises linearly over `warmup_steps` (the step with index warmup_steps - 1 has the peak), then follows half a
    cosine that reaches `min_learning_rate` at index steps - 1, or stays.
    """
    if step < optimizer.warmup_steps:
        return optimizer.learning_rate * (step + 1) / optimizer.warmup_steps
    if optimizer.schedule == "constant":
        return optimizer.learning_rate
    done = min(1.0, (step + 1 - optimizer.warmup_steps) / max(1, steps - optimizer.warmup_steps))
    low, high = optimizer.min_learning_rate, optimizer.learning_rate
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * done))


class WarmupThenSchedule(LearningRateSchedule):
    """`learning_rate_at` in the graph: float32 of shape () from the int32 step of shape (1,)."""

    def __init__(self, optimizer: Optimizer, steps: int):
        super().__init__()
        self.cosine = optimizer.schedule == "cosine"
        self.has_warmup = optimizer.warmup_steps > 0
        self.warmup = Tensor(max(1, optimizer.warmup_steps), ms.float32)
        self.decay_start = Tensor(optimizer.warmup_steps, ms.float32)
        self.decay_steps = Tensor(max(1, steps - optimizer.warmup_steps), ms.float32)
        self.peak = Tensor(optimizer.learning_rate, ms.float32)
        self.low = Tensor(optimizer.min_learning_rate, ms.float32)
        self.half_range = Tensor(0.5 * (optimizer.learning_rate - optimizer.min_learning_rate), ms.float32)
        self.one, self.pi = Tensor(1.0, ms.float32), Tensor(math.pi, ms.float32)

    def construct(self, global_step: Tensor) -> Tensor:
        count = ops.cast(global_step, ms.float32).reshape(()) + self.one
        rate = self.peak
        if self.cosine:
            done = ops.minimum(ops.maximum(count - self.decay_start, self.one - self.one) / self.decay_steps, self.one)
            rate = self.low + self.half_range * (self.one + ops.cos(self.pi * done))
        if self.has_warmup:
            rate = ops.select(count < self.decay_start, self.peak * count / self.warmup, rate)
        return rate


_update = ops.MultitypeFuncGraph("adamw_update")


@_update.register(
    "Function", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Bool"
)
def _update_parameter(kernel, rate, beta1, beta2, eps, decay, parameter, moment1, moment2, gradient, decays):
    """One parameter by the fused kernel."""
    gradient = ops.cast(gradient, ops.dtype(parameter))
    if decays:
        kernel(parameter, moment1, moment2, rate, beta1, beta2, eps, decay, gradient)
    else:
        kernel(parameter, moment1, moment2, rate, beta1, beta2, eps, 0.0, gradient)
    return True


class AdamW(nn.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2): Adam with bias correction and decay outside the gradient.

    The fused kernel `AdamWeightDecay` has no bias correction: p -= r * (m / (sqrt(v) + e) + d * p). With t the number
    of the step, lr its learning rate and c = sqrt(1 - beta2^t), the exact update is that formula with
    r = lr * c / (1 - beta1^t), e = eps * c and d = weight_decay * (1 - beta1^t) / c, so that r * d = lr * weight_decay.

    Args:
        parameters: trainable parameters. Those of two and more dims decay (matrices, embeddings); norms and biases
            do not.
        optimizer: the recipe's section.
        steps: optimizer steps of the run, for the schedule.

    Inputs:
        gradients: one tensor a parameter, in the same order.
        applies: bool (1,), or None for true. False leaves parameters, moments and the step's number as they are, bit by
            bit, if the gradients are zeros: betas of 1 and a rate of 0.
    """

    def __init__(self, parameters: Sequence[Parameter], optimizer: Optimizer, steps: int):
        super().__init__(WarmupThenSchedule(optimizer, steps), list(parameters))
        beta1, beta2 = np.float32(optimizer.beta1), np.float32(optimizer.beta2)
        self.beta1, self.beta2 = Tensor([beta1], ms.float32), Tensor([beta2], ms.float32)
        # 1 - beta^t = -expm1(t * log(beta)) keeps its digits in float32; log of the rounded beta that the kernel uses
        self.log_beta1 = Tensor([math.log(beta1) if beta1 else -math.inf], ms.float32)
        self.log_beta2 = Tensor([math.log(beta2) if beta2 else -math.inf], ms.float32)
        self.eps = Tensor([optimizer.eps], ms.float32)
        self.decay = Tensor([optimizer.weight_decay], ms.float32)
        self.decays = tuple(len(p.shape) > 1 and optimizer.weight_decay > 0 for p in self._parameters)
        self.moments1 = self._parameters.clone(prefix="adam_m", init="zeros")
        self.moments2 = self._parameters.clone(prefix="adam_v", init="zeros")
        self.kernel = ops.AdamWeightDecay()
        self.one = Tensor([1.0], ms.float32)

    def construct(self, gradients, applies=None):
        rate = self.get_lr().reshape((1,))
        count = ops.cast(self.global_step, ms.float32) + 1.0
        correction1 = -ops.expm1(count * self.log_beta1)
        correction2 = ops.sqrt(-ops.expm1(count * self.log_beta2))
        beta1, beta2, increment = self.beta1, self.beta2, self.global_step_increase_tensor
        rate = rate * correction2 / correction1
        if applies is not None:
            beta1, beta2 = ops.select(applies, beta1, self.one), ops.select(applies, beta2, self.one)
            rate = ops.select(applies, rate, self.one - self.one)
            increment = ops.cast(applies, ms.int32)
        self.assignadd(self.global_step, increment)
        return self.hyper_map(
            ops.partial(
                _update,
                self.kernel,
                rate,
                beta1,
                beta2,
                self.eps * correction2,
                self.decay * correction1 / correction2,
            ),
            self._parameters,
            self.moments1,
            self.moments2,
            gradients,
            self.decays,
        )
