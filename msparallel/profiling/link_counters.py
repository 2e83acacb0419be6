"""Counters of network ports: `hccn_tool -i N -stat -g` as text, or a CSV of such counters over time.

In: files. Out: `Counters`: differences between two captures of a device. Counters run from the driver's start, so one
capture alone says what happened in weeks; two around a run say what the run did. Which of two came first is told by the
counters themselves, as they never fall; where none of two orders fits, the device was reset in between, and nothing is
subtracted. Names as hccn_tool prints them and MindCluster's exporter lists them (Ascend/mind-cluster).

>>> captures_of("packet statistics:\\nmac_rx_bad_pkt_num:3\\n", "node_0/device_1_before.txt")
[Capture(device='1', values={'mac_rx_bad_pkt_num': 3.0}, line=1, file='node_0/device_1_before.txt')]
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from msparallel.finding import Evidence
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.measured import Counters
from msparallel.profiling.table import BadCell, Refused, Table, number

LARGEST_BYTES = 16 << 20
MOST_CAPTURES = 10_000
_LINE = re.compile(r"^(?:\[dev(?:id|ice) ?(\d{1,4})\])?\s*((?:mac|roce|nic)_\w{1,60})\s*:\s*(\d{1,25})\s*$")
_BEGINS = re.compile(r"^(?:\[dev(?:id|ice) ?\d{1,4}\])?\s*packet statistics\s*:\s*$")
_HEADING = re.compile(r"^\s*#*\s*dev(?:id|ice)[ _]?(\d{1,4})\s*:?\s*$", re.I)
_IN_NAME = re.compile(r"(?:dev(?:id|ice)?|npu|card)[_-]?(\d{1,4})(?=[_.-]|$)", re.I)


@dataclass(frozen=True)
class Capture:
    """Counters at a moment. line: where they begin."""

    device: str
    values: dict[str, float]
    line: int
    file: str


def captures_of(text: str, name: str) -> list[Capture]:
    """All captures in a text, in order. Raises Refused where there is none, or too many."""
    named = _IN_NAME.search(name.rpartition("/")[2])
    device = default = named[1] if named else ""
    values: dict[str, float] = {}
    found: list[Capture] = []
    begin = 1

    def close() -> None:
        if values:
            found.append(Capture(device, dict(values), begin, name))
            values.clear()
        if len(found) > MOST_CAPTURES:
            raise Refused(f"has more than {MOST_CAPTURES:,} captures")

    for line, told in enumerate(text.splitlines(), 1):
        heading = _HEADING.match(told)
        counter = _LINE.match(told)
        if heading or _BEGINS.match(told):
            close()
            begin = line
            device = heading[1] if heading else device
        elif counter:
            own = counter[1] or device or default
            if counter[2] in values or (values and own != device):
                close()
                begin = line
            device = own
            values[counter[2]] = float(counter[3])
    close()
    if not found:
        raise Refused("has no counter of a port, as mac_rx_bad_pkt_num:0")
    return found


def read_captures(file: ProfileFile) -> list[Capture]:
    """Captures of a file. Raises Refused as above, and where it is too large."""
    if file.bytes > LARGEST_BYTES:
        raise Refused(f"is larger than {LARGEST_BYTES >> 20} MiB; a capture has 3 KiB")
    try:
        return captures_of(file.path.read_text(encoding="utf-8", errors="replace"), file.name)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from None


def differences(captures: list[Capture]) -> tuple[list[Counters], list[str]]:
    """Differences for each device of each folder, and notes where none could be made."""
    groups: dict[tuple[str, str], list[Capture]] = defaultdict(list)
    for capture in captures:
        groups[capture.file.rpartition("/")[0], capture.device].append(capture)
    found, notes = [], []
    for (folder, device), group in sorted(groups.items()):
        shown = "/".join(part for part in (folder, f"device {device}" if device else "a port") if part)
        if len(group) == 1:
            only = group[0]
            place = Evidence(only.file, only.line, "one capture: totals since the driver's start")
            found.append(Counters(device=shown, changes=only.values, seconds=None, captures=1, place=place))
            continue
        ordered = sorted(group, key=lambda one: sum(one.values.values()))
        first, last = ordered[0], ordered[-1]
        common = first.values.keys() & last.values.keys()
        changes = {name: last.values[name] - first.values[name] for name in sorted(common)}
        fallen = [name for name, change in changes.items() if change < 0]
        if fallen:
            notes.append(f"{first.file} and {last.file}: {fallen[0]} rises in neither order, so the port was reset "
                         "between them or they are of two devices; nothing was subtracted")  # fmt: skip
            continue
        found.append(Counters(device=shown, changes=changes, seconds=None, captures=len(group),
                              place=Evidence(last.file, last.line, f"less {first.file}:{first.line}")))  # fmt: skip
    return found, notes


def counter_series(table: Table, file: ProfileFile) -> list[Counters]:
    """Last row less first row of each port in a CSV over time. Raises Refused where a column is missing."""
    time_at, device_at = table.need("timestamp"), table.find("npu_index", "dev_id", "device_id")
    counters = [(name, at) for name, at in table.columns.items() if name.startswith(("mac_", "roce_", "nic_"))]
    ends: dict[str, list[tuple[float, dict[str, float], int]]] = {}
    rows: dict[str, int] = defaultdict(int)
    for line, row in table.rows():
        try:
            at_s = number(row[time_at])
            if at_s is None:
                raise BadCell("no timestamp")
            values = {name: value for name, at in counters if (value := number(row[at])) is not None}
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        device = row[device_at].strip()[:20] if device_at is not None else ""
        seen = ends.setdefault(device, []) if len(ends) < MOST_CAPTURES or device in ends else []
        rows[device] += 1
        seen[1:] = [(at_s, values, line)] if seen else []
        if not seen:
            seen.append((at_s, values, line))
    found = []
    for device, seen in sorted(ends.items()):
        if len(seen) < 2:
            continue
        (began, first, _), (ended, last, line) = seen[0], seen[-1]
        changes = {name: last[name] - first[name] for name in sorted(first.keys() & last.keys())}
        if ended <= began or min(changes.values(), default=0.0) < 0:
            table.spoil(line, "counters fall: the port was reset, nothing was subtracted")
            continue
        found.append(Counters(device=f"device {device}", changes=changes, seconds=ended - began, captures=rows[device],
                              place=Evidence(file.name, line,
                                             f"{rows[device]} rows in {ended - began:g} s")))  # fmt: skip
    return found
