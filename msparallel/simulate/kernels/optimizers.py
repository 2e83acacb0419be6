"""Steps of the optimizer. Kernels give the new values in the order of the inputs that the operator writes to."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import float_tensor, number, same_dtype, unsupported
from msparallel.simulate.kernels.call import Call, Kernel


def adam_weight_decay(call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weight, first moment, second moment, learning rate, beta1, beta2, epsilon, decay, gradient) -> the first three,
    new. Decoupled decay, no correction of the moments' start:
    m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w = w - lr (m / (sqrt(v) + eps) + decay w).
    """
    weight, first, second, gradient = (float_tensor(call, place) for place in (0, 1, 2, 8))
    same_dtype(call, weight, first, second, gradient)
    if not weight.shape == first.shape == second.shape == gradient.shape:
        raise unsupported(call, f"shapes {[v.shape for v in (weight, first, second, gradient)]} must be the same")
    rate, beta1, beta2, epsilon, decay = (weight.dtype.type(number(call, place)) for place in range(3, 8))
    one = weight.dtype.type(1)
    first = beta1 * first + (one - beta1) * gradient
    second = beta2 * second + (one - beta2) * np.square(gradient)
    update = first / (np.sqrt(second) + epsilon)
    if decay > 0:
        update += decay * weight
    return weight - rate * update, first, second


KERNELS: dict[str, Kernel] = {"AdamWeightDecay": adam_weight_decay}
