"""Rules about operators: on the AI CPU, with a matrix unit that idles.

In: a View. Out: Findings, and the table of the operators that take longest.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from msparallel.profiling.finding import Finding, percent, time_text
from msparallel.profiling.measured import Operator
from msparallel.profiling.recipe_changes import larger_batches
from msparallel.profiling.view import View

MUCH_CPU = 0.01
LOW_CUBE = 0.6
"""Share of the matrix unit's capacity; large products reach 0.8 to 0.95 in published profiles (mstt's examples)."""
LEAST_SHARE = 0.02
MOST_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Total:
    """An operator over all ranks.

    Attributes:
        operator: counts and times of all ranks together, the longest launch of any.
        a_step_us: mean of the ranks.
        share: of the time of all operators.
    """

    operator: Operator
    ranks: int
    a_step_us: float
    share: float


def totals(view: View) -> list[Total]:
    """All operators, those that take longest first."""
    sums: dict[tuple[str, str], tuple[Operator, int, float, float]] = {}
    for one in view.measured.operators:
        for operator in one.operators:
            key = operator.type, operator.core
            weighted = (operator.cube_share or 0.0) * operator.total_us
            weight = operator.total_us if operator.cube_share is not None else 0.0
            before = sums.get(key)
            if before is None:
                sums[key] = operator, 1, weighted, weight
                continue
            longer = max(before[0], operator, key=lambda each: each.longest_us)
            both = replace(longer, count=before[0].count + operator.count,
                           total_us=before[0].total_us + operator.total_us)  # fmt: skip
            sums[key] = both, before[1] + 1, before[2] + weighted, before[3] + weight
    whole = sum(operator.total_us for operator, *_ in sums.values()) or 1.0
    ranks = max(1, len(view.measured.operators))
    found = [Total(operator=replace(operator, cube_share=weighted / weight if weight else None), ranks=count,
                   a_step_us=operator.total_us / ranks / view.steps, share=operator.total_us / whole)
             for operator, count, weighted, weight in sums.values()]  # fmt: skip
    return sorted(found, key=lambda total: (-total.operator.total_us, total.operator.type))


def core_times(view: View) -> dict[str, float]:
    """Kind of core -> microseconds a step, mean of the ranks."""
    found: dict[str, float] = defaultdict(float)
    for total in totals(view):
        found[total.operator.core] += total.a_step_us
    return dict(found)


def on_ai_cpu(view: View) -> list[Finding]:
    """Operators that no AI core has a kernel for."""
    found = [total for total in totals(view) if total.operator.core == "cpu"]
    if not found:
        return []
    a_step = sum(total.a_step_us for total in found)
    share = view.share(a_step)
    much = (share if share is not None else sum(total.share for total in found)) >= MUCH_CPU
    names = ", ".join(f"{total.operator.type} ({total.operator.count:,} x, {time_text(total.operator.total_us)})"
                      for total in found[:MOST_SHOWN])  # fmt: skip
    return [Finding(
        rule="operators_on_ai_cpu", severity="warning" if much else "info",
        root_cause=f"{len(found)} operator{'s' * (len(found) > 1)} on the AI CPU take{'s' * (len(found) == 1)} "
                   f"{time_text(a_step)} a step: {names}.",
        remedy="Mostly a data type or form that the AI core has no kernel for: int64 where int32 does, float64, "
               "dynamic shapes. Replace the operator, or cast before it; one that runs beside others costs less.",
        gain=share, evidence=tuple(total.operator.longest for total in found[:MOST_SHOWN]),
    )]  # fmt: skip


def low_cube_use(view: View) -> list[Finding]:
    """Matrix products that leave the matrix unit idle."""
    found = [total for total in totals(view) if total.operator.core == "cube"
             and total.operator.cube_share is not None and total.operator.cube_share < LOW_CUBE
             and total.share >= LEAST_SHARE]  # fmt: skip
    if not found:
        return []
    lost = sum(total.a_step_us * (1 - (total.operator.cube_share or 0.0)) for total in found)
    names = ", ".join(f"{total.operator.type} {percent(total.operator.cube_share or 0.0)} over "
                      f"{time_text(total.a_step_us)} a step" for total in found[:MOST_SHOWN])  # fmt: skip
    changes: tuple[str, ...] = ()
    planned = None
    if view.recipes is not None and view.plan is not None and view.estimate is not None:
        changes, planned = view.recipes.best(larger_batches(view.plan))
    return [Finding(
        rule="low_cube_use", severity="warning",
        root_cause=f"The matrix unit idles inside operators that are made for it: {names}.",
        remedy="Larger products (train.micro_batch_size, a smaller parallel.model_parallel), sizes that are multiples "
               "of 16 and better of 512, bfloat16 instead of float32, weights in the kernel's own format.",
        gain=view.share(lost), evidence=tuple(total.operator.longest for total in found[:MOST_SHOWN]),
        changes=changes, planned=planned,
    )]  # fmt: skip
