"""What a person can do where the supervisor cannot: what to free on a full disk, what runs on fewer nodes.

In: a run's folder; a Plan. Out: lines of text with sizes, or overrides that pass every rule.

>>> fewer_nodes("gpt_tiny_dp4_cpu", ["cluster.nodes=2", "cluster.devices_per_node=2"], newest=None)
['cluster.nodes=1', 'parallel.data_parallel=2']
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msparallel.errors import RecipeError
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.train.checkpoint import Checkpoint
from msparallel.train.resume import CUTTING, cutting

_MOST_FILES = 100_000
_CHANGED = ("cluster.nodes", "parallel.data_parallel")


def to_free(run_folder: Path, most: int = 5) -> list[tuple[Path, int]]:
    """What the run could do without, with its bytes, the largest first."""
    found = [(path, size) for path in _candidates(run_folder) if (size := _bytes(path))]
    return sorted(found, key=lambda pair: -pair[1])[:most]


def _candidates(run_folder: Path) -> Iterator[Path]:
    yield from run_folder.parent.glob(f"{run_folder.name}.old*")
    yield from (run_folder / "checkpoints").glob("step_*.damaged*")
    yield run_folder / "incidents"
    yield run_folder / "tensorboard"


def _bytes(folder: Path) -> int:
    total = seen = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
            seen += 1
            if seen >= _MOST_FILES:
                return total
    return total


def fewer_nodes(source: str, overrides: Sequence[str], newest: Checkpoint | None) -> list[str]:
    """Overrides with which the recipe goes on, on fewer nodes: as many as possible, the same global batch. Empty where
    there are none: its degrees cannot shrink, or the checkpoint's slices fit only the plan that wrote them."""
    plan = resolve(load_recipe(source, overrides))
    for nodes in range(plan.nodes - 1, 0, -1):
        replicas, rest = divmod(plan.mesh.dp * nodes, plan.nodes)
        if rest or not replicas:
            continue
        words = [f"cluster.nodes={nodes}", f"parallel.data_parallel={replicas}"]
        kept = [word for word in overrides if word.partition("=")[0] not in _CHANGED]
        try:
            smaller = resolve(load_recipe(source, [*kept, *words]))
        except RecipeError:
            continue
        if newest is None or not newest.ranks or _cut_alike(plan, smaller):
            return words
    return []


def _cut_alike(plan: Plan, other: Plan) -> bool:
    before, after = cutting(plan), cutting(other)
    return all(before[f"parallel.{key}"] == after[f"parallel.{key}"] for key in CUTTING)
