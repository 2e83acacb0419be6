"""Operators that only move elements: shapes, parts, copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from msparallel.simulate.kernels.arguments import dim, dims, integer, integers, only, tensor, tensor_list, unsupported
from msparallel.simulate.kernels.call import Call, Kernel


def reshape(call: Call) -> np.ndarray:
    """(x, shape); one length may be -1."""
    x, shape = tensor(call, 0), integers(call, 1)
    if shape.count(-1) > 1 or any(length < -1 for length in shape):
        raise unsupported(call, f"shape {shape}: at most one length may be -1, and none less")
    if -1 not in shape and math.prod(shape) != x.size:
        raise unsupported(call, f"{x.shape} has {x.size} elements, {shape} {math.prod(shape)}")
    return x.reshape(shape)


def transpose(call: Call) -> np.ndarray:
    """(x, order of its dims)."""
    x = tensor(call, 0)
    order = dims(call, 1, x.ndim)
    if len(order) != x.ndim:
        raise unsupported(call, f"{len(order)} dims are named of {x.ndim}")
    return np.transpose(x, order)


def expand_dims(call: Call) -> np.ndarray:
    """(x, the place of a new dim of length 1)."""
    x = tensor(call, 0)
    return np.expand_dims(x, dim(call, 1, x.ndim + 1))


def concat(call: Call) -> np.ndarray:
    """(tensors, dim)."""
    values = tensor_list(call, 0)
    return np.concatenate(values, dim(call, 1, values[0].ndim))


def split(call: Call) -> tuple[np.ndarray, ...]:
    """(x, dim, how many parts): equal parts."""
    x = tensor(call, 0)
    along, parts = dim(call, 1, x.ndim), integer(call, 2)
    if parts < 1 or x.shape[along] % parts:
        raise unsupported(call, f"dim {along} of {x.shape} cannot be cut into {parts} equal parts")
    return tuple(np.split(x, parts, along))


def split_with_size(call: Call) -> tuple[np.ndarray, ...]:
    """(x, lengths of the parts, dim)."""
    x, lengths = tensor(call, 0), integers(call, 1)
    along = dim(call, 2, x.ndim)
    if sum(lengths) != x.shape[along] or min(lengths) < 0:
        raise unsupported(call, f"lengths {lengths} do not add up to dim {along} of {x.shape}")
    return tuple(np.split(x, np.cumsum(lengths)[:-1], along))


def tile(call: Call) -> np.ndarray:
    """(x, how often each dim is repeated); further dims come in front."""
    x, times = tensor(call, 0), integers(call, 1)
    if len(times) < x.ndim or min(times, default=1) < 1:
        raise unsupported(call, f"{times} must have a number of at least 1 for each of the {x.ndim} dims")
    return np.tile(x, times)


def strided_slice(call: Call) -> np.ndarray:
    """(x, begin, end, strides, then five masks of bits, one a place: begin left out, end left out, an ellipsis, a new
    dim, a dim that shrinks away). Begin and end are cut to the tensor as in Python. Raises IndexError for a dim that
    shrinks to an element that is not there."""
    x = tensor(call, 0)
    return x[_slices(call, 1, x.shape, [integer(call, place) for place in range(4, 9)])]


def strided_slice_grad(call: Call) -> np.ndarray:
    """(dy, shape of x, begin, end, strides; the masks are attributes): dy where it was taken from, 0 elsewhere."""
    dy, shape = tensor(call, 0), integers(call, 1)
    masks = [call.attributes[f"{name}_mask"] for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
    dx = np.zeros(shape, dy.dtype)
    part = _slices(call, 2, shape, masks)
    if dx[part].shape != dy.shape:
        raise unsupported(call, f"the slice of {shape} has shape {dx[part].shape}, its gradient {dy.shape}")
    dx[part] = dy
    return dx


def _slices(call: Call, place: int, shape: tuple[int, ...], masks: Sequence[int]) -> tuple[slice | int, ...]:
    """NumPy's index for begin, end and strides, which stand at `place`, and masks."""
    begin, end, strides = (integers(call, place + number) for number in range(3))
    no_begin, no_end, ellipsis, new, shrunk = masks
    only(call, "ellipsis_mask", ellipsis, 0)
    only(call, "new_axis_mask", new, 0)
    if not len(begin) == len(end) == len(strides) <= len(shape):
        raise unsupported(call, f"begin {begin}, end {end} and strides {strides} for {len(shape)} dims")
    index: list[slice | int] = []
    for at, (first, last, stride) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << at
        if shrunk & bit:
            if not -shape[at] <= first < shape[at]:
                raise IndexError(f"{call.op}: element {first} of dim {at}, which has {shape[at]}")
            index.append(first)
        elif not stride:
            raise unsupported(call, f"strides {strides} may not be 0")
        else:
            index.append(slice(None if no_begin & bit else first, None if no_end & bit else last, stride))
    return tuple(index)


KERNELS: dict[str, Kernel] = {
    "Reshape": reshape,
    "Transpose": transpose,
    "ExpandDims": expand_dims,
    "Concat": concat,
    "Split": split,
    "SplitWithSize": split_with_size,
    "Tile": tile,
    "StridedSlice": strided_slice,
    "StridedSliceGrad": strided_slice_grad,
}
