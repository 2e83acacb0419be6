"""Softmax and its kin, and norms. float16 is computed in float32 and rounded once."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import dim, dims, float_tensor, number, only, same_dtype, unsupported
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


def log_softmax(call: Call) -> np.ndarray:
    """(x, dim)."""
    x = float_tensor(call, 0)
    along = dim(call, 1, x.ndim)
    values = wide(x)
    values = values - values.max(along, keepdims=True)
    return (values - np.log(np.exp(values).sum(along, keepdims=True))).astype(x.dtype, copy=False)


def log_softmax_grad(call: Call) -> np.ndarray:
    """(y, dy, dim)."""
    y, dy = float_tensor(call, 0), float_tensor(call, 1)
    same_dtype(call, y, dy)
    along = dim(call, 2, y.ndim)
    dy_wide = wide(dy)
    return (dy_wide - np.exp(wide(y)) * dy_wide.sum(along, keepdims=True)).astype(y.dtype, copy=False)


def rms_norm(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """(x, gamma, epsilon) -> x / rms(x) * gamma over gamma's dims, and 1 / rms in float32."""
    x, gamma = float_tensor(call, 0), float_tensor(call, 1)
    over = _last_dims(call, x, gamma)
    values = wide(x)
    one = values.dtype.type(1)
    mean = np.square(values).mean(over, keepdims=True)
    inverse = one / np.sqrt(mean + values.dtype.type(number(call, 2)))
    return (values * inverse * wide(gamma)).astype(x.dtype, copy=False), inverse.astype(np.float32, copy=False)


def rms_norm_grad(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """(dy, x, 1 / rms, gamma) -> the gradients of x, and of gamma in float32."""
    dy, x, inverse, gamma = (float_tensor(call, place) for place in range(4))
    same_dtype(call, dy, x)
    over = _last_dims(call, x, gamma)
    dy_wide, values = wide(dy), wide(x)
    normal = values * inverse.astype(values.dtype, copy=False)
    scaled = dy_wide * wide(gamma)
    dx = (scaled - normal * (scaled * normal).mean(over, keepdims=True)) * inverse.astype(values.dtype, copy=False)
    before = tuple(range(x.ndim - gamma.ndim))
    return dx.astype(x.dtype, copy=False), (dy_wide * normal).sum(before).astype(np.float32, copy=False)


def layer_norm(call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, gamma, beta, first dim that is normalized over, first dim of gamma, epsilon) -> y, mean and variance."""
    x, gamma, beta = (float_tensor(call, place) for place in range(3))
    same_dtype(call, gamma, beta)
    over = _norm_dims(call, 3, x, gamma)
    values = wide(x)
    mean = values.mean(over, keepdims=True)
    centered = values - mean
    variance = np.square(centered).mean(over, keepdims=True)
    y = centered / np.sqrt(variance + values.dtype.type(number(call, 5))) * wide(gamma) + wide(beta)
    return y.astype(x.dtype, copy=False), mean, variance


def layer_norm_grad(call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, dy, variance, mean, gamma, first dims as forward; epsilon is an attribute) -> gradients of x, gamma, beta."""
    x, dy, variance, mean, gamma = (float_tensor(call, place) for place in range(5))
    same_dtype(call, x, dy)
    over = _norm_dims(call, 5, x, gamma)
    if "epsilon" not in call.attributes:
        raise unsupported(call, "no epsilon among its attributes")
    values, dy_wide = wide(x), wide(dy)
    number_of = values.dtype.type
    inverse = number_of(1) / np.sqrt(variance + number_of(call.attributes["epsilon"]))
    normal = (values - mean) * inverse
    scaled = dy_wide * wide(gamma)
    shift = scaled.mean(over, keepdims=True) + normal * (scaled * normal).mean(over, keepdims=True)
    before = tuple(range(x.ndim - gamma.ndim))
    d_gamma, d_beta = (dy_wide * normal).sum(before), dy_wide.sum(before)
    return (
        ((scaled - shift) * inverse).astype(x.dtype, copy=False),
        d_gamma.astype(gamma.dtype, copy=False),
        d_beta.astype(gamma.dtype, copy=False),
    )


def _norm_dims(call: Call, place: int, x: np.ndarray, gamma: np.ndarray) -> tuple[int, ...]:
    """The dims from the first on; those of gamma must be the same."""
    only(call, "begin_params_axis", dim(call, place + 1, x.ndim), dim(call, place, x.ndim))
    over = _last_dims(call, x, gamma)
    only(call, "begin_norm_axis", dim(call, place, x.ndim), over[0])
    return over


def _last_dims(call: Call, x: np.ndarray, gamma: np.ndarray) -> tuple[int, ...]:
    """The last dims of x, as many as gamma has."""
    if not gamma.ndim or x.shape[-gamma.ndim :] != gamma.shape:
        raise unsupported(call, f"gamma {gamma.shape} must have the last dims of {x.shape}")
    return tuple(range(x.ndim - gamma.ndim, x.ndim))


KERNELS: dict[str, Kernel] = {
    "Softmax": softmax,
    "SoftmaxBackward": softmax_backward,
    "LogSoftmax": log_softmax,
    "LogSoftmaxGrad": log_softmax_grad,
    "LayerNorm": layer_norm,
    "LayerNormGrad": layer_norm_grad,
    "RmsNorm": rms_norm,
    "RmsNormGrad": rms_norm_grad,
}
