"""The planner's estimate beside what was measured.

In: a View with a recipe. Out: rows: a part of the step, estimated and measured in their own columns. Estimates are the
planner's for the stage that ends the step; measurements are means over all ranks. Time in which a device is free has no
counterpart on paper: the planner knows no host.
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.profiling.view import View


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds; None where one side has no such part."""

    part: str
    estimated_s: float | None
    measured_s: float | None


def rows(view: View) -> list[Row]:
    """Parts of a step, the step last; [] without a recipe that trains or without step traces."""
    if view.estimate is None or not view.times:
        return []
    time = view.estimate.time
    pipeline = time.bubble_s + time.exposed_s.get("pp", 0.0)
    waits = sum(seconds for axis, seconds in time.exposed_s.items() if axis != "pp")
    return [
        Row(part="computes", estimated_s=time.compute_s + time.recompute_s + time.optimizer_s,
            measured_s=view.mean("computing_us") / 1e6),
        Row(part="waits for messages", estimated_s=waits, measured_s=view.mean("waits_us") / 1e6),
        Row(part="bubble and stage to stage", estimated_s=pipeline, measured_s=view.mean("bubble_us") / 1e6),
        Row(part="free", estimated_s=None, measured_s=view.mean("free_us") / 1e6),
        Row(part="step", estimated_s=time.step_s, measured_s=view.mean("step_us") / 1e6),
    ]  # fmt: skip
