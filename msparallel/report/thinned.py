"""A step's spans and memory curves, few enough for a page.

In: a Timeline; MemoryCurves. Out: plain lists of whole numbers. A file of some megabytes holds about a hundred thousand
spans. Where there are more, neighbours are drawn as one: operators of one stream, pass, micro-batch and axes that
follow each other and together take less than a part of the step, the smallest part with which everything fits.

>>> drawn = drawn_spans(timeline)
>>> drawn["operators"], drawn["drawn"], drawn["part"]
(231480, 84211, 8000)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from msparallel.errors import printable
from msparallel.report.alike import below_model
from msparallel.report.step import PASSES, Pass, micro_batch_count, micro_of, pass_of
from msparallel.simulate.memory import MemoryCurve
from msparallel.simulate.streams import STREAMS
from msparallel.simulate.timeline import Timeline
from msparallel.simulate.walk import Span

MOST_SPANS = 100_000
"""Of a page; each takes about 20 bytes."""
FINEST_PART, COARSEST_PART = 64_000, 250
"""A step's parts below which neighbours are drawn as one."""
MOST_POINTS, MOST_POINTS_OF_A_CURVE = 60_000, 4000
"""Of memory over time."""
MOST_NAMES = 3
"""Kinds of operator that what is drawn as one names."""


def unit_s(timeline: Timeline) -> float:
    """What the page's whole numbers count: a power of ten of seconds, a step has between 1e8 and 1e9 of them."""
    return 10.0 ** (math.floor(math.log10(timeline.step_time_s)) - 8) if timeline.step_time_s else 1e-9


def drawn_spans(timeline: Timeline, most: int = MOST_SPANS) -> dict[str, Any]:
    """Spans as rows of numbers.

    Returns:
        operators, drawn: how many there are, and how many spans are drawn for them; part: neighbours that together take
        less than this part of the step are one, 0 for none. passes, ops, cells, messages ([axes, ranks]): what numbers
        mean. kinds: [op, cell, pass, message or -1, bytes, operators] of a span. rows: of each rank and stream that has
        spans, in the order of time: `gap` since the end of the one before, `length`, `kind`, `micro` (-1: none).
    """
    keyed = _keyed(timeline)
    part = 0 if len(timeline.spans) <= most else FINEST_PART
    while part > COARSEST_PART and sum(1 for row in keyed.values() for _ in _groups(row, timeline, part)) > most:
        part //= 2
    groups = {row: list(_groups(spans, timeline, part)) for row, spans in keyed.items()}
    return {
        "operators": len(timeline.spans),
        "drawn": sum(map(len, groups.values())),
        "part": part,
        **_numbered(groups, unit_s(timeline)),
    }


_Row = tuple[int, str]
"""Rank and stream."""


class _Keyed(NamedTuple):
    """A span with what it must have in common with those that are drawn with it."""

    span: Span
    micro: int | None
    pass_: Pass


def _keyed(timeline: Timeline) -> dict[_Row, list[_Keyed]]:
    """Rows in the order in which they are drawn, each in the order of time."""
    count = micro_batch_count(timeline)
    rows: dict[_Row, list[_Keyed]] = {}
    for span in timeline.spans:
        row = rows.setdefault((span.rank, span.stream), [])
        row.append(_Keyed(span, micro_of(span, count), pass_of(span)))
    for row in rows.values():
        row.sort(key=lambda one: one.span.start_s)
    return {row: rows[row] for row in sorted(rows, key=lambda row: (row[0], STREAMS.index(row[1])))}


def _groups(row: Sequence[_Keyed], timeline: Timeline, part: int) -> Iterator[Sequence[_Keyed]]:
    """Neighbours that are drawn as one."""
    least = timeline.step_time_s / part if part else 0.0
    group: list[_Keyed] = []
    for one in row:
        if group:
            first = group[0]
            alike = (one.micro, one.pass_, one.span.axes) == (first.micro, first.pass_, first.span.axes)
            if not alike or one.span.end_s - first.span.start_s >= least:
                yield group
                group = []
        group.append(one)
    if group:
        yield group


