"""Steps: step_trace_time.csv of a rank, cluster_step_trace_time.csv of a cluster, step_trace_*.csv of msprof.

In: an open table. Out: `StepPart`s or `Iteration`s. Columns as msprof-analyze's cluster analysis, torch_npu's and
MindSpore's profilers (`mindspore/profiler/analysis/viewer/ascend_step_trace_time_viewer.py`) and msprof write them;
older files lack Device_id, Preparing or the sum without receives.

>>> parts, _ = step_parts(table, file, names)  # doctest: +SKIP
"""

from __future__ import annotations

import re

from msparallel.finding import Evidence
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.measured import Iteration, StepPart
from msparallel.profiling.rank_names import MOST_RANK, RankNames
from msparallel.profiling.table import BadCell, Refused, Table, number, positive, whole

MOST_ROWS = 100_000
"""Rows of one file; a profile has some ten steps of each rank."""
_NUMBERS = re.compile(r"\d{1,7}")
_GROUPS = ("PP Index", "pp_index")


def step_parts(table: Table, file: ProfileFile, names: RankNames) -> tuple[list[StepPart], list[tuple[int, ...]]]:
    """Rows of ranks, and the groups of ranks that rows of type `stage` name.

    Raises:
        Refused: where a column is missing, or ranks cannot be told apart.
    """
    computing, exposed = table.need("Computing"), table.need("Communication(Not Overlapped)")
    free = table.need("Free")
    optional = {name: table.find(name) for name in ("Overlapped", "Bubble", "Preparing", "Stage", "Communication")}
    kind, index, device, step = (table.find(name) for name in ("Type", "Index", "Device_id", "Step"))
    group = table.find(*_GROUPS)
    of_cluster = kind is not None and index is not None
    rank_at = index if of_cluster else device
    parts: list[StepPart] = []
    stages: list[tuple[int, ...]] = []
    for line, row in table.rows():
        try:
            if of_cluster and row[kind].strip() == "stage":  # type: ignore[index]
                stages.append(tuple(sorted({int(one) for one in _NUMBERS.findall(row[index])})))  # type: ignore[index]
                continue
            own = None if rank_at is None else whole(row[rank_at])
            if of_cluster and (own is None or own > MOST_RANK):
                raise BadCell("Index is no rank")
            values = {name: None if at is None else number(row[at]) for name, at in optional.items()}
            part = StepPart(
                rank=own if of_cluster else names.rank(file, own),  # type: ignore[arg-type]
                step="" if step is None else row[step].strip()[:40],
                computing_us=positive(row[computing]),
                exposed_us=positive(row[exposed]),
                overlapped_us=values["Overlapped"] or 0.0,
                free_us=positive(row[free]),
                bubble_us=max(values["Bubble"] or 0.0, 0.0),
                preparing_us=max(values["Preparing"] or 0.0, 0.0),
                stage_us=values["Stage"],
                communication_us=values["Communication"],
                group=row[group].strip()[:40] or None if group is not None else None,
                place=Evidence(file.name, line, ",".join(row)[:300]),
            )
            if part.step_us <= 0:
                raise BadCell("a step that takes no time")
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        parts.append(part)
        if len(parts) >= MOST_ROWS:
            raise Refused(f"has more than {MOST_ROWS:,} rows")
    return parts, stages


def iterations(table: Table, file: ProfileFile, names: RankNames) -> list[Iteration]:
    """Steps as msprof cuts them. Raises Refused as above."""
    step, took = table.need("Iteration ID"), table.need("Iteration Time(us)")
    device, data, passes = (table.find(name) for name in ("Device_id", "Data Aug Bound(us)", "FP to BP Time(us)"))
    found: list[Iteration] = []
    for line, row in table.rows():
        try:
            time_us = positive(row[took])
            if time_us <= 0:
                raise BadCell("an iteration that takes no time")
            rank = names.rank(file, whole(row[device]) if device is not None else None)
            wait = number(row[data]) if data is not None else None
            both = number(row[passes]) if passes is not None else None
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        found.append(Iteration(rank=rank, iteration=row[step].strip()[:40], time_us=time_us, data_us=wait,
                               forward_backward_us=both,
                               place=Evidence(file.name, line, ",".join(row)[:300])))  # fmt: skip
        if len(found) >= MOST_ROWS:
            raise Refused(f"has more than {MOST_ROWS:,} rows")
    return found
