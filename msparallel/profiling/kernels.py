"""Operators that ran on a device: kernel_details.csv, op_summary_*.csv, task_time_*.csv, op_statistic_*.csv.

In: an open table of any length. Out: `RankOperators`: totals by type and kind of core, gaps. Columns depend on the
profiler's level, on the metrics that were asked for and on CANN's version ("Block Dim" became "Block Num"), so each is
found by its name; names as torch_npu, MindSpore (`ascend_kernel_details_viewer.py`) and msprof write them.

A time stamp of 1.7e15 us has steps of 0.25 us in a float; gaps are told from 100 us on.
"""

from __future__ import annotations

import re

from msparallel.finding import Evidence
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.gaps import Gaps
from msparallel.profiling.measured import Gap, Operator, RankOperators
from msparallel.profiling.rank_names import RankNames
from msparallel.profiling.table import BadCell, Table, number, positive, whole

MOST_TYPES = 5000
"""Different operators of a rank; a model has some hundred."""
MOST_STEPS = 100_000
OTHER = "(other operators)"
_CORES = {
    **dict.fromkeys(("AI_CORE", "MIX_AIC", "KERNEL_AICORE", "KERNEL_MIX_AIC", "AICORE"), "cube"),
    **dict.fromkeys(("AI_VECTOR_CORE", "MIX_AIV", "KERNEL_AIVEC", "KERNEL_MIX_AIV", "AIV_SQE"), "vector"),
    **dict.fromkeys(("AI_CPU", "AICPU", "KERNEL_AICPU"), "cpu"),
    **dict.fromkeys(("HCCL", "COMMUNICATION", "HCCL_AI_CPU"), "communication"),
}
_COMMUNICATION = re.compile(r"^(?:hcom_|Hccl|aclnnHcom)", re.I)
_NUMBERED = re.compile(r"[_\d]+$")
_WAITING = ("EVENT_WAIT", "NOTIFY_WAIT", "EVENT_RECORD", "NOTIFY_RECORD", "EVENT_RESET", "PLACE_HOLDER_SQE",
            "EVENT_WAIT_SQE", "NOTIFY_WAIT_SQE", "EVENT_RECORD_SQE", "NOTIFY_RECORD_SQE")  # fmt: skip
"""Tasks of task_time that wait for others: time in them is not work."""


class _Totals:
    """Sums of one rank, as rows come by."""

    def __init__(self) -> None:
        self.by_type: dict[tuple[str, str], list[float]] = {}
        self.longest: dict[tuple[str, str], tuple[float, int, str, int | None]] = {}
        self.gaps = Gaps()
        self.steps: set[str] = set()


def kernels(table: Table, file: ProfileFile, names: RankNames) -> list[RankOperators]:
    """Totals of every rank in the table.

    Raises:
        Refused: where a column is missing, or the rest cannot be read.
    """
    name_at = table.need("Name", "Op Name", "kernel_name")
    took_at = table.need("Duration(us)", "Task Duration(us)", "task_time(us)")
    type_at, core_at = table.find("Type", "OP Type"), table.find("Accelerator Core", "Task Type", "kernel_type")
    start_at = table.find("Start Time(us)", "Task Start Time(us)", "task_start(us)")
    device_at, step_at = table.find("Device_id"), table.find("Step Id")
    cube_at, blocks_at = table.find("cube_utilization(%)"), table.find("Block Dim", "Block Num")
    mac_at = table.find("aic_mac_ratio") if cube_at is None else None
    found: dict[int, _Totals] = {}
    cells: dict[str, int | None] = {}  # the same few devices and numbers of cores in every row
    for line, row in table.rows():
        try:
            took = positive(row[took_at])
            device = _cell(cells, row[device_at]) if device_at is not None else None
            start = number(row[start_at]) if start_at is not None else None
            share = None
            if cube_at is not None:
                share = number(row[cube_at])
                share = None if share is None else share / 100
            elif mac_at is not None:
                share = number(row[mac_at])
            blocks = _cell(cells, row[blocks_at]) if blocks_at is not None else None
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        name = row[name_at].strip()
        core = row[core_at].strip() if core_at is not None else ""
        if core in _WAITING:
            continue
        kind = _CORES.get(core, "other")
        kind_of_op = row[type_at].strip() if type_at is not None else ""
        if kind_of_op in ("", "N/A"):
            kind_of_op = _NUMBERED.sub("", name) or name
        if kind == "other" and _COMMUNICATION.match(name):
            kind = "communication"
        rank = names.rank(file, device)
        totals = found.get(rank)
        if totals is None:
            totals = found[rank] = _Totals()
        _count(totals, (kind_of_op[:200], kind), took, share, line, name, blocks)
        if start is not None:
            totals.gaps.add(start, start + took, name, line)
        if step_at is not None and len(totals.steps) < MOST_STEPS:
            totals.steps.add(row[step_at].strip())
    return [_rank(rank, totals, file.name) for rank, totals in sorted(found.items())]


