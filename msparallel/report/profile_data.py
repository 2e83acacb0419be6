"""What the report page of a profile shows, as one JSON document.

In: a Profile. Out: plain values with their texts: steps of all ranks as stacked bars, wires between ranks as a heat
map, operators, findings, the planner's estimate beside the measurement.

>>> document = profile_data(profile(Path("prof")), folder="prof")  # doctest: +SKIP
>>> document["findings"][0]["rule"]  # doctest: +SKIP
'slow_rank_computes'
"""

from __future__ import annotations

from typing import Any

from msparallel.cli.profile_json import longest_gaps
from msparallel.cli.profile_text import CORES, PARTS, printed_unit
from msparallel.errors import printable
from msparallel.profiling.compare import rows
from msparallel.profiling.finding import Finding, percent, time_text
from msparallel.profiling.link_rules import link_kinds
from msparallel.profiling.measured import Link
from msparallel.profiling.operator_rules import totals
from msparallel.profiling.profile import Profile
from msparallel.profiling.step_rules import axis_times
from msparallel.profiling.view import View

MOST_RANKS, MOST_OPERATORS, MOST_SIDE, MOST_LEFT_OUT = 1024, 60, 128, 200


def profile_data(found: Profile, *, folder: str) -> dict[str, Any]:
    """The document; every text in it is printable."""
    view = found.view
    measured = view.measured
    named = {rank for finding in found.findings for rank in finding.ranks}
    facts = {"files": f"{sum(measured.read.values()):,}", "ranks": f"{len(view.times)}",
             "step": "-" if view.step_us is None else time_text(view.step_us),
             "machine": view.hardware.name if view.hardware is not None else "not told"}  # fmt: skip
    recipe = view.plan.recipe if view.plan is not None else None
    return {
        "title": printable(folder),
        "overrides": printable(" ".join([recipe.path, *recipe.overrides])) if recipe is not None else "",
        "facts": [{"label": label, "value": printable(value)} for label, value in facts.items()],
        "notes": [printable(note) for note in view.notes],
        "parts": [name for _, name, _ in PARTS],
        "ranks": [{"rank": time.rank, "group": printable(time.group), "named": time.rank in named,
                   "step": {"us": time.step_us, "text": time_text(time.step_us)},
                   "parts": [_part(getattr(time, field)) for _, _, field in PARTS],
                   "hidden": time_text(time.overlapped_us)} for time in view.times[:MOST_RANKS]],
        "more_ranks": max(0, len(view.times) - MOST_RANKS),
        "findings": [_finding(finding) for finding in found.findings],
        "compared": [{"part": row.part, "estimated": _seconds(row.estimated_s), "measured": _seconds(row.measured_s)}
                     for row in rows(view)],
        "axes": [{"axis": axis, "takes": _part(elapsed), "waiting": percent(waited / elapsed)}
                 for axis, (elapsed, waited) in axis_times(view).items() if elapsed > 0],
        "wires": _wires(view),
        "operators": [{"type": printable(total.operator.type), "core": CORES[total.operator.core],
                       "count": total.operator.count, "a_step": _part(total.a_step_us), "share": total.share,
                       "share_text": percent(total.share),
                       "cube": None if total.operator.cube_share is None else total.operator.cube_share}
                      for total in totals(view)[:MOST_OPERATORS]],
        "gaps": [{"rank": gap.rank, "gap": _part(gap.gap_us), "before": printable(gap.before),
                  "after": printable(gap.after)} for gap in longest_gaps(view, 20)],
        "tests": [{"file": printable(test.file), "printed": printed_unit(test),
                   "rows": [{"bytes": row.bytes, "gb_s": row.gb_s, "result": row.result} for row in test.rows]}
                  for test in measured.hccl_tests],
        "left_out": [{"file": printable(name), "reason": printable(reason)}
                     for name, reason in measured.left_out[:MOST_LEFT_OUT]],
    }  # fmt: skip


def _part(us: float) -> dict[str, Any]:
    return {"us": us, "text": time_text(us)}


def _seconds(seconds: float | None) -> dict[str, Any] | None:
    return None if seconds is None else {"s": seconds, "text": time_text(seconds * 1e6)}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule, "severity": finding.severity, "gain": finding.gain,
        "gain_text": "" if finding.gain is None else f"at most {percent(finding.gain)} of a step",
        "text": printable(finding.root_cause), "remedy": printable(finding.remedy), "ranks": list(finding.ranks),
        "changes": printable(" ".join(finding.changes)),
        "planned": "" if finding.planned is None else f"{percent(finding.planned)} less by the planner's estimate",
        "evidence": [printable(f"{one.file}:{one.line}  {one.text}") for one in finding.evidence],
    }  # fmt: skip


def _wires(view: View) -> list[dict[str, Any]]:
    """A heat map for each kind of wire: ranks, and (source, target, GB/s, MB) of each link."""
    found = []
    for kind in link_kinds(view):
        links = [link for link in view.measured.links if link.transport == kind.transport]
        ranks = _side(links)
        inside = set(ranks)
        found.append({
            "transport": printable(kind.transport), "median": kind.median_gb_s, "expected": kind.expected_gb_s,
            "lowest": kind.lowest_gb_s, "highest": kind.highest_gb_s, "links": kind.count, "ranks": ranks,
            "cells": [[link.source, link.target, round(link.gb_s, 4), round(link.mb, 3)] for link in links
                      if link.source in inside and link.target in inside],
        })  # fmt: skip
    return found


def _side(links: list[Link]) -> list[int]:
    """Ranks on the sides of the map: all, or those of the slowest links."""
    every = sorted({link.source for link in links} | {link.target for link in links})
    if len(every) <= MOST_SIDE:
        return every
    chosen: dict[int, None] = {}
    for link in sorted(links, key=lambda link: link.gb_s):
        if len(chosen) >= MOST_SIDE - 1:
            break
        chosen |= {link.source: None, link.target: None}
    return sorted(chosen)
