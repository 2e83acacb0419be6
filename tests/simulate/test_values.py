"""First values are cut by the layouts; a layout that does not fit is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade_ranks import RankLines

from msparallel.errors import RunError
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.simulate.execution import first_values, weight_slices
from msparallel.simulate.truth import Truth

pytestmark = pytest.mark.pure
LAYOUT = [[2, 2], [0, -1], [2, 3], 0, True, "", [4, 3]]


@pytest.fixture
def plan():
    return resolve(load_recipe("llama2_7b_dp2_tp2_pp2", ["parallel.pipeline_stages=1"]))


def program(tmp_path, layouts, rank=1):
    lines = RankLines()
    for name, shape in (("w", (2, 3)), ("adam_m.w", (2, 3)), ("b", (3,))):
        lines.parameter(0, name, *shape, weight=True)
    lines.parameter(0, "global_step", 1, weight=True, dtype="Int32")
    found = lines.program(tmp_path / "rank", rank, lines.x)
    return replace(found, graphs=tuple(replace(graph, layouts=layouts) for graph in found.graphs))


def test_weights_are_cut_state_is_taken_and_the_rest_is_zero(tmp_path, plan):
    whole = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "b": np.ones(3, np.float32)}
    ranks = program(tmp_path, {"w": LAYOUT})
    truth = Truth(losses=(), initial=whole, gradients={}, final={}, state={"global_step": np.array([3], np.int32)})
    values = first_values(ranks, truth, weight_slices(ranks, plan.mesh, whole))
    assert values["w"].tolist() == whole["w"][2:].tolist()
    assert values["b"].tolist() == [1, 1, 1]
    assert not values["adam_m.w"].any() and values["global_step"].tolist() == [3]


@pytest.mark.parametrize(
    ("layout", "whole"),
    [
        ([[2, 2], [-1, -1], [4, 3], 0, True, "", [4, 3]], (4, 3)),
        (LAYOUT, (6, 3)),
        ([[2, 2], [0, -1], [2, 3], 0, True, "", [8, 3]], (4, 3)),
    ],
    ids=["larger slice", "other whole", "other layout"],
)
def test_a_slice_that_does_not_fit_its_layout_is_refused(tmp_path, plan, layout, whole):
    initial = {"w": np.zeros(whole, np.float32), "b": np.zeros(3, np.float32)}
    if layout[1] == [-1, -1]:
        layout = [*layout[:6], [3, 3]]
    with pytest.raises(RunError, match=r"rank 1: w is \[2, 3\] in the graph, but its layout cuts"):
        weight_slices(program(tmp_path, {"w": layout}), plan.mesh, initial)
