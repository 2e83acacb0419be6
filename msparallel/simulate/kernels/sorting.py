"""The largest elements and where they are. Of equal elements the first comes first, as MindSpore defines it."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import integer, only, tensor, unsupported
from msparallel.simulate.kernels.call import Call, Kernel


def top_k(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """(x, k): the k largest of every row, from the largest down, and their places as int32."""
    x, k = tensor(call, 0), integer(call, 1)
    only(call, "sorted", call.attributes.get("sorted", True), True)
    if x.ndim == 0 or not 0 < k <= x.shape[-1]:
        raise unsupported(call, f"k {k} of rows in {x.shape}")
    if x.dtype.kind == "f" and np.isnan(x).any():
        raise unsupported(call, f"{np.count_nonzero(np.isnan(x))} of {x.size} elements are NaN, which have no order")
    # A stable sort upwards of the row read backwards, read backwards: equal elements stand in their first order.
    places = x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1][..., :k]
    return np.take_along_axis(x, places, -1), places.astype(np.int32)


KERNELS: dict[str, Kernel] = {"TopK": top_k}
