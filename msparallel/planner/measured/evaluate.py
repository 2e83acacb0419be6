"""Estimates against published measurements: errors by metric, source, hardware and half.

In: a CSV file of measured runs (`cases.py` says its columns and which rows cannot be compared). Out: an Evaluation:
every row with both numbers, and figures over them.

>>> found = evaluate("measured_cases.csv")  # doctest: +SKIP
>>> found.figures("model_state").median_abs_err  # doctest: +SKIP
0.0003

An error is (estimate - measured) / measured. Memory of several stages has the error of its worst stage. Rates are
turned into seconds of a step. A row is optimistic where the estimate is lower by more than 2 %: less memory, or a
faster step, than was measured. Rows that hold a lower bound are in no figure: they are counted where the estimate is
more than 2 % below.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msparallel.hardware import load_hardware
from msparallel.planner.estimate import fits
from msparallel.planner.measured.cases import METRICS, Case, Metric, Skipped, read_cases
from msparallel.planner.measured.families import half_of
from msparallel.planner.memory import GIB, fullest_of, stage_memories, static_bytes
from msparallel.planner.step_time import step_time

TOLERANCE = 0.02
NEAR = 0.03
"""Within which model state is counted as met."""
OUTLIER = 0.1
"""Beyond which a row of any metric is listed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured run and its estimate; GiB, or seconds of a step.

    Attributes:
        stages: (measured, estimate) of each pipeline stage, where the table has them.
        error: of the worst stage.
        high: the end of the band that `fits` asks for, of a peak.
        fits: what the planner says of a run that took place, on hardware that is known.
    """

    case: Case
    measured: float
    estimate: float
    stages: tuple[tuple[float, float], ...]
    error: float
    high: float | None = None
    fits: bool | None = None

    @property
    def counts(self) -> bool:
        """Whether it is in the figures."""
        return not self.case.lower_bound

    def to_json(self) -> dict[str, Any]:
        """A row of `rows`."""
        case = self.case
        return {
            "row": case.row,
            "source": case.source,
            "model": case.model,
            "family": case.family,
            "metric": case.metric,
            "hardware": case.hardware,
            "measured": self.measured,
            "estimate": self.estimate,
            "unit": "s" if case.metric == "step_time" else "GiB",
            "error": self.error,
            "high": self.high,
            "fits": self.fits,
            "stages": [{"measured": measured, "estimate": estimate} for measured, estimate in self.stages],
            "lower_bound": case.lower_bound,
            "dense": case.is_dense,
            "plain": case.plain,
            "half": half_of(case.family),
            "mesh": str(case.work.mesh),
        }


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of a set of rows; shares of the measured values, None of no rows.

    Attributes:
        optimistic_beyond_2pct: share of the rows.
    """

    n: int
    median_abs_err: float | None = None
    mean_abs_err: float | None = None
    p90_abs_err: float | None = None
    optimistic_beyond_2pct: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Attributes:
    rows: all that were estimated, in the file's order.
    skipped: all others, with the rule.
    """

    path: str
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]

    def figures(self, metric: Metric) -> Figures:
        """Of the rows of one metric; lower bounds never count."""
        return figures(row.error for row in self.rows if row.case.metric == metric and row.counts)

    def groups(self, name: Callable[[Case], str]) -> dict[str, dict[str, Figures]]:
        """Figures by metric of the groups that `name` makes, by name."""
        names = sorted({name(row.case) for row in self.rows if row.counts})
        found: dict[str, dict[str, Figures]] = {}
        for group in names:
            rows = [row for row in self.rows if row.counts and name(row.case) == group]
            of_metrics = {m: figures(row.error for row in rows if row.case.metric == m) for m in METRICS}
            found[group] = {metric: figure for metric, figure in of_metrics.items() if figure.n}
        return found

    @property
    def state_near(self) -> dict[str, dict[str, float | int]]:
        """Rows of model state within 3 %, of all dense rows and of the plain ones among them."""
        rows = [row for row in self.rows if row.case.metric == "model_state" and row.counts and row.case.is_dense]
        return {
            name: {"n": len(kept), "within_3pct": sum(abs(row.error) <= NEAR for row in kept)}
            for name, kept in (("dense", rows), ("plain", [row for row in rows if row.case.plain]))
        }

    @property
    def lower_bounds(self) -> dict[str, int]:
        """Rows that hold a lower bound, and how many of them the estimate is more than 2 % below."""
        rows = [row for row in self.rows if not row.counts]
        return {"n": len(rows), "below_beyond_2pct": sum(row.error < -TOLERANCE for row in rows)}

    @property
    def peaks_in_band(self) -> dict[str, int]:
        """Rows of peak memory, and those that the high end of the band covers: for them `fits` told the truth."""
        rows = [row for row in self.rows if row.case.metric == "peak_memory" and row.counts and row.high is not None]
        return {"n": len(rows), "not_above_high": sum(row.measured <= (row.high or 0) for row in rows)}

    @property
    def runs_that_fit(self) -> dict[str, int]:
        """Rows of time, whose runs had room, and those that the planner says fit."""
        rows = [row for row in self.rows if row.fits is not None]
        return {"n": len(rows), "said_to_fit": sum(bool(row.fits) for row in rows)}

    @property
    def outliers(self) -> list[Row]:
        """Rows of model state beyond 3 %, and all others beyond 10 %."""
        return [
            row
            for row in self.rows
            if row.counts and abs(row.error) > (NEAR if row.case.metric == "model_state" else OUTLIER)
        ]

    def to_json(self) -> dict[str, Any]:
        """The document of `plan-evaluate --json`."""
        return {
            "file": self.path,
            "metrics": {metric: asdict(self.figures(metric)) for metric in METRICS},
            "model_state_within_3pct": self.state_near,
            "lower_bounds": self.lower_bounds,
            "peaks_in_band": self.peaks_in_band,
            "runs_that_fit": self.runs_that_fit,
            "by_source": _groups_json(self.groups(source_name)),
            "by_hardware": _groups_json(self.groups(lambda case: case.hardware or "unknown")),
            "by_half": _groups_json(self.groups(lambda case: half_of(case.family))),
            "rows": [row.to_json() for row in self.rows],
            "skipped": [asdict(row) for row in self.skipped],
        }


def evaluate(path: str | Path) -> Evaluation:
    """Estimate every run of a file. Raises UserError where the file is no table of runs."""
    cases, skipped = read_cases(path)
    return Evaluation(path=str(path), rows=tuple(map(_row, cases)), skipped=tuple(skipped))


def figures(errors: Iterable[float]) -> Figures:
    """Of signed errors. The 90th percentile is the smallest error that nine of ten rows do not exceed."""
    signed = list(errors)
    if not signed:
        return Figures(n=0)
    sizes = sorted(map(abs, signed))
    return Figures(
        n=len(sizes),
        median_abs_err=statistics.median(sizes),
        mean_abs_err=statistics.fmean(sizes),
        p90_abs_err=sizes[-(-9 * len(sizes) // 10) - 1],
        optimistic_beyond_2pct=sum(error < -TOLERANCE for error in signed) / len(signed),
    )


def source_name(case: Case) -> str:
    """Who published it, and from which branch."""
    first, *rest = case.source.split()
    branch = rest[1] if len(rest) > 1 and rest[0] == "branch" else ""
    return re.sub(r"^[^/]+/", "", first) + (f" {branch}" if branch else "")


def _row(case: Case) -> Row:
    if case.metric == "step_time":
        assert case.hardware is not None, "rows of time have a profile"
        hardware = load_hardware(case.hardware)
        measured, estimate = case.measured_s, step_time(case.work, hardware).step_s
        error, roomy = estimate / measured - 1, fits(case.work, hardware)
        return Row(case=case, measured=measured, estimate=estimate, stages=(), error=error, fits=roomy)
    high = None
    if case.metric == "model_state":
        estimates = [held / GIB for held in static_bytes(case.work)]
    else:
        memory = stage_memories(case.work)
        estimates = [stage.total_bytes / GIB for stage in memory]
        high = fullest_of(memory).high_bytes / GIB
    stages = tuple(zip(case.value_by_stage, estimates, strict=True)) if case.value_by_stage else ()
    pairs = stages or ((case.value, max(estimates)),)
    errors = [estimate / measured - 1 for measured, estimate in pairs]
    worst = min(errors) if case.lower_bound else max(errors, key=abs)
    return Row(case=case, measured=case.value, estimate=max(estimates), stages=stages, error=worst, high=high)


def _groups_json(groups: dict[str, dict[str, Figures]]) -> dict[str, Any]:
    return {name: {metric: asdict(figure) for metric, figure in of.items()} for name, of in groups.items()}
