"""A Profile as the terminal shows it: steps of ranks as bars, then what moves, what computes, what to do.

In: a Profile. Out: text without colours, readable at 100 columns.

>>> print(profile_text(profile(Path("prof")), folder="prof", width=100))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence

from msparallel.cli.columns import fit, table
from msparallel.cli.profile_json import longest_gaps
from msparallel.errors import printable
from msparallel.profiling.compare import rows
from msparallel.profiling.files import reasons_by_count
from msparallel.profiling.finding import Finding, percent, time_text
from msparallel.profiling.link_rules import link_kinds
from msparallel.profiling.measured import HcclTest
from msparallel.profiling.operator_rules import core_times, totals
from msparallel.profiling.profile import Profile
from msparallel.profiling.step_rules import axis_times
from msparallel.profiling.steps import RankTime
from msparallel.profiling.view import View

PARTS = (("#", "computes", "computing_us"), ("~", "waits for messages", "waits_us"), ("o", "bubble", "bubble_us"),
         (".", "free", "free_us"))  # fmt: skip
"""Sign in a bar, part, field of RankTime."""
MOST_RANKS, MOST_OPERATORS, MOST_GAPS, MOST_FINDINGS, MOST_LEFT_OUT = 16, 10, 4, 12, 5
LEAST_BAR = 10
_UNBROKEN = 10_000
"""Columns: a table whose lines are not wrapped."""
CORES = {"cube": "AI core", "vector": "AI vector", "cpu": "AI CPU", "communication": "communication", "other": "other"}


def profile_text(found: Profile, *, folder: str, width: int) -> str:
    """The whole answer."""
    view = found.view
    sections = [_head(view, folder), _steps(found, width), _compared(view, width), _axes(view, width),
                _links(view, width), _operators(view, width), _gaps(view, width), _memory(view, width),
                _tests(view, width), _findings(found, width), _left_out(view)]  # fmt: skip
    lines = [line for section in sections if section for line in (*section, "")][:-1]
    return "\n".join(part for line in lines for part in fit(printable(line), width))


def _head(view: View, folder: str) -> list[str]:
    measured = view.measured
    files = sum(measured.read.values())
    told = [f"{files:,} file{'s' * (files > 1)}, {measured.bytes_read / 2**20:,.1f} MiB"]
    if view.times:
        steps = sorted({time.steps for time in view.times})
        count = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        told.append(f"{len(view.times)} rank{'s' * (len(view.times) > 1)}, {count} step{'s' * (steps[-1] > 1)} each")
    lines = [f"{folder}: {'; '.join(told)}"]
    if view.plan is not None:
        recipe = view.plan.recipe
        # The path has a line of its own: behind it, what follows would break at another place for every folder.
        lines += [recipe.path, f"  {' '.join([*recipe.overrides, str(view.plan.mesh)])}"]
    return [*lines, *view.notes]


def _steps(found: Profile, width: int) -> list[str]:
    view = found.view
    if not view.times:
        return [] if view.step_us is None else [f"A step: {time_text(view.step_us)} (measured)"]
    shown = shown_ranks(found)
    longest = max(time.step_us for time in view.times)
    grouped = "group" if any(time.group != "all ranks" for time in shown) else ""
    heads = ("rank", grouped, "step", *(name.split(" ")[0] for _, name, _ in PARTS), "hidden")
    cells = [heads] + [(str(time.rank), "" if time.group == "all ranks" else time.group, time_text(time.step_us),
                        *(percent(time.share(getattr(time, field))) for _, _, field in PARTS),
                        percent(time.share(time.overlapped_us))) for time in shown]  # fmt: skip
    lines = table(cells, _UNBROKEN, right=(0, 2, 3, 4, 5, 6, 7))
    room = width - max(map(len, lines)) - 5
    slow = {one.rank for one in found.findings if one.rule.startswith("slow_rank")}
    marks = [" <" * (time.rank in slow) for time in shown]
    if room >= LEAST_BAR:
        bars = [_bar(time, min(44, room), longest) + mark for time, mark in zip(shown, marks, strict=True)]
        lines = _beside(lines, bars)
    else:
        lines += ["", *(f"  {time.rank:>4}  {_bar(time, width - 12, longest)}{mark}"
                        for time, mark in zip(shown, marks, strict=True))]  # fmt: skip
    more = len(view.times) - len(shown)
    if more:
        lines.append(f"  and {more} more; shown are those that findings name, and the ends of each part")
    mean = time_text(view.step_us or 0.0)
    legend = ", ".join(f"{sign} {name}" for sign, name, _ in PARTS)
    named = "; < the rank that the others wait for" * bool(slow)
    return [f"A step: {mean} (measured, mean of the ranks)", *lines,
            f"  {legend}; hidden: communication behind computation, not a part of its own{named}"]  # fmt: skip


def shown_ranks(found: Profile) -> list[RankTime]:
    """All, or where there are many: those that findings name, and the least and the most of each part."""
    times = found.view.times
    if len(times) <= MOST_RANKS:
        return list(times)
    wanted = list(dict.fromkeys(rank for one in found.findings for rank in (one.rank, *one.ranks) if rank is not None))
    for _, _, field in PARTS:
        order = sorted(times, key=lambda time, field=field: (getattr(time, field), time.rank))
        wanted += [order[0].rank, order[-1].rank, order[len(order) // 2].rank]
    chosen = set(list(dict.fromkeys(wanted))[:MOST_RANKS])
    return [time for time in times if time.rank in chosen]


def _beside(lines: list[str], bars: Sequence[str]) -> list[str]:
    """A head and rows, and behind each row its bar."""
    wide = max(map(len, lines))
    return [f"{line:<{wide}}  {bar}".rstrip() for line, bar in zip(lines, ["", *bars], strict=True)]


def _bar(time: RankTime, room: int, longest: float) -> str:
    text, total = "", 0.0
    for sign, _, field in PARTS:
        total += getattr(time, field)
        text += sign * (round(total / longest * room) - len(text))
    return text


def _compared(view: View, width: int) -> list[str]:
    found = rows(view)
    if not found or view.estimate is None:
        return []
    cells = [("part of a step", "estimated", "measured", "measured / estimated")]
    for row in found:
        both = row.estimated_s and row.measured_s is not None
        cells.append((row.part, "-" if row.estimated_s is None else time_text(row.estimated_s * 1e6),
                      "-" if row.measured_s is None else time_text(row.measured_s * 1e6),
                      f"{row.measured_s / row.estimated_s:.2f}" if both else "-"))  # type: ignore[operator]
    return [f"Estimate and measurement (the planner's numbers for {view.estimate.hardware.name}; means of ranks)",
            *table(cells, width, right=(1, 2, 3))]  # fmt: skip


def _axes(view: View, width: int) -> list[str]:
    found = axis_times(view)
    if not found:
        return []
    cells = [("axis", "takes a step", "of it waiting"), *((axis, time_text(elapsed), percent(waited / elapsed))
             for axis, (elapsed, waited) in found.items() if elapsed > 0)]  # fmt: skip
    return ["Collectives by axis (measured; behind computation or not)", *table(cells, width, right=(1, 2))]


def _links(view: View, width: int) -> list[str]:
    kinds = link_kinds(view)
    if not kinds:
        return []
    cells = [("wire", "links", "GB/s, median", "slowest", "fastest", "should reach")]
    cells += [(kind.transport, f"{kind.count:,}", f"{kind.median_gb_s:.3g}", f"{kind.lowest_gb_s:.3g}",
               f"{kind.highest_gb_s:.3g}", "-" if kind.expected_gb_s is None else f"{kind.expected_gb_s:.3g}")
              for kind in kinds]  # fmt: skip
    where = f"; should reach: {view.hardware.name}'s profile" if view.hardware is not None else ""
    return [f"Wires between two ranks (measured, messages from 1 MB{where})",
            *table(cells, width, right=(1, 2, 3, 4, 5))]  # fmt: skip


def _operators(view: View, width: int) -> list[str]:
    found = totals(view)
    if not found:
        return []
    cells = [("operator", "core", "launches", "a step", "share", "matrix unit")]
    shown = found[:MOST_OPERATORS]
    cells += [(cut(total.operator.type, 32), CORES[total.operator.core], f"{total.operator.count:,}",
               time_text(total.a_step_us), percent(total.share),
               "-" if total.operator.cube_share is None else percent(total.operator.cube_share))
              for total in shown]  # fmt: skip
    lines = table(cells, _UNBROKEN, right=(2, 3, 4, 5))
    room = min(24, width - max(map(len, lines)) - 2)
    if room >= LEAST_BAR and found[0].share > 0:
        lines = _beside(lines, ["#" * round(total.share / found[0].share * room) for total in shown])
    cores = core_times(view)
    told = ", ".join(f"{CORES[core]} {time_text(cores[core])}" for core in CORES if cores.get(core))
    more = len(found) - len(shown)
    return ["Operators (measured, mean of the ranks)", *lines, f"  {f'and {more} more; ' if more else ''}{told}"]


def _gaps(view: View, width: int) -> list[str]:
    gaps = longest_gaps(view, MOST_GAPS)
    if not gaps:
        return []
    cells = [("rank", "nothing ran for", "between", "and")]
    cells += [(str(gap.rank), time_text(gap.gap_us), cut(gap.before, 32), cut(gap.after, 32))
              for gap in gaps]  # fmt: skip
    return ["Longest gaps", *table(cells, width, right=(0, 1))]


def _memory(view: View, width: int) -> list[str]:
    peaks = sorted(view.measured.memory, key=lambda one: -one.reserved_mb)[:4]
    if not peaks:
        return []
    cells = [("rank", "pool", "held, GiB", "used, GiB", "largest at the peak")]
    cells += [(str(one.rank), one.component, f"{one.reserved_mb / 1024:.2f}", f"{one.allocated_mb / 1024:.2f}",
               ", ".join(f"{cut(name, 30)} {mb:,.0f} MiB" for mb, name in one.largest[:3]) or "-")
              for one in peaks]  # fmt: skip
    return ["Memory at its peak", *table(cells, width, right=(0, 2, 3))]


def _tests(view: View, width: int) -> list[str]:
    tests = view.measured.hccl_tests
    if not tests:
        return []
    cells = [("file", "sizes", "best GB/s", "at bytes", "printed is", "results")]
    for test in tests:
        top = max(test.rows, key=lambda row: row.gb_s)
        results = {row.result for row in test.rows}
        cells.append((cut(test.file, 34), str(len(test.rows)), f"{top.gb_s:.3g}", f"{top.bytes:,}",
                      printed_unit(test), "all right" if results == {"success"} else ", ".join(sorted(results))))
    return ["hccl_test (bandwidth recomputed: bytes / time, 1e9 bytes a second)",
            *table(cells, width, right=(1, 2, 3))]  # fmt: skip


def printed_unit(test: HcclTest) -> str:
    """What the printed bandwidth divides by, told from the rows."""
    ratios = [row.printed_gb_s / row.gb_s for row in test.rows if row.printed_gb_s and row.printed_gb_s > 0.1]
    ratios = ratios or [row.printed_gb_s / row.gb_s for row in test.rows if row.printed_gb_s]
    if not ratios:
        return "-"
    for name, ratio in (("of 1e9", 1.0), ("of 2^30", 1e9 / 2**30)):
        if all(abs(one - ratio) < 0.01 for one in ratios):
            return name
    return "of neither"


def _findings(found: Profile, width: int) -> list[str]:
    if not found.findings:
        return ["Nothing stands out: no rank, wire, operator or clock beyond the thresholds."]
    lines = ["What to change, in order of what it could gain at most (gains overlap, they do not add up)"]
    for place, finding in enumerate(found.findings[:MOST_FINDINGS], 1):
        lines += _finding(place, finding, width)
    more = len(found.findings) - MOST_FINDINGS
    return [*lines, f"  and {more} more in --json"] if more > 0 else lines


def _finding(place: int, finding: Finding, width: int) -> list[str]:
    gain = "" if finding.gain is None else f", at most {percent(finding.gain)} of a step"
    lines = [f"  {place}. {finding.rule}{gain}" + (" (error)" if finding.severity == "error" else "")
             + (" (information)" if finding.severity == "info" else "")]  # fmt: skip
    lines += _wrapped(finding.root_cause, width)
    lines += [cut(f"     {one.file}:{one.line}  {one.text}", width) for one in finding.evidence[:2]]
    lines += _wrapped(f"Do: {finding.remedy}", width)
    if finding.changes:
        planned = "" if finding.planned is None else f"  (the planner: {percent(finding.planned)} less, an estimate)"
        lines += _wrapped(f"Recipe: {' '.join(finding.changes)}{planned}", width)
    return lines


def cut(text: str, most: int) -> str:
    """A name or line of a file, on one line of no more than `most` characters.

    >>> cut("aclnnMatmul", 8)
    'aclnn...'
    """
    text = printable(text.replace("\t", " ").replace("\n", " "))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _wrapped(text: str, width: int) -> list[str]:
    return fit("     " + printable(text), width, 5)


def _left_out(view: View) -> list[str]:
    reasons: Sequence[tuple[str, int, str]] = reasons_by_count(list(view.measured.left_out))
    if not reasons:
        return []
    lines = [f"  {cut(name, 60)}{f' and {count - 1:,} more' if count > 1 else ''}: {reason}"
             for reason, count, name in reasons[:MOST_LEFT_OUT]]  # fmt: skip
    more = sum(count for _, count, _ in reasons[MOST_LEFT_OUT:])
    return ["Not read", *lines, *([f"  and {more:,} more in --json"] if more else [])]