class _Numbers:
    """Values numbered in the order in which they come."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}

    def __getitem__(self, value: Hashable) -> int:
        return self.of.setdefault(value, len(self.of))


def _numbered(groups: Mapping[_Row, Sequence[Sequence[_Keyed]]], unit: float) -> dict[str, Any]:
    """The tables and rows of `drawn_spans`."""
    ops, cells, messages, kinds = _Numbers(), _Numbers(), _Numbers(), _Numbers()

    def kind(group: Sequence[_Keyed]) -> tuple[int, ...]:
        spans = [one.span for one in group]
        first = spans[0]
        ranks = first.ranks if all(span.ranks == first.ranks for span in spans) else ()
        message = messages[first.axes, ranks] if first.ranks else -1
        op, cell = ops[_ops_text(spans)], cells[_cell_text(spans)]
        return op, cell, PASSES.index(group[0].pass_), message, sum(span.bytes for span in spans), len(group)

    rows = []
    for (rank, stream), row in groups.items():
        numbers: dict[str, list[int]] = {"gap": [], "length": [], "kind": [], "micro": []}
        now = 0
        for group in row:
            start, end = round(group[0].span.start_s / unit), round(group[-1].span.end_s / unit)
            numbers["gap"].append(start - now)
            numbers["length"].append(end - start)
            numbers["kind"].append(kinds[kind(group)])
            numbers["micro"].append(-1 if group[0].micro is None else group[0].micro)
            now = end
        rows.append({"rank": rank, "stream": stream, **numbers})
    return {
        "passes": PASSES,
        "ops": list(ops.of),
        "cells": list(cells.of),
        "messages": [[" x ".join(axes), list(ranks)] for axes, ranks in messages.of],
        "kinds": list(kinds.of),
        "rows": rows,
    }


def _ops_text(group: Sequence[Span]) -> str:
    """
    >>> _ops_text(spans)  # of a hundred operators
    '40 MatMul, 30 Mul, 20 Cast and others'
    """
    if len(group) == 1:
        return printable(group[0].op)
    counts = Counter(span.op for span in group).most_common()
    told = ", ".join(f"{count} {op}" if count > 1 else op for op, count in counts[:MOST_NAMES])
    return printable(told + (" and others" if len(counts) > MOST_NAMES else ""))


def _cell_text(group: Sequence[Span]) -> str:
    """The cell that holds them all; without the words of the pass, which stand beside it."""
    paths = [below_model(span.path).split(".") for span in group]
    common = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))]
    return printable(".".join(common).removeprefix("gradient of ").removeprefix("recomputed "))


def drawn_memory(curves: Sequence[MemoryCurve], timeline: Timeline) -> dict[str, Any]:
    """Memory curves as numbers.

    Returns:
        part: where a curve has more points than fit, the step is cut into so many equal parts, and each has its highest
        number; 0 where all points are there. ranks: of each `after`, time since the point before, `kib`, alive from
        then on, and the peak.
    """
    most = min(MOST_POINTS_OF_A_CURVE, MOST_POINTS // max(1, len(curves)))
    part = most if any(len(curve.points) > most for curve in curves) else 0
    length_s = timeline.step_time_s / part if part else 0.0
    return {"part": part, "ranks": [_curve(curve, unit_s(timeline), length_s) for curve in curves]}


def _curve(curve: MemoryCurve, unit: float, part_s: float) -> dict[str, Any]:
    points = highest(curve.points, part_s) if part_s else curve.points
    times = [round(time_s / unit) for time_s, _ in points]
    return {
        "rank": curve.rank,
        "after": [now - before for before, now in zip([0, *times], times, strict=False)],
        "kib": [round(bytes_ / 1024) for _, bytes_ in points],
        "peak_at": round(curve.peak_s / unit),
        "peak_kib": round(curve.peak_bytes / 1024),
    }


def highest(points: Sequence[tuple[float, int]], part_s: float) -> list[tuple[float, int]]:
    """Of each part of the time the highest number, what goes on from the part before among them.

    >>> highest([(0.0, 1), (0.2, 9), (0.4, 2), (2.5, 3)], part_s=1.0)
    [(0.0, 9), (1.0, 2), (2.0, 3)]
    """
    most: dict[int, int] = {}
    last = 0
    for place, (time_s, bytes_) in enumerate(points):
        number = int(time_s / part_s)
        if place and number > last:
            before = points[place - 1][1]
            most[last + 1] = before
            most[number] = max(most.get(number, 0), before)
        most[number] = max(most.get(number, 0), bytes_)
        last = number
    found: list[tuple[float, int]] = []
    for number, bytes_ in most.items():
        if not found or found[-1][1] != bytes_:
            found.append((number * part_s, bytes_))
    return found
