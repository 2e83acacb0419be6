"""Activation functions and their gradients. float16 is computed in float32 and rounded once."""

from __future__ import annotations

import math

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


def sigmoid(call: Call) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    x = float_tensor(call, 0)
    return _sigmoid(wide(x)).astype(x.dtype, copy=False)


def sigmoid_grad(call: Call) -> np.ndarray:
    """(y, dy) -> dx = dy * y * (1 - y)."""
    y, dy = float_tensor(call, 0), float_tensor(call, 1)
    same_dtype(call, y, dy)
    values = wide(y)
    return (wide(dy) * values * (values.dtype.type(1) - values)).astype(y.dtype, copy=False)


_ROOT, _CUBIC = math.sqrt(2 / math.pi), 0.044715
"""Of GELU in its tanh form (arXiv 1606.08415): x / 2 * (1 + tanh(_ROOT * (x + _CUBIC * x^3)))."""


def gelu(call: Call) -> np.ndarray:
    """GELU in its tanh form, which is what MindSpore's GeLU computes."""
    x = float_tensor(call, 0)
    values = wide(x)
    half, one = values.dtype.type(0.5), values.dtype.type(1)
    return (half * values * (one + _gelu_tanh(values))).astype(x.dtype, copy=False)


def gelu_grad(call: Call) -> np.ndarray:
    """(dy, x, y) -> dx; y is not read."""
    dy, x = float_tensor(call, 0), float_tensor(call, 1)
    same_dtype(call, dy, x)
    values = wide(x)
    number = values.dtype.type
    tanh = _gelu_tanh(values)
    slope = number(_ROOT) * (number(1) + number(3 * _CUBIC) * np.square(values))
    dx = number(0.5) * (number(1) + tanh) + number(0.5) * values * (number(1) - np.square(tanh)) * slope
    return (wide(dy) * dx).astype(x.dtype, copy=False)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    number = x.dtype.type
    return np.tanh(number(_ROOT) * x * (number(1) + number(_CUBIC) * np.square(x)))


KERNELS: dict[str, Kernel] = {
    "ReLU": relu,
    "Sigmoid": sigmoid,
    "SigmoidGrad": sigmoid_grad,
    "SiLU": silu,
    "SiLUGrad": silu_grad,
    "GeLU": gelu,
    "GeLUGrad": gelu_grad,
}
