"""Whether a node's devices and memory are free for a job.

In: a Plan; what npu-smi and the kernel tell of this machine. Out: a word or two on what is there, and why it will not
do.

>>> busy_devices(table, [0, 1])
['NPU 1: python3.11 (pid 4711, 28,170 MiB)']
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from msparallel.devices.npu_smi import DeviceTable
from msparallel.devices.query import NPU_SMI, find_tool, query_devices
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.errors import UserError, short
from msparallel.launch.devices import ascend_devices
from msparallel.plan import Plan

_BAD_HEALTH = ("ALARM", "CRITICAL")
"""`Warning` devices train; npu-smi calls these two faults."""


def devices_here(plan: Plan) -> tuple[str, str]:
    """(what is there, why it will not do)."""
    if plan.hardware.target == "CPU":
        return f"{len(os.sched_getaffinity(0))} cores", ""
    if find_tool(NPU_SMI) is None:  # as in a container that got the devices and not the tool
        there = ascend_devices()
        if there >= plan.devices_per_node:
            return f"{there}, no npu-smi", ""
    try:
        table = query_devices()
    except DeviceUnavailable as error:
        return "none", str(error)
    except UserError as error:
        return "unknown", f"npu-smi was not understood: {error}"
    return told_of(table, plan.devices_per_node, os.environ.get("ASCEND_RT_VISIBLE_DEVICES"))


def told_of(table: DeviceTable, needed: int, visible: str | None = None) -> tuple[str, str]:
    """Of a table of npu-smi: (what is there, why it will not do).

    Args:
        visible: ASCEND_RT_VISIBLE_DEVICES, which of the devices a process sees, in its order; None is all.
    """
    places = list(range(len(table.devices)))
    if visible is not None:
        if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", visible):
            return (
                f"{len(places)}",
                f"ASCEND_RT_VISIBLE_DEVICES is {short(visible, 40)!r}; it is a list such as 0,1,2,3",
            )
        places = [place for place in map(int, visible.split(",")) if place < len(table.devices)]
    there = f"{len(places)} x {short(table.devices[0].name, 20)}"
    if len(places) < needed:
        return there, f"{needed} devices are needed and {len(places)} can be seen"
    used = places[:needed]  # msrun's local worker i takes the i-th that it sees
    problems = [
        f"{table.devices[place].label} is {table.devices[place].health}"
        for place in used
        if table.devices[place].health.upper() in _BAD_HEALTH
    ]
    problems += [f"{one} holds it" for one in busy_devices(table, used)]
    if not table.has_process_table:
        there += ", processes not told"
    return there, "; ".join(problems)


def busy_devices(table: DeviceTable, places: Sequence[int]) -> list[str]:
    """Processes on devices, given by their place in the table."""
    return [
        f"{table.devices[place].label}: {short(process.name, 40) or 'a process'} (pid {process.pid}"
        + (f", {process.memory_mib:,} MiB)" if process.memory_mib is not None else ")")
        for place in places
        for process in table.processes_of(table.devices[place])
    ]


def memory_available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What processes can still have: MemAvailable, or less where a container's limit (cgroup v2) is closer."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d{1,15}) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    available = int(found[1]) * 1024
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    if limit.isdigit() and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available
