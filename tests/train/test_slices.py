"""Slices against a picture drawn by hand: every value of a parameter is held by the ranks that should hold it."""

from __future__ import annotations

import numpy as np
import pytest

from msparallel.mesh import Mesh
from msparallel.train.slices import layout_slice

pytestmark = pytest.mark.pure


def layout(matrix, tensor_map, slice_shape, full):
    return (matrix, tensor_map, slice_shape, 0, True, "", full, slice_shape)


def held(mesh, entry, local):
    return [layout_slice(entry, local_shape=local, mesh=mesh, rank=rank) for rank in range(mesh.size)]


def test_rows_cut_over_tp():
    parts = held(Mesh(dp=2, tp=2), layout([2, 2], [0, -1], [8, 4], [16, 4]), (8, 4))
    assert [part.bounds for part in parts] == [((0, 8), (0, 4)), ((8, 16), (0, 4))] * 2
    assert parts[0].cut_by == (("tp",), ())


def test_columns_cut_over_tp_and_rows_by_the_optimizer_shard():
    parts = held(Mesh(dp=2, tp=2), layout([2, 2], [-1, 0], [16, 2], [16, 4]), (8, 2))
    assert [part.bounds for part in parts] == [((0, 8), (0, 2)), ((0, 8), (2, 4)), ((8, 16), (0, 2)), ((8, 16), (2, 4))]
    assert parts[0].cut_by == (("optimizer_shard",), ("tp",))


def test_a_whole_norm_is_cut_over_all_ranks_by_the_optimizer_shard():
    parts = held(Mesh(pp=2, dp=2, tp=2), layout([2, 2], [-1], [64], [64]), (16,))
    assert [part.bounds for part in parts] == [((16 * rank, 16 * rank + 16),) for rank in range(4)] * 2


def test_an_optimizer_shard_smaller_than_data_parallel_repeats():
    parts = held(Mesh(dp=8), layout([8], [-1, -1], [64, 2], [64, 2]), (32, 2))
    assert [part.bounds[0] for part in parts] == [(0, 32), (32, 64)] * 4


@pytest.mark.parametrize("mesh", [Mesh(dp=2, cp=2, tp=2), Mesh(dp=4, tp=2), Mesh(pp=2, dp=2, tp=2)])
@pytest.mark.parametrize("shards", [1, 2])
def test_every_value_is_held_equally_often(mesh, shards):
    stage = mesh.dp * mesh.cp * mesh.tp
    matrix = [stage // mesh.tp, mesh.tp]
    full = (16, 8)
    count = np.zeros(full, int)
    for part in held(mesh, layout(matrix, [-1, 0], [16, 8 // mesh.tp], list(full)), (16 // shards, 8 // mesh.tp)):
        count[tuple(slice(*bound) for bound in part.bounds)] += 1
    assert (count == mesh.size // (shards * mesh.tp)).all()
    assert part.cut_by[1] == ("tp",)


def test_axes_of_the_mesh_are_named_where_one_axis_of_the_matrix_covers_several():
    parts = held(Mesh(dp=2, cp=2, tp=2), layout([4, 2], [1, -1], [4, 4], [16, 4]), (4, 4))
    assert parts[0].cut_by == (("dp", "cp"), ())
    assert [part.bounds[0] for part in parts] == [(0, 4), (0, 4), (4, 8), (4, 8), (8, 12), (8, 12), (12, 16), (12, 16)]


def test_experts_over_one_axis_and_a_part_of_the_next_are_named_by_their_ranks():
    parts = held(Mesh(dp=4, tp=4), layout([2, 8], [0, -1], [2, 4], [16, 4]), (2, 4))
    assert parts[0].cut_by == (("stride 1 x 8",), ())
    assert [part.bounds[0][0] for part in parts] == [2 * (rank % 8) for rank in range(16)]
