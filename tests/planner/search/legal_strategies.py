"""Every legal strategy of a space, for tests."""

from __future__ import annotations

from msparallel.plan import Plan, resolve
from msparallel.planner.search.rules import refusal
from msparallel.planner.search.space import Space, meshes, strategies, with_batch
from msparallel.planner.workload import Workload
from msparallel.recipe.load import load_recipe


def planned(name: str, *overrides: str) -> Plan:
    return resolve(load_recipe(name, overrides))


def legal(work: Workload, space: Space) -> list[Workload]:
    return [
        with_batch(chosen, space, size)
        for mesh in meshes(space)
        if refusal(work, space, mesh) is None
        for levels in strategies(work, space, mesh)
        for chosen, sizes in levels
        for size in sizes
    ]
