"""Softmax and its kin, and norms. float16 is computed in float32 and rounded once."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import dim, dims, float_tensor, same_dtype
from msparallel.simulate.kernels.call import Call, Kernel


def wide(x: np.ndarray) -> np.ndarray:
    """In the dtype that is computed in."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def softmax(call: Call) -> np.ndarray:
    """(x, dims)."""
    x = float_tensor(call, 0)
    over = dims(call, 1, x.ndim)
    values = wide(x)
    values = np.exp(values - values.max(over, keepdims=True))
    return (values / values.sum(over, keepdims=True)).astype(x.dtype, copy=False)


def softmax_backward(call: Call) -> np.ndarray:
    """(dy, y, dim)."""
    dy, y = float_tensor(call, 0), float_tensor(call, 1)
    same_dtype(call, dy, y)
    along = dim(call, 2, y.ndim)
    dy_wide, y_wide = wide(dy), wide(y)
    dx = y_wide * (dy_wide - (dy_wide * y_wide).sum(along, keepdims=True))
    return dx.astype(y.dtype, copy=False)


KERNELS: dict[str, Kernel] = {"Softmax": softmax, "SoftmaxBackward": softmax_backward}
