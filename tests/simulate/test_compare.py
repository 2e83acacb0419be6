"""Slices fit together, and what does not is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msparallel.errors import RunError
from msparallel.mesh import Mesh
from msparallel.simulate.compare import cut, difference, joined
from msparallel.train.slices import layout_slice

pytestmark = pytest.mark.pure


def slices_of(shape, mesh, tensor_map, shards=1):
    """Slices of one weight "w" for every rank, as MindSpore lays them out over (dp, tp)."""
    matrix = [mesh.dp, mesh.tp]
    local = [n // (matrix[1 - t] if t >= 0 else 1) for n, t in zip(shape, tensor_map, strict=True)]
    local[0] //= shards
    layout = (matrix, list(tensor_map), local, 0, True, "", list(shape))
    return {rank: {"w": layout_slice(layout, local_shape=local, mesh=mesh, rank=rank)} for rank in range(mesh.size)}


@given(
    dp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2, 4]),
    dim=st.sampled_from([(0, -1), (-1, 0), (-1, -1)]),
    shard=st.booleans(),
)
def test_what_was_cut_joins_to_the_same(dp, tp, dim, shard):
    whole = {"w": np.arange(16 * 8, dtype=np.float32).reshape(16, 8)}
    slices = slices_of((16, 8), Mesh(dp=dp, tp=tp), dim, dp if shard else 1)
    held = {rank: cut(whole, parts) for rank, parts in slices.items()}
    again, apart = joined(held, slices)
    assert np.array_equal(again["w"], whole["w"]) and apart == 0


def test_copies_that_differ_are_measured():
    slices = slices_of((4, 2), Mesh(dp=2), (-1, -1))
    held = {0: {"w": np.zeros((4, 2), np.float32)}, 1: {"w": np.full((4, 2), 0.5, np.float32)}}
    assert joined(held, slices)[1] == 0.5


def test_a_part_that_nobody_holds_is_named():
    slices = slices_of((4, 2), Mesh(tp=2), (0, -1))
    with pytest.raises(RunError, match=r"w: no rank holds 4 of its 8 values, the first at \[2, 0\]"):
        joined({0: {"w": np.zeros((2, 2), np.float32)}}, {0: slices[0]})


def test_differences_are_relative_to_each_tensor():
    true = {"a": np.array([3.0, 4.0]), "b": np.array([1e-9]), "c": np.array([100.0])}
    found = difference(true, {"a": np.array([3.0, 4.5]), "b": np.array([5e-9]), "c": np.array([100.0])})
    assert found.relative == {"a": 0.1, "c": 0.0}
    assert found.zero == ("b",)
    assert found.absolute["a"] == 0.5 and found.max_relative == 0.1 and found.max_absolute == 0.5


def test_parameters_of_one_side_only_are_named():
    with pytest.raises(RunError, match="norm.weight is in one of them only"):
        difference({"w": np.ones(1)}, {"w": np.ones(1), "norm.weight": np.ones(1)})
