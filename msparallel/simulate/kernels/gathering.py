"""Operators that read or write where a tensor of indices says. An index outside raises IndexError: what a device does
then is undefined."""

from __future__ import annotations

import math

import numpy as np

from msparallel.simulate.kernels.arguments import (
    dim,
    flag,
    given,
    in_dtype,
    in_range,
    index_tensor,
    integer,
    integers,
    only,
    same_dtype,
    tensor,
    unsupported,
)
from msparallel.simulate.kernels.call import Call, Kernel


def gather(call: Call) -> np.ndarray:
    """(x, indices, dim, batch dims): whole slices of x along a dim. The first dims of both, as many as batch dims, are
    gone through together."""
    x, indices = tensor(call, 0), index_tensor(call, 1)
    along, batch_dims = dim(call, 2, x.ndim), integer(call, 3)
    in_range(call, indices, x.shape[along], "index")
    if not batch_dims:
        return np.take(x, indices, along)
    batch = x.shape[:batch_dims]
    if not 0 <= batch_dims <= along or indices.shape[:batch_dims] != batch:
        raise unsupported(call, f"{batch_dims} batch dims of {x.shape} and {indices.shape}, gathered along {along}")
    between, after, picked = x.shape[batch_dims:along], x.shape[along + 1 :], indices.shape[batch_dims:]
    whole = x.reshape(math.prod(batch), math.prod(between), x.shape[along], math.prod(after))
    rows = indices.reshape(len(whole), 1, math.prod(picked))
    found = whole[np.arange(len(whole))[:, None, None], np.arange(whole.shape[1])[:, None], rows]
    return found.reshape(*batch, *between, *picked, *after)


def gather_elements(call: Call) -> np.ndarray:
    """(x, dim, indices): out[i][j] is x[i][indices[i][j]] along dim 1. Indices below 0 count from the end, by
    MindSpore's definition."""
    x = tensor(call, 0)
    along, places = _element_places(call, 1, 2, x.shape)
    return np.take_along_axis(x, places, along)


def _element_places(call: Call, dim_place: int, place: int, shape: tuple[int, ...]) -> tuple[int, np.ndarray]:
    """The dim, and indices of elements along it, counted from the front."""
    along, indices = dim(call, dim_place, len(shape)), index_tensor(call, place)
    others = [number for number in range(len(shape)) if number != along]
    if indices.ndim != len(shape) or any(indices.shape[number] > shape[number] for number in others):
        raise unsupported(call, f"indices {indices.shape} for elements of {shape} along {along}")
    length = shape[along]
    places = np.where(indices < 0, indices + length, indices)
    in_range(call, places, length, "index")
    return along, places[tuple(slice(n) for n in places.shape)]


def one_hot(call: Call) -> np.ndarray:
    """(indices, depth, value at the index, value elsewhere, dim of the depth). By MindSpore's definition an index
    outside [0, depth) has no place: all its values are the one elsewhere."""
    indices, depth = index_tensor(call, 0), integer(call, 1)
    on, off = tensor(call, 2), tensor(call, 3)
    along = dim(call, 4, indices.ndim + 1)
    same_dtype(call, on, off)
    flat = indices.ravel()
    inside = np.flatnonzero((flat >= 0) & (flat < depth))
    rows = np.full((flat.size, depth), off)
    rows[inside, flat[inside]] = on
    return np.moveaxis(rows.reshape(*indices.shape, depth), -1, along)


def one_hot_ext(call: Call) -> np.ndarray:
    """The same with the depth as the last dim."""
    only(call, "axis", integer(call, 4), -1)
    return one_hot(call)


def unsorted_segment_sum(call: Call) -> np.ndarray:
    """(x, segments, how many): out[s] is the sum of x[i] over all i with segments[i] = s."""
    x, segments, count = tensor(call, 0), index_tensor(call, 1), integer(call, 2)
    if x.shape[: segments.ndim] != segments.shape:
        raise unsupported(call, f"segments {segments.shape} must be the first dims of {x.shape}")
    in_range(call, segments, count, "segment")
    rest = x.shape[segments.ndim :]
    rows = x.reshape(segments.size, math.prod(rest))
    return added(call, rows, segments.ravel(), count).reshape(count, *rest)


def embedding(call: Call) -> np.ndarray:
    """(indices, rows, padding index, largest norm, kind of norm, scaled by frequency): the rows at the indices."""
    indices, rows = index_tensor(call, 0), tensor(call, 1)
    only(call, "max_norm", given(call, 3), None)
    in_range(call, indices, len(rows), "index")
    return rows[indices]


def embedding_grad(call: Call) -> np.ndarray:
    """(dy, indices, number of rows, padding index, scaled by frequency): dy added to the rows it was taken from, but
    not to the one at the padding index."""
    dy, indices, count = tensor(call, 0), index_tensor(call, 1), integer(call, 2)
    only(call, "scale_grad_by_freq", flag(call, 4), False)
    if dy.shape[:-1] != indices.shape:
        raise unsupported(call, f"indices {indices.shape} must be the first dims of {dy.shape}")
    in_range(call, indices, count, "index")
    result = added(call, dy.reshape(indices.size, dy.shape[-1]), indices.ravel(), count)
    if given(call, 3) is not None:
        result[integer(call, 3)] = 0
    return result


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


def scatter_nd(call: Call) -> np.ndarray:
    """(indices, updates, shape): updates added to zeros where gather_nd would read them."""
    indices, updates, shape = index_tensor(call, 0), tensor(call, 1), integers(call, 2)
    points = _points(call, indices, shape)
    taken, rest = shape[: len(points)], shape[len(points) :]
    if updates.shape != indices.shape[:-1] + rest:
        raise unsupported(call, f"updates {updates.shape} at indices {indices.shape} of {shape}")
    flat = np.ravel_multi_index(points, taken).ravel()
    return added(call, updates.reshape(flat.size, math.prod(rest)), flat, math.prod(taken)).reshape(shape)


def _points(call: Call, indices: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The last dim of indices, one array for each dim it is a place in."""
    width = indices.shape[-1]
    if not 1 <= width <= len(shape):
        raise unsupported(call, f"indices of {width} numbers for {len(shape)} dims")
    for number in range(width):
        in_range(call, indices[..., number], shape[number], f"index of dim {number}")
    return tuple(np.moveaxis(indices, -1, 0))


KERNELS: dict[str, Kernel] = {
    "Gather": gather,
    "GatherD": gather_elements,
    "ScatterNd": scatter_nd,
    "Embedding": embedding,
    "EmbeddingDenseBackward": embedding_grad,
    "OneHot": one_hot,
    "OneHotExt": one_hot_ext,
    "UnsortedSegmentSum": unsorted_segment_sum,
}
