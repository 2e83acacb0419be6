"""What rules look at: the measurements, means of ranks, and the recipe where there is one.

In: Measured, and a Plan or a hardware profile. Out: a View.

>>> view = view_of(measured, plan=None, hardware=None)  # doctest: +SKIP
>>> view.step_us  # doctest: +SKIP
1234567.0
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.errors import UserError
from msparallel.hardware import Hardware
from msparallel.plan import Plan
from msparallel.planner.estimate import Estimate, estimate
from msparallel.planner.workload import workload_of
from msparallel.profiling.measured import Measured
from msparallel.profiling.recipe_changes import Recipes
from msparallel.profiling.steps import NO_STAGES, RankTime, in_groups, rank_times


@dataclass(frozen=True, kw_only=True)
class View:
    """Attributes:
    times: means of ranks that have step traces.
    step_us: a step: the mean of all ranks; from iterations or operators where there is no step trace, else None.
    steps: how many steps the operators of a rank belong to.
    """

    measured: Measured
    times: tuple[RankTime, ...]
    step_us: float | None
    steps: int
    notes: tuple[str, ...]
    plan: Plan | None
    estimate: Estimate | None
    hardware: Hardware | None
    recipes: Recipes | None

    @property
    def groups(self) -> dict[str, list[RankTime]]:
        return in_groups(self.times)

    def share(self, us: float) -> float | None:
        """Of a step, at most all of it; None where no step is known."""
        return None if self.step_us is None else max(0.0, min(1.0, us / self.step_us))

    def mean(self, name: str) -> float:
        """Mean over ranks of a part of RankTime."""
        return sum(getattr(time, name) for time in self.times) / len(self.times) if self.times else 0.0


def view_of(measured: Measured, *, plan: Plan | None, hardware: Hardware | None,
            recipes: Recipes | None = None) -> View:  # fmt: skip
    """Everything that rules need.

    Raises:
        UserError: where the profile has ranks that the recipe has not.
    """
    mesh, part = (plan.mesh, _check_ranks(measured, plan)) if plan is not None else (None, "")
    times, notes = rank_times(measured.steps, None if part and mesh is not None and mesh.pp > 1 else mesh)
    if part:
        notes = [part, *(note for note in notes if note != NO_STAGES)]
    trains = plan is not None and plan.recipe.train is not None
    steps = max((time.steps for time in times), default=0) or max((one.steps for one in measured.operators), default=0)
    return View(
        measured=measured,
        times=times,
        step_us=_step_us(measured, times),
        steps=max(1, steps),
        notes=(*measured.notes, *notes),
        plan=plan,
        estimate=estimate(workload_of(plan), plan.hardware) if plan is not None and trains else None,
        hardware=hardware or (plan.hardware if plan is not None else None),
        recipes=recipes,
    )


def _check_ranks(measured: Measured, plan: Plan) -> str:
    """A note where it is not sure that a rank of the profile is that rank of the recipe, else empty: all ranks are
    there, or the last one is and others were not profiled. Raises UserError for ranks that the recipe has not."""
    ranks = {part.rank for part in measured.steps} | {one.rank for one in measured.operators}
    ranks |= {one.rank for one in measured.waiting}
    beyond = sorted(rank for rank in ranks if rank >= plan.world_size)
    if beyond:
        raise UserError(
            f"--recipe {plan.recipe.path}: the profile has rank {beyond[-1]}, the recipe {plan.world_size} devices "
            f"({plan.mesh}), ranks 0 to {plan.world_size - 1}. Name the recipe of that run, or its degrees as "
            "overrides, for example parallel.data_parallel=8."
        )
    if not ranks or max(ranks) == plan.world_size - 1:
        return ""
    stages = " So no rank is counted to a stage of the recipe." if plan.mesh.pp > 1 else ""
    return (f"The profile has {len(ranks)} rank{'s' * (len(ranks) > 1)}, the last of them {max(ranks)}; the recipe has "
            f"{plan.world_size} devices ({plan.mesh}), ranks 0 to {plan.world_size - 1}. It is a part of that run, or "
            f"of another one: compare the recipe's degrees with the run's.{stages}")  # fmt: skip


def _step_us(measured: Measured, times: tuple[RankTime, ...]) -> float | None:
    if times:
        return sum(time.step_us for time in times) / len(times)
    if measured.iterations:
        return sum(one.time_us for one in measured.iterations) / len(measured.iterations)
    spans = [one.span_us / one.steps for one in measured.operators if one.steps and one.span_us > 0]
    return sum(spans) / len(spans) if spans else None
