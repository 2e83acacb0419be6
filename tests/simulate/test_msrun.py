"""The virtual cluster against a real one: two workers of MindSpore's msrun."""

from __future__ import annotations

import pytest
from tiny_recipe import run_json, write_recipe

from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.simulate.simulate import simulate


@pytest.mark.msrun
@pytest.mark.parametrize("micro_batch_size", [2, 1], ids=["one_graph", "accumulated"])
def test_two_virtual_ranks_train_like_two_real_workers(tmp_path, micro_batch_size):
    path = write_recipe(
        tmp_path,
        parallel__mode="data_parallel",
        parallel__data_parallel=2,
        train__micro_batch_size=micro_batch_size,
    )
    real = run_json(path)
    found = simulate(resolve(load_recipe(str(path))), steps=6, full=True, progress=False)
    assert found.same and not found.random_tokens
    assert found.cluster_losses == pytest.approx(real["losses"], rel=1e-6)
    assert real["world_size"] == 2 and len(real["losses"]) == 6
