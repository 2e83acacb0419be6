"""The largest elements and where they are. Of equal elements the first comes first, as MindSpore defines it."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import dim, flag, integer, only, tensor, unsupported
from msparallel.simulate.kernels.call import Call, Kernel


def top_k(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """(x, k): the k largest of every row, from the largest down, and their places as int32."""
    x, k = tensor(call, 0), integer(call, 1)
    only(call, "sorted", call.attributes.get("sorted", True), True)
    if x.ndim == 0 or not 0 < k <= x.shape[-1]:
        raise unsupported(call, f"k {k} of rows in {x.shape}")
    _ordered(call, x)
    # A stable sort upwards of the row read backwards, read backwards: equal elements stand in their first order.
    places = x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1][..., :k]
    return np.take_along_axis(x, places, -1), places.astype(np.int32)


def arg_max_with_value(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """(x, dim, keep dims): the place of the largest along a dim as int64, and the largest."""
    x = tensor(call, 0)
    along, keep = dim(call, 1, x.ndim), flag(call, 2)
    _ordered(call, x)
    places = np.expand_dims(np.argmax(x, along), along)
    values = np.take_along_axis(x, places, along)
    return (places, values) if keep else (places.squeeze(along), values.squeeze(along))


def _ordered(call: Call, x: np.ndarray) -> None:
    if x.dtype.kind == "f" and np.isnan(x).any():
        raise unsupported(call, f"{np.count_nonzero(np.isnan(x))} of {x.size} elements are NaN, which have no order")


KERNELS: dict[str, Kernel] = {"TopK": top_k, "ArgMaxWithValue": arg_max_with_value}
