"""A folder -> everything that it says about speed, as one value.

In: a path. Out: `Measured`. Every file is read once, front to back (operator_memory.csv twice: the peak is known only
at its end). Where two files of a rank say the same, the more exact one is read and the other one is named as left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msparallel.profiling.communication import Communication
from msparallel.profiling.data_pipeline import pipeline_raw, pipeline_summary
from msparallel.profiling.files import ProfileFile, profile_files
from msparallel.profiling.hccl_test import LARGEST_BYTES, read_hccl_test
from msparallel.profiling.kernels import kernels, op_statistic
from msparallel.profiling.link_counters import Capture, counter_series, differences, read_captures
from msparallel.profiling.matrix import Matrix
from msparallel.profiling.measured import Measured, Memory, RankOperators, StepPart
from msparallel.profiling.memory import alive_at, operator_peaks, record_peaks
from msparallel.profiling.power import power_samples
from msparallel.profiling.rank_names import RankNames
from msparallel.profiling.step_trace import iterations, step_parts
from msparallel.profiling.table import Refused, Table, Told, open_table

MOST_STEPS = 300_000
"""Of all ranks together."""
_SAME: tuple[tuple[str, str], ...] = (("kernel_details", "op_summary"), ("op_summary", "task_time"))
"""Of a rank's operators the first is read and the second is not."""


@dataclass
class _Reading:
    """What has been read so far."""

    told: Told
    names: RankNames = field(default_factory=RankNames)
    communication: Communication = field(default_factory=Communication)
    matrix: Matrix = field(default_factory=Matrix)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    captures: list[Capture] = field(default_factory=list)
    stages: list[tuple[int, ...]] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, values: list[Any]) -> None:
        self.lists.setdefault(name, []).extend(values)

    def get(self, name: str) -> list[Any]:
        return self.lists.get(name, [])


def files_to_read(root: Path) -> tuple[list[ProfileFile], list[tuple[str, str]]]:
    """Files of a folder without those that repeat others. Raises UserError where there is no such folder."""
    files, left_out = profile_files(root)
    kept: list[ProfileFile] = []
    rivals: dict[tuple[str, object], list[ProfileFile]] = {}
    for file in files:
        rivals.setdefault(_rivals(file), []).append(file)
    for file in files:
        better = next((other for other in rivals[_rivals(file)] if _repeats(file, other)), None)
        if better is None:
            kept.append(file)
        else:
            left_out.append((file.name, f"repeats {better.name}"))
    return kept, left_out


def _rivals(file: ProfileFile) -> tuple[str, object]:
    """Files with the same are compared: a cluster's with those of ranks, tables of a rank with each other."""
    if file.kind in ("matrix", "step_trace", "communication"):
        return file.kind, None
    return file.kind, file.place if file.rank is None else file.rank


def _repeats(file: ProfileFile, other: ProfileFile) -> bool:
    """Whether the other file says the same, and more or more exactly."""
    name, better = file.path.name, other.path.name
    if file.kind == "matrix":  # the cluster's has ranks, those of ranks have places in groups
        return better.startswith("cluster_") and not name.startswith("cluster_")
    if file.kind in ("step_trace", "communication"):
        return name.startswith("cluster_") and not better.startswith("cluster_")
    if file.kind == "op_statistic":
        return name != "op_statistic.csv" and better == "op_statistic.csv"
    return any(better.startswith(first) and name.startswith(second) for first, second in
               (*_SAME, ("kernel_details", "task_time")))  # fmt: skip


def read_folder(root: Path, told: Callable[[int], object] = lambda count: None) -> Measured:
    """Read everything; `told` hears bytes as they are read.

    Raises:
        UserError: where there is no such folder.
    """
    files, left_out = files_to_read(root)
    now = _Reading(told=told, left_out=list(left_out))
    for file in files:
        try:
            _read(now, file)
        except Refused as refused:
            now.left_out.append((file.name, str(refused)))
        else:
            now.read[file.kind] = now.read.get(file.kind, 0) + 1
    return _measured(now, sum(file.bytes for file in files))


def _read(now: _Reading, file: ProfileFile) -> None:
    if file.kind == "communication":
        now.communication.read(file, now.names, now.told)
    elif file.kind == "matrix":
        now.matrix.read(file, now.names, now.told)
    elif file.kind == "pipeline_summary":
        now.add("pipelines", pipeline_summary(file, now.names))
    elif file.kind == "hccl_test":
        now.add("hccl_tests", read_hccl_test(_text(file), file.name))
    elif file.kind == "counters":
        now.captures += read_captures(file)
    else:
        with open_table(file.path, now.told) as table:
            found = _table(now, file, table)
            if not found and not table.read:
                raise Refused(f"has no row below its header{_bad(table)}")
            if not found:
                raise Refused(f"has no row that can be used{_bad(table)}")
            if table.bad:
                now.notes.append(f"{file.name}: {table.bad:,} of {table.read:,} rows left out; {table.first_bad}")


def _bad(table: Table) -> str:
    return f"; {table.first_bad}" if table.first_bad else ""


def _text(file: ProfileFile) -> str:
    if file.bytes > LARGEST_BYTES:
        raise Refused(f"is larger than {LARGEST_BYTES >> 20} MiB; such an output has a few lines")
    try:
        return file.path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from None


