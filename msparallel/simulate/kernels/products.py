"""Products of matrices. float16 is multiplied in float32 and rounded once, as Ascend's cube unit does."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import flag, float_tensor, same_dtype, tensor, unsupported
from msparallel.simulate.kernels.call import Call, Kernel
from msparallel.simulate.kernels.elementwise import exact


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x @ y in their dtype."""
    if x.dtype == np.float16:
        return np.matmul(x.astype(np.float32), y.astype(np.float32)).astype(np.float16)
    return np.matmul(x, y)


def mat_mul(call: Call) -> np.ndarray:
    """(x, y, transpose x, transpose y) of two matrices."""
    x, y = float_tensor(call, 0), float_tensor(call, 1)
    if x.ndim != 2 or y.ndim != 2:
        raise unsupported(call, f"{x.ndim} and {y.ndim} dims; matrices have 2")
    return _product(call, x, y)


def batch_mat_mul(call: Call) -> np.ndarray:
    """(x, y, transpose x, transpose y) of the last two dims; dims before them are alike."""
    x, y = float_tensor(call, 0), float_tensor(call, 1)
    if x.ndim < 2 or y.ndim < 2 or x.shape[:-2] != y.shape[:-2]:
        raise unsupported(call, f"{x.shape} and {y.shape}; batches of matrices are alike in all but the last 2 dims")
    return _product(call, x, y)


def _product(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    same_dtype(call, x, y)
    x = np.swapaxes(x, -1, -2) if flag(call, 2) else x
    y = np.swapaxes(y, -1, -2) if flag(call, 3) else y
    return product(x, y)


def outer(call: Call) -> np.ndarray:
    """Every element of one vector times every element of another."""
    x, y = tensor(call, 0), tensor(call, 1)
    same_dtype(call, x, y)
    if x.ndim != 1 or y.ndim != 1:
        raise unsupported(call, f"{x.ndim} and {y.ndim} dims; vectors have 1")
    return exact(call, np.multiply.outer, x, y)


KERNELS: dict[str, Kernel] = {"MatMul": mat_mul, "BatchMatMul": batch_mat_mul, "Outer": outer}
