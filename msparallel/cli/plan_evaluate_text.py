"""Estimates against measurements as a person reads them at the terminal.

In: an Evaluation. Out: text without colours: figures by metric, hardware, source and half, outliers, skipped rows.

>>> print(evaluation_text(evaluate("measured_cases.csv"), width=100))  # doctest: +SKIP
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from msparallel.cli.columns import fit, table
from msparallel.errors import printable
from msparallel.planner.measured.cases import METRICS, Case
from msparallel.planner.measured.evaluate import Evaluation, Figures, Row, source_name
from msparallel.planner.measured.families import half_of

TITLES = {"model_state": "model state", "peak_memory": "peak memory", "step_time": "step time"}
HEAD = ("metric", "rows", "median", "mean", "90 % within", "optimistic > 2 %")
MOST_ROWS_TOLD = 12
"""Numbers of skipped rows that one reason lists."""


def evaluation_text(found: Evaluation, width: int) -> str:
    """The whole answer."""
    total = len(found.rows) + len(found.skipped)
    sections = [
        [found.path, f"{len(found.rows)} of {total} rows estimated, {len(found.skipped)} skipped"],
        ["Errors, as shares of what was measured", *table(_figures(found), width, right=range(1, 6))],
        _state_lines(found),
        _grouped(found, "hardware", lambda case: case.hardware or "not stated", width),
        _grouped(found, "half of the model families", lambda case: half_of(case.family), width),
        _grouped(found, "source", source_name, width),
        _outliers(found.outliers, width),
        _skipped(found, width),
    ]
    lines = [line for section in sections if section for line in (*section, "")][:-1]
    return printable("\n".join(part for line in lines for part in fit(line, width)))


def _figures(found: Evaluation) -> list[tuple[str, ...]]:
    return [HEAD, *((TITLES[metric], *cells(found.figures(metric))) for metric in METRICS)]


def cells(figure: Figures) -> tuple[str, ...]:
    """Number of rows, and the shares."""
    shares = figure.median_abs_err, figure.mean_abs_err, figure.p90_abs_err, figure.optimistic_beyond_2pct
    return str(figure.n), *map(_share, shares)


def _share(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.2f} %" if 0 < share < 0.01 else f"{100 * share:.1f} %"


def _state_lines(found: Evaluation) -> list[str]:
    near, bounds = found.state_near, found.lower_bounds
    lines = [
        f"Model state within 3 %: {of['within_3pct']} of {of['n']} {name} rows"
        for name, of in (("dense", near["dense"]), ("plain dense", near["plain"]))
        if of["n"]
    ]
    if near["plain"]["n"]:
        lines.append("  plain: without options that change what is kept (reuse-fp32-param, o2, swap, noop layers)")
    band = found.peaks_in_band
    if band["n"]:
        lines.append(f"Peaks that the high end of the band covers: {band['not_above_high']} of {band['n']}")
    ran = found.runs_that_fit
    if ran["n"]:
        lines.append(f"Runs that took place (rows of time) and are said to fit: {ran['said_to_fit']} of {ran['n']}")
    if bounds["n"]:
        lines.append(
            f"Lower bounds (peaks logged before the optimizer had state): {bounds['n']}, "
            f"the estimate is more than 2 % below {bounds['below_beyond_2pct']} of them"
        )
    return lines


def _grouped(found: Evaluation, title: str, name: Callable[[Case], str], width: int) -> list[str]:
    rows = [("", *HEAD)]
    for group, figures in found.groups(name).items():
        for place, (metric, figure) in enumerate(figures.items()):
            rows.append(("" if place else group, TITLES[metric], *cells(figure)))
    return [f"By {title}", *table(rows, width, right=range(2, 7))] if len(rows) > 1 else []


def _outliers(rows: Iterable[Row], width: int) -> list[str]:
    told = [
        (
            str(row.case.row),
            row.case.model,
            TITLES[row.case.metric],
            f"{row.measured:.3f}",
            f"{row.estimate:.3f}",
            f"{100 * row.error:+.1f} %",
        )
        for row in sorted(rows, key=lambda row: (METRICS.index(row.case.metric), -abs(row.error)))
    ]
    if not told:
        return []
    head = ("row", "model", "metric", "measured", "estimate", "error")
    return [
        "Outliers: model state beyond 3 %, all else beyond 10 % (GiB or s; the error is the worst stage's)",
        *table([head, *told], width, right={0, 3, 4, 5}),
    ]


def _skipped(found: Evaluation, width: int) -> list[str]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for row in found.skipped:
        by_reason[row.reason].append(row.row)
    if not by_reason:
        return []
    told = []
    for reason, rows in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        more = f", ... ({len(rows) - MOST_ROWS_TOLD} more)" if len(rows) > MOST_ROWS_TOLD else ""
        told.append((str(len(rows)), reason, ", ".join(map(str, rows[:MOST_ROWS_TOLD])) + more))
    return ["Skipped rows", *table([("rows", "reason", "lines of the file"), *told], width, right={0})]
