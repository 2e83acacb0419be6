"""Operators that read or write where a tensor of indices says. An index outside raises IndexError: what a device does
then is undefined."""

from __future__ import annotations

import math

import numpy as np

from msparallel.simulate.kernels.arguments import (
    dim,
    in_dtype,
    in_range,
    index_tensor,
    integer,
    only,
    tensor,
    unsupported,
)
from msparallel.simulate.kernels.call import Call, Kernel


def gather(call: Call) -> np.ndarray:
    """(x, indices, dim, batch dims): whole slices of x along a dim."""
    x, indices = tensor(call, 0), index_tensor(call, 1)
    along = dim(call, 2, x.ndim)
    only(call, "batch_dims", integer(call, 3) if len(call.inputs) > 3 else 0, 0)
    in_range(call, indices, x.shape[along], "index")
    return np.take(x, indices, along)


def one_hot(call: Call) -> np.ndarray:
    """(indices, depth, value at the index, value elsewhere, dim of the depth). By MindSpore's definition an index
    outside [0, depth) has no place: all its values are the one elsewhere."""
    indices, depth = index_tensor(call, 0), integer(call, 1)
    on, off = tensor(call, 2), tensor(call, 3)
    along = dim(call, 4, indices.ndim + 1) if len(call.inputs) > 4 else indices.ndim
    shape = [1] * (indices.ndim + 1)
    shape[along] = depth
    hit = np.expand_dims(indices, along) == np.arange(depth, dtype=indices.dtype).reshape(shape)
    return np.where(hit, on, off)


def unsorted_segment_sum(call: Call) -> np.ndarray:
    """(x, segments, how many): out[s] is the sum of x[i] over all i with segments[i] = s."""
    x, segments, count = tensor(call, 0), index_tensor(call, 1), integer(call, 2)
    if x.shape[: segments.ndim] != segments.shape:
        raise unsupported(call, f"segments {segments.shape} must be the first dims of {x.shape}")
    in_range(call, segments, count, "segment")
    rest = x.shape[segments.ndim :]
    rows = x.reshape(segments.size, math.prod(rest))
    return added(call, rows, segments.ravel(), count).reshape(count, *rest)


def added(call: Call, rows: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """[n, m] rows -> [count, m], each row added at its place; float16 in float32. Places must be in [0, count).

    Rows are sorted by place, so that NumPy adds every stretch in one go.
    """
    wide = {"f": np.promote_types(rows.dtype, np.float32), "i": np.dtype(np.int64), "u": np.dtype(np.int64)}
    if rows.dtype.kind not in wide:
        raise unsupported(call, f"sums of {rows.dtype} are not computed")
    result = np.zeros((count, rows.shape[1]), wide[rows.dtype.kind])
    if rows.size:
        order = np.argsort(places, kind="stable")
        used, starts = np.unique(places[order], return_index=True)
        result[used] = np.add.reduceat(rows[order], starts, 0, result.dtype)
    return result.astype(rows.dtype, copy=False) if rows.dtype.kind == "f" else in_dtype(call, result, rows.dtype)


KERNELS: dict[str, Kernel] = {"Gather": gather, "OneHot": one_hot, "UnsortedSegmentSum": unsorted_segment_sum}