def _cell(known: dict[str, int | None], cell: str) -> int | None:
    """`whole`, remembered. Raises BadCell."""
    if cell in known:
        return known[cell]
    value = whole(cell)
    if len(known) < MOST_TYPES:
        known[cell] = value
    return value


def _count(totals: _Totals, key: tuple[str, str], took: float, share: float | None, line: int, name: str,
           blocks: int | None) -> None:  # fmt: skip
    sums = totals.by_type.get(key)
    if sums is None:
        if len(totals.by_type) >= MOST_TYPES:
            key = (OTHER, key[1])
        sums = totals.by_type.setdefault(key, [0, 0.0, 0.0, 0.0])
    sums[0] += 1
    sums[1] += took
    if share is not None and 0 < share <= 1.05 and key[1] == "cube":
        sums[2] += took * share
        sums[3] += took
    best = totals.longest.get(key)
    if best is None or took > best[0]:
        totals.longest[key] = (took, line, name[:200], blocks)


def _rank(rank: int, totals: _Totals, file: str) -> RankOperators:
    operators = []
    for key, (count, total, weighted, weight) in totals.by_type.items():
        took, line, name, blocks = totals.longest[key]
        cores = f" on {blocks} core{'s' * (blocks > 1)}" if blocks else ""
        operators.append(Operator(
            type=key[0], core=key[1], count=int(count), total_us=total, longest_us=took,
            longest=Evidence(file, line, f"{name}: {took:g} us{cores}"),
            cube_share=min(1.0, weighted / weight) if weight else None, blocks=blocks,
        ))  # fmt: skip
    gaps = totals.gaps
    spans = [Gap(rank=rank, gap_us=span.end - span.start, start_us=span.start - (gaps.first or 0.0),
                 before=span.before[:200], after=span.after[:200],
                 place=Evidence(file, span.line,
                                f"{span.end - span.start:,.0f} us of nothing before {span.after[:100]}"))
             for span in gaps.longest()]  # fmt: skip
    operators.sort(key=lambda one: (-one.total_us, one.type))
    steps = len(totals.steps - {"", "N/A"})
    span_us = gaps.end - gaps.first if gaps.first is not None else 0.0
    return RankOperators(rank=rank, operators=tuple(operators), gaps=tuple(spans), steps=steps, span_us=span_us,
                         gaps_us=gaps.total, file=file)  # fmt: skip


def op_statistic(table: Table, file: ProfileFile, names: RankNames) -> list[RankOperators]:
    """The same from a table of totals; no gaps. Raises Refused as above."""
    type_at, core_at = table.need("OP Type"), table.need("Core Type")
    count_at, total_at = table.need("Count"), table.need("Total Time(us)")
    longest_at, device_at = table.find("Max Time(us)"), table.find("Device_id")
    found: dict[int, list[Operator]] = {}
    for line, row in table.rows():
        try:
            count, total = whole(row[count_at]) or 0, positive(row[total_at])
            longest = number(row[longest_at]) if longest_at is not None else None
            rank = names.rank(file, whole(row[device_at]) if device_at is not None else None)
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        kind = row[type_at].strip()[:200]
        own = found.setdefault(rank, [])
        if len(own) >= MOST_TYPES:
            table.spoil(line, f"more than {MOST_TYPES:,} types")
            continue
        core = _CORES.get(row[core_at].strip(), "other")
        own.append(Operator(type=kind, core=core, count=count, total_us=total, longest_us=longest or 0.0,
                            longest=Evidence(file.name, line, ",".join(row)[:300])))  # fmt: skip
    return [RankOperators(rank=rank, operators=tuple(sorted(own, key=lambda one: (-one.total_us, one.type))), gaps=(),
                          steps=0, span_us=0.0, gaps_us=0.0, file=file.name)
            for rank, own in sorted(found.items())]  # fmt: skip