def _table(now: _Reading, file: ProfileFile, table: Table) -> bool:
    """Read a table into its list; False where no row was of use."""
    names = now.names
    if file.kind == "step_trace":
        if len(now.get("steps")) >= MOST_STEPS:
            raise Refused(f"comes after {MOST_STEPS:,} steps; profile fewer")
        parts, stages = step_parts(table, file, names)
        now.add("steps", parts)
        now.stages += stages
        return bool(parts)
    if file.kind == "operator_memory":
        peaks = operator_peaks(table, file, names)
        moments = {peak.rank: peak.at_us for peak in peaks}
        if moments:
            with open_table(file.path) as again:
                alive = alive_at(again, file, names, moments)
            peaks = [replace(peak, largest=alive.get(peak.rank, ())) for peak in peaks]
        now.add("memory", peaks)
        return bool(peaks)
    makers: dict[str, tuple[str, Callable[[], list[Any]]]] = {
        "iterations": ("iterations", lambda: iterations(table, file, names)),
        "kernels": ("operators", lambda: kernels(table, file, names)),
        "op_statistic": ("statistics", lambda: op_statistic(table, file, names)),
        "memory_record": ("memory", lambda: record_peaks(table, file, names)),
        "power": ("power", lambda: power_samples(table, file)),
        "pipeline_raw": ("pipelines", lambda: pipeline_raw(table, file, names)),
        "counter_series": ("counters", lambda: counter_series(table, file)),
    }
    name, make = makers[file.kind]
    values = make()
    now.add(name, values)
    return bool(values)


def _measured(now: _Reading, count: int) -> Measured:
    steps = _steps(now)
    operators = _operators(now)
    links, lost = now.matrix.links()
    if lost:
        now.notes.append(f"{lost:,} links of communication groups are left out: which ranks they join is told only in "
                         "the files of those ranks")  # fmt: skip
    made, notes = differences(now.captures)
    if now.names.guessed:
        now.notes.append("No folder or file name tells the rank of some files; Device_id, or 0, is taken for it.")
    if not now.communication.compared_all:
        now.notes.append("There are too many collectives to compare all; the first two million count.")
    return Measured(
        steps=steps,
        iterations=tuple(now.get("iterations")),
        operators=operators,
        waiting=now.communication.waiting(),
        communication_steps=len(now.communication.steps),
        links=links,
        link_steps=len(now.matrix.steps),
        memory=_highest(now.get("memory")),
        power=tuple(now.get("power")),
        pipelines=tuple(now.get("pipelines")),
        hccl_tests=tuple(now.get("hccl_tests")),
        counters=tuple(made + now.get("counters")),
        read=now.read,
        bytes_read=count,
        left_out=tuple(now.left_out),
        notes=tuple(now.notes + notes),
    )


def _steps(now: _Reading) -> tuple[StepPart, ...]:
    """Every step of a rank once, with its stage where rows of type `stage` name it."""
    stage_of = {rank: f"stage {place}" for place, ranks in enumerate(dict.fromkeys(now.stages)) for rank in ranks}
    several = len(set(now.stages)) > 1
    found: dict[tuple[int, str], StepPart] = {}
    twice = 0
    for part in now.get("steps"):
        if several and part.group is None:
            part = replace(part, group=stage_of.get(part.rank))
        twice += (part.rank, part.step) in found
        found.setdefault((part.rank, part.step), part)
    if twice:
        now.notes.append(f"{twice:,} steps stand twice, as if two profiles were in one folder; the first ones count.")
    return tuple(sorted(found.values(), key=lambda part: (part.rank, _as_number(part.step))))


def _as_number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() and len(text) < 15 else (-1, text)


def _operators(now: _Reading) -> tuple[RankOperators, ...]:
    """Of each rank: its kernels, slices of one table joined; statistics where there are no kernels."""
    found: dict[int, RankOperators] = {}
    for one in now.get("operators"):
        before = found.get(one.rank)
        if before is not None:
            now.notes.append(f"{one.file} is added to {before.file}: both have operators of rank {one.rank}.")
        found[one.rank] = one if before is None else _joined(before, one)
    for one in now.get("statistics"):
        found.setdefault(one.rank, one)
    return tuple(found[rank] for rank in sorted(found))


def _joined(one: RankOperators, other: RankOperators) -> RankOperators:
    merged = {(operator.type, operator.core): operator for operator in one.operators}
    for operator in other.operators:
        key = operator.type, operator.core
        before = merged.get(key)
        if before is None:
            merged[key] = operator
            continue
        longer = max(before, operator, key=lambda each: each.longest_us)
        total = before.total_us + operator.total_us
        shares = [(each.cube_share, each.total_us) for each in (before, operator) if each.cube_share is not None]
        weight = sum(took for _, took in shares)
        share = sum(each * took for each, took in shares) / weight if weight else None
        merged[key] = replace(longer, count=before.count + operator.count, total_us=total, cube_share=share)
    gaps = sorted((*one.gaps, *other.gaps), key=lambda gap: -gap.gap_us)[:20]
    return RankOperators(rank=one.rank, operators=tuple(sorted(merged.values(), key=lambda each: -each.total_us)),
                         gaps=tuple(gaps), steps=max(one.steps, other.steps), span_us=one.span_us + other.span_us,
                         gaps_us=one.gaps_us + other.gaps_us, file=one.file)  # fmt: skip


def _highest(peaks: list[Memory]) -> tuple[Memory, ...]:
    """One peak a rank and component; what was alive comes along from operator_memory."""
    best: dict[tuple[int, str], Memory] = {}
    for peak in peaks:
        key = peak.rank, peak.component
        if key not in best or peak.reserved_mb > best[key].reserved_mb:
            best[key] = peak
    return tuple(best[key] for key in sorted(best))
