"""Activation functions and their gradients. float16 is computed in float32 and rounded once."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import float_tensor, same_dtype, tensor, unsupported
from msparallel.simulate.kernels.call import Call, Kernel
from msparallel.simulate.kernels.normalization import wide


def relu(call: Call) -> np.ndarray:
    """max(x, 0), of floats or whole numbers."""
    x = tensor(call, 0)
    if x.dtype.kind == "b":
        raise unsupported(call, "booleans have no sign")
    return np.maximum(x, x.dtype.type(0))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    one = x.dtype.type(1)
    return one / (one + np.exp(-x))  # exp overflows to infinity for x far below 0, which gives the right 0


def silu(call: Call) -> np.ndarray:
    """x * sigmoid(x)."""
    x = float_tensor(call, 0)
    values = wide(x)
    return (values * _sigmoid(values)).astype(x.dtype, copy=False)


def silu_grad(call: Call) -> np.ndarray:
    """(dy, x) -> dx = dy * s * (1 + x * (1 - s)), s = sigmoid(x)."""
    dy, x = float_tensor(call, 0), float_tensor(call, 1)
    same_dtype(call, dy, x)
    values = wide(x)
    one, gate = values.dtype.type(1), _sigmoid(values)
    return (wide(dy) * gate * (one + values * (one - gate))).astype(x.dtype, copy=False)


KERNELS: dict[str, Kernel] = {"ReLU": relu, "SiLU": silu, "SiLUGrad": silu_grad}
