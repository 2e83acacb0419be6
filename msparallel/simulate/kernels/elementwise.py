"""Operators that compute every element alone: arithmetic, comparisons, casts.

Floats follow IEEE: infinities and NaN are results. Whole numbers that leave their dtype raise OverflowError, because
what a device would give then is no number anybody meant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from msparallel.simulate.kernels.arguments import (
    dtype,
    float_tensor,
    in_dtype,
    in_one_dtype,
    integers,
    number,
    only,
    same_dtype,
    tensor,
    tensor_list,
    unsupported,
)
from msparallel.simulate.kernels.call import Call, Kernel


def exact(call: Call, compute: Callable[..., np.ndarray], *values: np.ndarray) -> np.ndarray:
    """A result in the dtype of the inputs. Raises OverflowError for whole numbers that leave it.

    What wraps around is off by a multiple of 2^bits; the same in float64 is off by its rounding, far less than half of
    that.
    """
    result = compute(*values)
    kind, bits = values[0].dtype.kind, 8 * values[0].dtype.itemsize
    if kind == "b":
        raise unsupported(call, "arithmetic of booleans is not computed")
    if kind in "iu":
        real = compute(*(value.astype(np.float64) for value in values))
        wrong = np.abs(real - np.asarray(result).astype(np.float64)) >= 2.0 ** (bits - 1)
        if np.any(wrong):
            raise OverflowError(
                f"{call.op}: {np.asarray(real)[wrong].flat[0]:.0f} does not fit into {values[0].dtype}; "
                f"so {np.count_nonzero(wrong)} of {np.size(result)} results"
            )
    return result


def _arithmetic(compute: Callable[..., np.ndarray]) -> Kernel:
    def kernel(call: Call) -> np.ndarray:
        return exact(call, compute, *in_one_dtype(call, tensor(call, 0), tensor(call, 1)))

    return kernel


def _scaled(compute: Callable[..., np.ndarray]) -> Kernel:
    """x and y times a number: AddExt, SubExt."""

    def kernel(call: Call) -> np.ndarray:
        x, y = tensor(call, 0), tensor(call, 1)
        same_dtype(call, x, y)
        factor = _like(call, x, number(call, 2))
        return exact(call, lambda a, b: compute(a, b * factor.astype(b.dtype)), x, y)

    return kernel


def _with_number(compute: Callable[..., np.ndarray]) -> Kernel:
    """A tensor and a Python number, which takes the tensor's dtype."""

    def kernel(call: Call) -> np.ndarray:
        x = tensor(call, 0)
        factor = _like(call, x, number(call, 1))
        return exact(call, lambda a: compute(a, factor.astype(a.dtype)), x)

    return kernel


def _like(call: Call, x: np.ndarray, value: int | float) -> np.ndarray:
    """A number as a tensor of x's dtype. Raises UnsupportedCall for a fraction beside whole numbers, OverflowError for
    one that does not fit."""
    if x.dtype.kind == "f":
        return np.asarray(value, x.dtype)
    if isinstance(value, float) and not value.is_integer():
        raise unsupported(call, f"{value} beside {x.dtype}: the fraction would be lost")
    return in_dtype(call, np.asarray(int(value)), x.dtype)


def _floats(compute: Callable[..., np.ndarray], inputs: int = 1) -> Kernel:
    """A function of one or more float tensors."""

    def kernel(call: Call) -> np.ndarray:
        values = [float_tensor(call, place) for place in range(inputs)]
        same_dtype(call, *values)
        return compute(*values)

    return kernel


def _compared(compare: Callable[..., np.ndarray]) -> Kernel:
    def kernel(call: Call) -> np.ndarray:
        x, y = tensor(call, 0), tensor(call, 1)
        same_dtype(call, x, y)
        return compare(x, y)

    return kernel


def _logical(combine: Callable[..., np.ndarray], inputs: int = 2) -> Kernel:
    def kernel(call: Call) -> np.ndarray:
        values = [tensor(call, place) for place in range(inputs)]
        for value in values:
            only(call, "dtype", str(value.dtype), "bool")
        return combine(*values)

    return kernel


def floor_div(call: Call) -> np.ndarray:
    """The largest whole number not above x / y. Raises UnsupportedCall for whole numbers over 0."""
    x, y = _divided(call)
    return np.floor(x / y) if x.dtype.kind == "f" else exact(call, np.floor_divide, x, y)


def floor_mod(call: Call) -> np.ndarray:
    """x - floor(x / y) * y, with the sign of y. Raises UnsupportedCall for whole numbers over 0."""
    x, y = _divided(call)
    return np.mod(x, y)


def _divided(call: Call) -> tuple[np.ndarray, np.ndarray]:
    x, y = tensor(call, 0), tensor(call, 1)
    same_dtype(call, x, y)
    if x.dtype.kind in "iu" and np.any(y == 0):
        raise unsupported(
            call, f"{np.count_nonzero(y == 0)} of {y.size} divisors are 0, and whole numbers have no infinity"
        )
    return x, y


def divide_by_number(call: Call) -> np.ndarray:
    """A float tensor over a number."""
    x = float_tensor(call, 0)
    return x / x.dtype.type(number(call, 1))


def add_product(call: Call) -> np.ndarray:
    """(x, y, z, factor): x + factor * y * z."""
    x, y, z, factor = (float_tensor(call, place) for place in range(4))
    same_dtype(call, x, y, z, factor)
    return x + factor * y * z


