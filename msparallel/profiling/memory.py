"""The peak of a memory pool: memory_record.csv (the pool over time), operator_memory.csv (each allocation).

In: an open table; for what was alive at the peak, operator_memory.csv a second time. Out: `Memory`. Columns as
torch_npu, MindSpore (`ascend_memory_viewer.py`) and msprof write them; sizes in MB are 2**20 bytes there.

>>> record_peaks(table, file, names)  # doctest: +SKIP
"""

from __future__ import annotations

import heapq

from msparallel.finding import Evidence
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.measured import Memory
from msparallel.profiling.rank_names import RankNames
from msparallel.profiling.table import BadCell, Table, number, whole

MOST_SHOWN = 10
_DEVICE = ("Device_id", "Device id")


def record_peaks(table: Table, file: ProfileFile, names: RankNames) -> list[Memory]:
    """The highest row of each rank and component. Raises Refused where a column is missing."""
    allocated_at = table.need("Total Allocated(MB)", "Total Allocated(KB)")
    reserved_at = table.find("Total Reserved(MB)", "Total Reserved(KB)")
    unit = 1.0 if "Total Allocated(MB)" in table.columns else 1 / 1024
    component_at, time_at = table.need("Component"), table.need("Timestamp(us)")
    device_at, type_at = table.find(*_DEVICE), table.find("Device Type", "Device")
    best: dict[tuple[int, str], tuple[float, float, float, int, str]] = {}
    for line, row in table.rows():
        try:
            used = (number(row[allocated_at]) or 0.0) * unit
            held = (number(row[reserved_at]) or 0.0) * unit if reserved_at is not None else 0.0
            at_us = number(row[time_at]) or 0.0
            device = whole(row[device_at]) if device_at is not None else _device(row[type_at]) if type_at else None
            rank = names.rank(file, device)
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        key = rank, row[component_at].strip()[:40]
        if max(used, held) > max(best.get(key, (0.0, 0.0))[:2]) and (key in best or len(best) < 10_000):
            best[key] = used, held, at_us, line, ",".join(row)[:300]
    return [Memory(rank=rank, component=component, allocated_mb=used, reserved_mb=max(held, used), at_us=at_us,
                   largest=(), place=Evidence(file.name, line, text))
            for (rank, component), (used, held, at_us, line, text) in sorted(best.items())]  # fmt: skip


def operator_peaks(table: Table, file: ProfileFile, names: RankNames) -> list[Memory]:
    """The highest total that stands beside an allocation of each rank. Raises Refused where a column is missing."""
    time_at = table.need("Allocation Time(us)")
    total_at = table.find("Allocation Total Allocated(MB)", "Allocation Total Allocated(KB)")
    held_at = table.find("Allocation Total Reserved(MB)", "Allocation Total Reserved(KB)")
    if total_at is None:
        return []
    unit = 1.0 if "Allocation Total Allocated(MB)" in table.columns else 1 / 1024
    device_at, type_at = table.find(*_DEVICE), table.find("Device Type", "Device")
    best: dict[int, tuple[float, float, float, int, str]] = {}
    for line, row in table.rows():
        try:
            total = (number(row[total_at]) or 0.0) * unit
            held = (number(row[held_at]) or 0.0) * unit if held_at is not None else 0.0
            at_us = number(row[time_at])
            device = whole(row[device_at]) if device_at is not None else _device(row[type_at]) if type_at else None
            rank = names.rank(file, device)
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        if at_us is not None and total > best.get(rank, (0.0,))[0]:
            best[rank] = total, held, at_us, line, ",".join(row)[:300]
    return [Memory(rank=rank, component="operators", allocated_mb=total, reserved_mb=max(held, total), at_us=at_us,
                   largest=(), place=Evidence(file.name, line, text))
            for rank, (total, held, at_us, line, text) in sorted(best.items())]  # fmt: skip


def alive_at(table: Table, file: ProfileFile, names: RankNames,
             moments: dict[int, float]) -> dict[int, tuple[tuple[float, str], ...]]:  # fmt: skip
    """The largest allocations that were held at a moment of each rank, (MB, operator).

    Args:
        moments: rank -> microseconds, as `operator_peaks` found them.
    """
    name_at, size_at, time_at = table.need("Name"), table.need("Size(KB)"), table.need("Allocation Time(us)")
    end_at, took_at = table.find("Release Time(us)"), table.find("Duration(us)")
    device_at, type_at = table.find(*_DEVICE), table.find("Device Type", "Device")
    heaps: dict[int, list[tuple[float, int, str]]] = {}
    for line, row in table.rows():
        try:
            size, start = number(row[size_at]) or 0.0, number(row[time_at])
            end = number(row[end_at]) if end_at is not None else None
            took = number(row[took_at]) if took_at is not None else None
            device = whole(row[device_at]) if device_at is not None else _device(row[type_at]) if type_at else None
            rank = names.rank(file, device)
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        at_us = moments.get(rank)
        if at_us is None or start is None or size <= 0 or start > at_us:
            continue
        end = end if end is not None else start + took if took is not None else None
        if end is not None and end <= at_us:
            continue
        heap = heaps.setdefault(rank, [])
        entry = (size / 1024, -line, row[name_at].strip()[:200])
        if len(heap) < MOST_SHOWN:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
    return {rank: tuple((mb, name) for mb, _, name in sorted(heap, reverse=True)) for rank, heap in heaps.items()}


def _device(cell: str) -> int | None:
    """The number in `NPU:3`."""
    kind, _, place = cell.strip().partition(":")
    return int(place) if kind == "NPU" and place.isdecimal() and len(place) < 7 else None
