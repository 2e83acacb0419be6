"""Whatever the strategy, a cluster computes what one device computes."""

from __future__ import annotations

from collections import Counter

import pytest
from matrix import CASES, FACTORS, SAMPLE, factor_cases

from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.simulate.simulate import simulate

STEPS = 5


@pytest.mark.pure
def test_the_sample_covers_every_factorisation_once_and_every_switch_twice():
    cases = [name for name in SAMPLE if name in factor_cases()]
    factors = Counter("-".join(name.split("-")[:3]) for name in cases)
    assert factors == {f"dp{dp}-tp{tp}-pp{pp}": 1 for dp, tp, pp in FACTORS}
    switches = Counter(word for name in cases for word in name.split("-")[4:])
    assert all(switches[word] >= 2 for word in ("shard", "seq", "recompute"))
    assert set(SAMPLE) <= set(CASES)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in CASES]
)
def test_a_cluster_computes_what_one_device_computes(name):
    recipe, *words = CASES[name]
    found = simulate(resolve(load_recipe(recipe, words)), steps=STEPS, progress=False)
    assert found.deadlock is None
    assert len(found.cluster_losses) == len(found.single_losses) == STEPS
    assert found.max_rel_loss_error <= 1e-5
    assert found.gradients.max_relative <= 1e-5, max(found.gradients.relative.items(), key=lambda item: item[1])
    assert found.parameters.max_absolute <= 1e-4, max(found.parameters.absolute.items(), key=lambda item: item[1])
    assert found.replicas_apart == 0
