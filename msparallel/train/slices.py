"""Which part of each parameter a rank holds, read from MindSpore's layouts.

In: `Cell.parameter_layout_dict` after a compilation, the mesh, a rank. Out: a checkpoint.Slice for each parameter of
the rank's stage.
A layout holds the device matrix of a stage, for each dim of the tensor the axis of that matrix that cuts it (counted
from the right, -1 for none), and the group of the optimizer shard, which cuts dim 0 once more over consecutive ranks
among those that hold the same slice.

>>> layout_slice(([2, 2], [0, -1], [8, 4], 0, True, "", [16, 4]), local_shape=(8, 4), mesh=Mesh(dp=2, tp=2), rank=1)
Slice(shape=(16, 4), bounds=((8, 16), (0, 4)), cut_by=(('tp',), ()))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msparallel.mesh import Mesh
from msparallel.slice import Slice

_MATRIX, _TENSOR_MAP, _FULL_SHAPE = 0, 1, 6
"""Places in a layout (MindSpore 2.9, `Cell.parameter_layout_dict`)."""


def layout_slice(layout: Sequence[Any], *, local_shape: Sequence[int], mesh: Mesh, rank: int) -> Slice:
    """Slice of one parameter.

    Args:
        local_shape: of what the rank holds, optimizer shard included.
    """
    matrix, tensor_map, shape = list(layout[_MATRIX]), list(layout[_TENSOR_MAP]), tuple(layout[_FULL_SHAPE])
    strides = [math.prod(matrix[i + 1 :]) for i in range(len(matrix))]
    place = [rank % math.prod(matrix) // stride % size for stride, size in zip(strides, matrix, strict=True)]
    bounds, cut_by, cutting = [], [], set()
    for dim, length in enumerate(shape):
        axis = len(matrix) - 1 - tensor_map[dim] if tensor_map[dim] >= 0 else None
        if axis is None:
            bounds.append((0, length))
            cut_by.append(())
            continue
        part = length // matrix[axis]
        bounds.append((place[axis] * part, (place[axis] + 1) * part))
        cut_by.append(_axes(mesh, strides[axis], matrix[axis]))
        cutting.add(axis)
    start, stop = bounds[0] if bounds else (0, 0)
    shards = (stop - start) // local_shape[0] if bounds else 1
    if shards > 1:
        replica = 0
        for axis, size in enumerate(matrix):
            if axis not in cutting:
                replica = replica * size + place[axis]
        start += replica % shards * local_shape[0]
        bounds[0] = (start, start + local_shape[0])
        cut_by[0] = (*cut_by[0], "optimizer_shard")
    return Slice(shape=shape, bounds=tuple(bounds), cut_by=tuple(cut_by))


def optimizer_shards(layout: Sequence[Any], local_shape: Sequence[int]) -> int:
    """Ranks that the optimizer shard cuts a parameter over, 1 for none."""
    if not local_shape:
        return 1
    matrix, axis = layout[_MATRIX], layout[_TENSOR_MAP][0]
    pieces = matrix[len(matrix) - 1 - axis] if axis >= 0 else 1
    return layout[_FULL_SHAPE][0] // pieces // local_shape[0]


def parameter_slices(
    layouts: Mapping[str, Sequence[Any]], local_shapes: Mapping[str, Sequence[int]], *, mesh: Mesh, rank: int
) -> dict[str, Slice]:
    """Slice of every parameter that has a layout."""
    return {
        name: layout_slice(layouts[name], local_shape=shape, mesh=mesh, rank=rank)
        for name, shape in local_shapes.items()
        if name in layouts
    }


def _axes(mesh: Mesh, stride: int, size: int) -> tuple[str, ...]:
    """Axes of the mesh that an axis of a device matrix is; experts may lie over a part of one, or one and a part."""
    found, inner = [], 1
    for axis in ("tp", "cp", "dp"):
        degree = getattr(mesh, axis)
        if degree > 1 and stride <= inner and inner * degree <= stride * size:
            found.insert(0, axis)
        inner *= degree
    exact = math.prod(getattr(mesh, axis) for axis in found) == size
    return tuple(found) if found and exact else (f"stride {stride} x {size}",)
