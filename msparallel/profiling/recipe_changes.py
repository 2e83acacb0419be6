"""Changes of a recipe that pass its rules, and what the planner says of them.

In: the recipe's name and overrides as typed, candidate overrides. Out: the candidate that saves most on paper and fits,
or none. Nothing is suggested that `validate` would refuse.

>>> Recipes("llama2_7b_dp2_tp2_pp2", ()).best([("parallel.virtual_stages=2",)])  # doctest: +SKIP
(('parallel.virtual_stages=2',), 0.05)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msparallel.errors import RecipeError
from msparallel.plan import Plan, resolve
from msparallel.planner.estimate import Estimate, estimate
from msparallel.planner.workload import workload_of
from msparallel.recipe.load import load_recipe

LEAST_SAVING = 0.002
Changes = tuple[str, ...]


@dataclass(frozen=True)
class Recipes:
    """The recipe of the profiled run."""

    name: str
    overrides: tuple[str, ...]

    def plan(self) -> Plan:
        """Raises RecipeError where a rule does not hold."""
        return resolve(load_recipe(self.name, self.overrides))

    def changed(self, changes: Changes) -> Estimate | None:
        """The recipe with changes, on paper; None where a rule refuses it or it does not fit."""
        keys = {change.partition("=")[0] for change in changes}
        kept = tuple(text for text in self.overrides if text.partition("=")[0].strip() not in keys)
        try:
            plan = resolve(load_recipe(self.name, (*kept, *changes)))
        except RecipeError:
            return None
        if plan.world_size != self.plan().world_size or plan.global_batch_size != self.plan().global_batch_size:
            return None  # another job, not a faster one
        found = estimate(workload_of(plan), plan.hardware)
        return found if found.fits else None

    def best(self, candidates: Sequence[Changes]) -> tuple[Changes, float | None]:
        """The candidate that saves most, and the share of a step it saves on paper; ((), None) where none does."""
        plan = self.plan()
        before = estimate(workload_of(plan), plan.hardware).time.step_s
        best: tuple[Changes, float | None] = (), None
        for changes in candidates:
            found = self.changed(changes)
            saving = 0.0 if found is None else 1 - found.time.step_s / before
            if saving > max(LEAST_SAVING, best[1] or 0.0):
                best = changes, saving
        return best


def bubble_candidates(plan: Plan) -> list[Changes]:
    """More micro-batches, or more groups of layers a stage."""
    found: list[Changes] = []
    size = plan.micro_batch_size
    stated = plan.recipe.keys_stated("parallel")
    for smaller in {size // 2, 1} - {0, size}:
        if size % smaller == 0:
            more = () if "micro_batch_num" not in stated else (
                f"parallel.micro_batch_num={plan.micro_batch_num * size // smaller}",)  # fmt: skip
            found.append((f"train.micro_batch_size={smaller}", *more))
    groups = plan.recipe.parallel.virtual_stages
    equal = ("parallel.stage_layers=null",) if "stage_layers" in stated else ()
    found += [(f"parallel.virtual_stages={more}", *equal) for more in (2, 3, 4, 5) if more > groups]
    return found


def waiting_candidates(plan: Plan, axis: str) -> list[Changes]:
    """Less to wait for on an axis."""
    parallel, mesh = plan.recipe.parallel, plan.mesh
    found: list[Changes] = []
    if axis in ("dp", ""):
        if not parallel.overlap_gradients:
            found.append(("parallel.overlap_gradients=true",))
        if parallel.optimizer_shard in ("level2", "level3"):
            found.append(("parallel.optimizer_shard=level1",))
    if axis in ("tp", "") and mesh.tp > 1:
        half = (f"parallel.model_parallel={mesh.tp // 2}", f"parallel.data_parallel={mesh.dp * 2}")
        found += [half, (*half, "parallel.optimizer_shard=true")] if mesh.tp % 2 == 0 else []
        if not parallel.sequence_parallel:
            found.append(("parallel.sequence_parallel=true",))
    if axis == "cp":
        other = "all_gather" if parallel.context_parallel_algo == "ulysses" else "ulysses"
        found.append((f"parallel.context_parallel_algo={other}",))
    return found


def larger_batches(plan: Plan) -> list[Changes]:
    """The same step in fewer, larger launches."""
    size, count = plan.micro_batch_size, plan.micro_batch_num
    if count % 2:
        return []
    stated = "micro_batch_num" in plan.recipe.keys_stated("parallel")
    return [(f"train.micro_batch_size={size * 2}", *((f"parallel.micro_batch_num={count // 2}",) if stated else ()))]


def less_recompute(plan: Plan) -> list[Changes]:
    """Keep what is computed twice now."""
    lighter = {"full": ("none", "selective"), "selective": ("none",)}.get(plan.recipe.parallel.recompute, ())
    return [(f"parallel.recompute={word}",) for word in lighter]


def moved_layer(plan: Plan, slow: int, fast: int) -> list[Changes]:
    """A layer from one stage to another; stages that hold several groups are left alone."""
    layers = list(plan.stage_layers)
    if len(layers) != plan.mesh.pp or layers[slow] < 2:
        return []
    layers[slow] -= 1
    layers[fast] += 1
    return [(f"parallel.stage_layers=[{','.join(map(str, layers))}]",)]
