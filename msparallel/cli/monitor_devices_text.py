"""The devices of a Snapshot as tables and in a line."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from msparallel.cli.columns import fit
from msparallel.devices.npu_smi import Device, DeviceTable
from msparallel.errors import printable, short
from msparallel.monitor.machines import Machine
from msparallel.monitor.marks import memory_fraction
from msparallel.monitor.snapshot import Snapshot
from msparallel.monitor.words import bar

_COLUMNS = ("  NPU", "chip", "health", "temp", "W", "core", "memory", "GiB", "processes")
_RIGHT = ("temp", "W", "core", "GiB")


def device_table(snapshot: Snapshot, width: int, rows: int) -> Iterator[RenderableType]:
    """A table for each host, or its error; at most `rows` devices, those with marks first where there are more."""
    marked = {(mark.host, mark.npu_id, mark.chip_id) for mark in snapshot.marks}
    several = len(snapshot.machines) > 1
    each = max(1, rows // max(1, len(snapshot.machines)) - several)
    for machine in snapshot.machines:
        yield _title(machine, several)
        if machine.table is None:
            for line in machine.error.splitlines():
                for part in fit(f"  {short(line.strip(), 300)}", width, 2):
                    yield Text(part, style="yellow")
            continue
        devices = list(machine.table.devices)
        if len(devices) > each:
            devices.sort(key=lambda d: (machine.host, d.npu_id, d.chip_id) not in marked)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True)
        for title in _COLUMNS:
            table.add_column(title, justify="right" if title in _RIGHT else "left", no_wrap=True, overflow="ellipsis",
                             max_width=max(8, width - 64) if title == "processes" else None)  # fmt: skip
        for device in devices[:each]:
            wrong = (machine.host, device.npu_id, device.chip_id) in marked
            cells = _cells(device, machine.table, snapshot.rank_of, width, wrong)
            table.add_row(*cells, style="yellow" if wrong else None)
        yield table
        if len(devices) > each:
            yield Text(f"  and {len(devices) - each:,} more devices, {summary(machine.table)}")


def device_lines(snapshot: Snapshot) -> list[str]:
    """Part of `line_of`: one for each host."""
    lines = []
    for machine in snapshot.machines:
        if machine.table is None:
            lines.append(f"{machine.host}: {short(_first_clause(machine.error), 100)}")
        else:
            name = f"{machine.host}: " if len(snapshot.machines) > 1 else ""
            count = len(machine.table.devices)
            lines.append(f"{name}{count} device{'s' * (count > 1)}, {summary(machine.table)}")
    return lines


def _first_clause(error: str) -> str:
    return re.split(r": |\. ", " ".join(error.split()), maxsplit=1)[0].rstrip(".")


def summary(table: DeviceTable) -> str:
    """Load, heat and memory of all devices of a host."""
    loads = [device.aicore_percent for device in table.devices if device.aicore_percent is not None]
    heats = [device.temperature_c for device in table.devices if device.temperature_c is not None]
    fills = [fraction for device in table.devices if (fraction := memory_fraction(device)) is not None]
    words = [f"AI core {statistics.mean(loads):.0f} %"] if loads else []
    words += [f"{min(heats):g}-{max(heats):g} C"] if heats else []
    words += [f"memory {max(fills):.0%} at most"] if fills else []
    return ", ".join(words)


def _title(machine: Machine, several: bool) -> Text:
    driver = f", driver {printable(machine.table.version)}" if machine.table and machine.table.version else ""
    when = ""
    if machine.source != "npu-smi info":
        when = f", {datetime.fromtimestamp(machine.time_s):%Y-%m-%d %H:%M:%S}" if machine.time_s is not None else ""
        when += f"  {printable(Path(machine.source).name)}"
    return Text.assemble((printable(machine.host), "bold"), driver, when, no_wrap=True, overflow="ellipsis")


def _cells(device: Device, table: DeviceTable, rank_of: dict[int, int], width: int, wrong: bool) -> tuple[str, ...]:
    place = f"{device.npu_id}.{device.chip_id}" if " chip " in device.label else f"{device.npu_id}"
    fraction = memory_fraction(device)
    memory = ""
    if fraction is not None:
        memory = f"{(device.memory_used_mib or 0) / 1024:.1f}/{(device.memory_total_mib or 0) / 1024:.0f}"
    return (
        f"{'! ' if wrong else '  '}{place}",
        short(printable(device.name), 12),
        short(printable(device.health), 10),
        _number(device.temperature_c),
        _number(device.power_w),
        "-" if device.aicore_percent is None else f"{device.aicore_percent:.0f} %",
        bar(fraction, 10 if width >= 100 else 5) if fraction is not None else "-",
        memory,
        _processes(device, table, rank_of, width),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _processes(device: Device, table: DeviceTable, rank_of: dict[int, int], width: int) -> str:
    found = table.processes_of(device)
    if not found:
        return "-" if table.has_process_table else ""
    words = []
    for process in found:
        rank = rank_of.get(process.pid)
        name = f"{short(printable(process.name), 16)} " if width >= 100 and process.name else ""
        words.append(f"rank {rank}" if rank is not None else f"{name}{process.pid}")
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")