def add_n(call: Call) -> np.ndarray:
    """The sum of several tensors of one shape, added in their order."""
    first, *others = tensor_list(call, 0)
    for other in others:
        if other.shape != first.shape:
            raise unsupported(call, f"shapes {first.shape} and {other.shape} must be the same")
        first = exact(call, np.add, first, other)
    return first


def power(call: Call) -> np.ndarray:
    """A tensor to the power of a number."""
    x, exponent = float_tensor(call, 0), number(call, 1)
    if exponent == 1:
        return x
    return np.square(x) if exponent == 2 else np.power(x, x.dtype.type(exponent))


def cast(call: Call) -> np.ndarray:
    """Another dtype; floats lose their fraction on the way to whole numbers, and everything but 0 is true.

    Raises OverflowError for numbers (or NaN) that the other dtype has no whole number for.
    """
    x, target = tensor(call, 0), dtype(call, 1)
    if target is None:
        raise unsupported(call, "no dtype given")
    if target.kind not in "iu" or x.dtype.kind == "b" or x.dtype == target:
        return x.astype(target, copy=False)
    if x.dtype.kind in "iu":
        return in_dtype(call, x, target)
    # Limits as floats: the largest whole number itself is often none, the one after it is.
    limits = np.iinfo(target)
    whole = np.trunc(x.astype(np.float64))
    fits = (whole >= float(limits.min)) & (whole < float(limits.max) + (1 if limits.bits < 64 else 0))
    if not np.all(fits):
        raise OverflowError(
            f"{call.op}: {x[~fits].flat[0]} does not fit into {target}; so {np.count_nonzero(~fits)} of {x.size}"
        )
    return whole.astype(target) if limits.bits < 64 else x.astype(target)


def select(call: Call) -> np.ndarray:
    """x where the condition holds, y elsewhere."""
    condition, x, y = tensor(call, 0), tensor(call, 1), tensor(call, 2)
    only(call, "dtype of the condition", str(condition.dtype), "bool")
    same_dtype(call, x, y)
    return np.where(condition, x, y)


def log(call: Call) -> np.ndarray:
    """The natural logarithm; other bases, scales and shifts are written as attributes."""
    for name, plain in (("base", -1.0), ("scale", 1.0), ("shift", 0.0)):
        only(call, name, call.attributes.get(name, plain), plain)
    return np.log(float_tensor(call, 0))


def exp(call: Call) -> np.ndarray:
    """e to the power of x; other bases, scales and shifts are written as attributes."""
    for name, plain in (("base", -1.0), ("scale", 1.0), ("shift", 0.0)):
        only(call, name, call.attributes.get(name, plain), plain)
    return np.exp(float_tensor(call, 0))


def zeros_like(call: Call) -> np.ndarray:
    """Zeros in the shape of a tensor; in another dtype where one is given."""
    x = tensor(call, 0)
    return np.zeros(x.shape, (dtype(call, 1) if len(call.inputs) > 1 else None) or x.dtype)


def fill(call: Call) -> np.ndarray:
    """(shape, value): a tensor of one value."""
    value = tensor(call, 1)
    if value.size != 1:
        raise unsupported(call, f"{value.size} values; there must be one")
    return np.full(integers(call, 0), value.reshape(()), value.dtype)


def rsqrt_grad(call: Call) -> np.ndarray:
    """(y, dy) -> dx for y = 1 / sqrt(x)."""
    y, dy = float_tensor(call, 0), float_tensor(call, 1)
    same_dtype(call, y, dy)
    return y.dtype.type(-0.5) * dy * (y * y * y)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return x.dtype.type(1) / np.sqrt(x)


KERNELS: dict[str, Kernel] = {
    "Add": _arithmetic(np.add),
    "Sub": _arithmetic(np.subtract),
    "Mul": _arithmetic(np.multiply),
    "Maximum": _arithmetic(np.maximum),
    "Minimum": _arithmetic(np.minimum),
    "AddExt": _scaled(np.add),
    "SubExt": _scaled(np.subtract),
    "Muls": _with_number(np.multiply),
    "RealDiv": _floats(np.divide, 2),
    "Div": _floats(np.divide, 2),
    "FloorDiv": floor_div,
    "FloorMod": floor_mod,
    "Divs": divide_by_number,
    "Reciprocal": _floats(lambda x: x.dtype.type(1) / x),
    "Addcmul": add_product,
    "Pow": _floats(np.power, 2),
    "AddN": add_n,
    "Neg": lambda call: exact(call, np.negative, tensor(call, 0)),
    "Square": lambda call: exact(call, np.square, tensor(call, 0)),
    "PowTensorScalar": power,
    "Exp": exp,
    "Expm1": _floats(np.expm1),
    "Log": log,
    "Sqrt": _floats(np.sqrt),
    "Rsqrt": _floats(_rsqrt),
    "RsqrtGrad": rsqrt_grad,
    "Sin": _floats(np.sin),
    "Cos": _floats(np.cos),
    "Equal": _compared(np.equal),
    "NotEqual": _compared(np.not_equal),
    "Greater": _compared(np.greater),
    "GreaterEqual": _compared(np.greater_equal),
    "Less": _compared(np.less),
    "LogicalOr": _logical(np.logical_or),
    "LogicalNot": _logical(np.logical_not, 1),
    "IsFinite": _floats(np.isfinite),
    "Select": select,
    "Cast": cast,
    "ZerosLikeExt": zeros_like,
    "FillV2": fill,
}
