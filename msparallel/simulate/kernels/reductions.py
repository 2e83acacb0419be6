"""Sums, means and extremes over dims.

float16 is summed in float32, as Ascend does; whole numbers raise OverflowError where the sum leaves its dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from msparallel.simulate.kernels.arguments import (
    dim,
    dims,
    dtype,
    flag,
    float_tensor,
    in_dtype,
    integers,
    only,
    tensor,
    unsupported,
)
from msparallel.simulate.kernels.call import Call, Kernel


def total(call: Call, x: np.ndarray, over: tuple[int, ...], keep: bool, target: np.dtype) -> np.ndarray:
    """The sum over dims, in the target dtype."""
    if x.dtype.kind == "f" and target.kind == "f":
        wide = np.dtype(np.float32) if target == np.float16 else target
        return np.sum(x, over, keepdims=keep, dtype=wide).astype(target, copy=False)
    if x.dtype.kind not in "iub" or target.kind not in "iu":
        raise unsupported(call, f"a sum of {x.dtype} in {target} is not computed")
    result = np.sum(x, over, keepdims=keep, dtype=np.int64)
    about = np.sum(x, over, keepdims=keep, dtype=np.float64)
    if np.any(np.abs(about - result) > 2.0**62):
        raise OverflowError(f"{call.op}: a sum of about {np.abs(about).max():.0f} does not fit into int64")
    return in_dtype(call, result, target)


def reduce_sum(call: Call) -> np.ndarray:
    """(x, dims, keep dims, skip mode). No dims are all dims, but none in skip mode, which is refused there."""
    x = tensor(call, 0)
    if not integers(call, 1):
        only(call, "skip_mode without dims", flag(call, 3), False)
    return total(call, x, dims(call, 1, x.ndim), flag(call, 2), x.dtype)


def sum_ext(call: Call) -> np.ndarray:
    """(x, dims, keep dims, dtype): without a dtype whole numbers and booleans are summed in int64."""
    x, target = tensor(call, 0), dtype(call, 3)
    target = target or (np.dtype(np.int64) if x.dtype.kind in "iub" else x.dtype)
    return total(call, x, dims(call, 1, x.ndim), flag(call, 2), target)


def reduce_mean(call: Call) -> np.ndarray:
    """(x, dims, keep dims)."""
    x = float_tensor(call, 0)
    return _mean(x, dims(call, 1, x.ndim), flag(call, 2), x.dtype)


def mean_ext(call: Call) -> np.ndarray:
    """(x, dims, keep dims, dtype)."""
    x = float_tensor(call, 0)
    target = dtype(call, 3) or x.dtype
    if target.kind != "f":
        raise unsupported(call, f"a mean in {target} is not computed")
    return _mean(x, dims(call, 1, x.ndim), flag(call, 2), target)


def _mean(x: np.ndarray, over: tuple[int, ...], keep: bool, target: np.dtype) -> np.ndarray:
    wide = np.dtype(np.float32) if target == np.float16 else target
    return np.mean(x, over, keepdims=keep, dtype=wide).astype(target, copy=False)


def _extreme(compute: Callable[..., np.ndarray]) -> Kernel:
    """(x, dims, keep dims)."""

    def kernel(call: Call) -> np.ndarray:
        x = tensor(call, 0)
        return compute(x, dims(call, 1, x.ndim), keepdims=flag(call, 2))

    return kernel


def reduce_all(call: Call) -> np.ndarray:
    """(x, dims, keep dims): whether all booleans are true."""
    x = tensor(call, 0)
    only(call, "dtype", str(x.dtype), "bool")
    return np.all(x, dims(call, 1, x.ndim), keepdims=flag(call, 2))


def cum_sum(call: Call) -> np.ndarray:
    """(x, dim, exclusive, reverse): running sums; exclusive leaves out the element itself."""
    x = tensor(call, 0)
    along = dim(call, 1, x.ndim)
    exclusive, reverse = flag(call, 2), flag(call, 3)
    if x.dtype.kind not in "fiu":
        raise unsupported(call, f"running sums of {x.dtype} are not computed")
    wide = np.dtype(np.float32) if x.dtype == np.float16 else x.dtype if x.dtype.kind == "f" else np.dtype(np.int64)
    values = np.flip(x, along) if reverse else x
    sums = np.cumsum(values, along, dtype=wide)
    if x.dtype.kind in "iu":
        about = np.cumsum(values, along, dtype=np.float64)
        if np.any(np.abs(about - sums) > 2.0**62):
            raise OverflowError(f"{call.op}: a sum of about {np.abs(about).max():.0f} does not fit into int64")
    if exclusive:
        before = np.zeros_like(sums)
        to, of = [slice(None)] * x.ndim, [slice(None)] * x.ndim
        to[along], of[along] = slice(1, None), slice(None, -1)
        before[tuple(to)] = sums[tuple(of)]
        sums = before
    sums = np.flip(sums, along) if reverse else sums
    return sums.astype(x.dtype, copy=False) if x.dtype.kind == "f" else in_dtype(call, sums, x.dtype)


KERNELS: dict[str, Kernel] = {
    "ReduceSum": reduce_sum,
    "SumExt": sum_ext,
    "ReduceMean": reduce_mean,
    "MeanExt": mean_ext,
    "ReduceMax": _extreme(np.max),
    "ReduceAll": reduce_all,
    "CumSum": cum_sum,
}
