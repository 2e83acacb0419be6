"""The table that `npu-smi info` prints, of every driver and chip.

In: its text. Out: DeviceTable: devices and the processes on them; DeviceUnavailable where npu-smi says that it has none
to tell; UserError with file and line for anything else.

A device takes two lines, and the two lines of the header say what stands in each cell. Three layouts are known: a
column `Chip` (910A, 910B), `Chip Phy-ID` (A3, two dies to a card) or `Chip Device` (310P, its memory is DDR), and a
column `NPU ID` of its own (950). Widths and the number of cells differ by driver, so nothing is read by position.
Sources: the driver's npu-smi (print_card_total_info and print_total_info_header_* of npu_info_print.c), outputs of
drivers 23.0 to 26.0 in public reports, among them vllm-project/vllm-ascend#8519 (ids that do not begin at 0).

>>> table = parse_info(EXAMPLE, "npu-smi_info.txt")
>>> table.devices[0].memory_used_mib, table.devices[0].memory_kind, table.processes[0].pid
(31859, 'HBM', 4711)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from msparallel.devices.tool_text import (
    NOT_TOLD,
    Place,
    identifier,
    number,
    numbered,
    refusal,
    whole,
    wrong,
)
from msparallel.errors import UserError, short

EXAMPLE = """\
| npu-smi 24.1.0                   Version: 24.1.0                                               |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 0     910B2               | OK            | 91.5        44                0    / 0             |
| 0                         | 0000:C1:00.0  | 17          0    / 0          31859/ 65536         |
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 0       0                 | 4711          | python3.11               | 28170                   |
"""

MOST_DEVICES = 1024
MOST_PROCESSES = 65_536

_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]{1,2}")
_HEALTH = re.compile(r"[A-Za-z][A-Za-z ]{0,23}")
_VALUE = re.compile(r"N/A|([^\s/]+)\s*/\s*([^\s/]+)|\S+")
_VERSION = re.compile(r"npu-smi\s+(\S{1,40})(?:\s+Version:\s*(\S{1,40}))?")
_IDLE = re.compile(r"No running processes found in NPU\s+(\d{1,9})")
_IDS = ("NPU", "NPU ID")


@dataclass(frozen=True, kw_only=True)
class Device:
    """A chip: one card of an A2, one die of an A3.

    Attributes:
        npu_id: id of the card, not always 0..n-1.
        chip_id: of the chip on its card; 0 where a card has one.
        phy_id, logic_id: column `Phy-ID` (A3), column `Device` (310P); None where the table has none.
        name: as npu-smi prints it; 910A servers print 910B too.
        health: OK, Warning, Alarm, Critical or UNKNOWN.
        power_w: None where the table has `-` or NA (an A3's second die, a 310P).
        aicore_percent: column `AICore(%)`, on a 950 `NPU Util(%)`; 0 while a profiler runs.
        memory_used_mib, memory_total_mib, memory_kind: of the device's own memory: HBM, DDR where the chip has no HBM.
        ddr_used_mib, ddr_total_mib: column `Memory-Usage(MB)`; a 910A has DDR beside HBM, for its control CPU.
        bus_id: PCI address; None where NA.
        line: of its first line.
    """

    npu_id: int
    chip_id: int
    phy_id: int | None
    logic_id: int | None
    name: str
    health: str
    power_w: float | None
    temperature_c: float | None
    aicore_percent: float | None
    memory_used_mib: int | None
    memory_total_mib: int | None
    memory_kind: Literal["HBM", "DDR"]
    ddr_used_mib: int | None
    ddr_total_mib: int | None
    hugepages_used: int | None
    hugepages_total: int | None
    bus_id: str | None
    line: int

    @property
    def healthy(self) -> bool:
        """Whether npu-smi says OK."""
        return self.health.upper() == "OK"

    @property
    def label(self) -> str:
        """`NPU 3`, or `NPU 3 chip 1` on a card with several."""
        return f"NPU {self.npu_id}" + (f" chip {self.chip_id}" if self.chip_id or self.phy_id is not None else "")


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that holds memory of a device. `pid` is the host's, also inside a container, where
    `pid_in_container` may name the other one; `name` can be empty there."""

    npu_id: int
    chip_id: int
    pid: int
    name: str
    memory_mib: int | None
    pid_in_container: int | None
    line: int


@dataclass(frozen=True, kw_only=True)
class DeviceTable:
    """What `npu-smi info` told.

    Attributes:
        version: of the driver; None where the first line is missing.
        idle: NPU ids that the table calls free of processes.
        has_process_table: False where the output ends before it: then `processes` says nothing.
    """

    version: str | None
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    idle: tuple[int, ...]
    has_process_table: bool

    def processes_of(self, device: Device) -> tuple[Process, ...]:
        """Processes on one chip."""
        return tuple(p for p in self.processes if (p.npu_id, p.chip_id) == (device.npu_id, device.chip_id))


def parse_info(text: str, name: str) -> DeviceTable:
    """A table.

    Raises:
        DeviceUnavailable: npu-smi says that it cannot answer (-8005, -8020, no NPU, not installed ...).
        UserError: no such table, or a line in it that is not as its header says.
    """
    reader = _Reader()
    for place, line in numbered(text, name):
        line = line.lstrip("># \\")  # quoted, as in a report
        if line.startswith("|"):
            inside = line.removeprefix("|").removesuffix("|")
            reader.take(place, [cell.strip() for cell in inside.split("|")])
    if not reader.devices and (said := refusal(text, name)):
        raise said
    return reader.table(name)


class _Reader:
    """Lines of a table, one after the other."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.devices: dict[tuple[int, int], Device] = {}
        self.processes: list[Process] = []
        self.idle: list[int] = []
        self._first: list[list[str]] | None = None
        self._second: list[list[str]] | None = None
        self._process: list[list[str]] | None = None
        self._half: tuple[Place, dict[str, str]] | None = None
        self._stray: tuple[Place, str] | None = None

    def take(self, place: Place, cells: list[str]) -> None:
        """One line that begins with `|`, cut into its cells."""
        if len(cells) == 1 or not any(cells):
            return self._single(cells[0])
        if "Process id" in cells:
            self._whole()
            self._process = [_names(cell) if index == 0 else [cell] for index, cell in enumerate(cells)]
        elif "Health" in cells and _names(cells[0])[:1] in (["NPU"], ["NPU ID"]):
            self._whole()
            self._first, self._second, self._process = [_names(cell) for cell in cells], None, None
        elif "Bus-Id" in cells and self._first is not None:
            self._second = [_names(cell) for cell in cells]
        elif self._process is not None:
            self._take_process(place, cells)
        elif self._first is None or self._second is None:
            self._stray = self._stray or (place, " | ".join(cells))  # another table, or one without its head
        elif self._half is None:
            self._half = place, _row(place, self._first, cells)
        else:
            self._take_second(place, cells)
        return None

    def _single(self, cell: str) -> None:
        if found := _IDLE.match(cell):
            self.idle.append(int(found[1]))
        elif found := _VERSION.match(cell):
            self.version = found[2] or found[1]

    def _take_second(self, place: Place, cells: list[str]) -> None:
        assert self._half is not None and self._second is not None
        (first, values), self._half = self._half, None
        bus = cells[next(i for i, names in enumerate(self._second) if "Bus-Id" in names)] if (
            len(cells) == len(self._second)
        ) else ""  # fmt: skip
        if bus not in NOT_TOLD and not _BUS.fullmatch(bus):
            raise wrong(place, bus, f"A device has two lines; the second one of line {first.line}, with its Bus-Id, is "
                        "expected here. The output was cut: record it again.")  # fmt: skip
        device = _device(first, {**values, **_row(place, self._second, cells)}, place)
        key = device.npu_id, device.chip_id
        if key in self.devices:
            raise wrong(first, f"{device.label} chip {device.chip_id}",
                        f"This device is on line {self.devices[key].line} "
                        "already. One output of npu-smi in one file.")  # fmt: skip
        if len(self.devices) == MOST_DEVICES:
            raise wrong(first, device.label, f"More than {MOST_DEVICES:,} devices; a server has at most 64.")
        self.devices[key] = device

    def _take_process(self, place: Place, cells: list[str]) -> None:
        assert self._process is not None
        names = self._process
        extra = len(cells) - len(names)
        if extra > 0:  # a process whose name holds the separator
            at = next((i for i, title in enumerate(names) if title == ["Process name"]), 0)
            cells = [*cells[:at], "|".join(cells[at : at + extra + 1]), *cells[at + extra + 1 :]]
        values = _row(place, names, cells)
        if len(self.processes) == MOST_PROCESSES:
            raise wrong(place, str(cells), f"More than {MOST_PROCESSES:,} processes.")
        self.processes.append(Process(
            npu_id=identifier(_id(values), "NPU", place),
            chip_id=identifier(values.get("Chip", "0"), "Chip", place),
            pid=identifier(values.get("Process id", ""), "Process id", place),
            name=values.get("Process name", ""),
            memory_mib=whole(values.get("Process memory(MB)", ""), "Process memory(MB)", place),
            pid_in_container=whole(values.get("Process id in container", ""), "Process id in container", place),
            line=place.line,
        ))  # fmt: skip

    def _whole(self) -> None:
        if self._half is not None:
            first, values = self._half
            raise wrong(first, f"NPU {_id(values)}",
                        "The second line of this device, with its Bus-Id, is missing: the output was cut. Record it "
                        "again.")  # fmt: skip

    def table(self, name: str) -> DeviceTable:
        """All of it. Raises UserError."""
        self._whole()
        if not self.devices and self._stray:
            raise wrong(*self._stray, "The two lines of npu-smi's header are expected before its devices: NPU Name | "
                        "Health | ... and Chip | Bus-Id | ...")  # fmt: skip
        if not self.devices:
            what = "a header and no device under it" if self._first else "no table of npu-smi"
            raise UserError(f"{name}\n  There is {what} in it. Expected is the output of `npu-smi info`: a header "
                            "'NPU Name | Health | Power(W) ...' and two lines a device.")  # fmt: skip
        return DeviceTable(
            version=self.version,
            devices=tuple(self.devices.values()),
            processes=tuple(self.processes),
            idle=tuple(self.idle),
            has_process_table=self._process is not None or bool(self.idle),
        )


def _names(cell: str) -> list[str]:
    """Columns of one cell of a header: words, of which `NPU ID` and `NPU Util(%)` are two each."""
    return re.findall(r"NPU (?:ID|Util\(%\))|\S+", cell)


def _id(values: dict[str, str]) -> str:
    return next((values[key] for key in _IDS if key in values), "")


def _row(place: Place, header: list[list[str]], cells: list[str]) -> dict[str, str]:
    """Column -> what stands there. `31859/ 32768` is one value."""
    if len(cells) != len(header):
        raise wrong(place, " | ".join(cells), f"This line has {len(cells)} cells, its header {len(header)}: "
                    f"{' | '.join(' '.join(names) for names in header)}.")  # fmt: skip
    values: dict[str, str] = {}
    for names, cell in zip(header, cells, strict=True):
        if len(names) == 1:
            found = [cell]
        elif names == ["NPU", "Name"]:
            found = (cell.split(None, 1) + ["", ""])[:2]
        else:
            found = [f"{m[1]}/{m[2]}" if m[1] else m[0] for m in _VALUE.finditer(cell)]
        if len(found) != len(names):
            raise wrong(place, cell, f"Expected here are {len(names)} values: {', '.join(names)}.")
        values.update(zip(names, found, strict=True))
    return values


def _device(place: Place, values: dict[str, str], second: Place) -> Device:
    hbm_used, hbm_total = _pair(values, "HBM-Usage(MB)", second)
    ddr_used, ddr_total = _pair(values, "Memory-Usage(MB)", second)
    hugepages_used, hugepages_total = _pair(values, "Hugepages-Usage(page)", place)
    has_hbm = bool(hbm_total) or (hbm_total is not None and not ddr_total)
    health = values.get("Health", "")
    if not _HEALTH.fullmatch(health):
        raise wrong(place, health, "Health is OK, Warning, Alarm, Critical or UNKNOWN.")
    bus = values.get("Bus-Id", "")
    phy, logic = (whole(values.get(key, ""), key, second) for key in ("Phy-ID", "Device"))
    load = values.get("AICore(%)", values.get("NPU Util(%)", ""))
    return Device(
        npu_id=identifier(_id(values), "NPU", place),
        chip_id=identifier(values.get("Chip", "0"), "Chip", second),
        phy_id=phy,
        logic_id=logic,
        name=short(values.get("Name", ""), 60),
        health=health,
        power_w=number(values.get("Power(W)", ""), "Power(W)", place),
        temperature_c=number(values.get("Temp(C)", ""), "Temp(C)", place),
        aicore_percent=number(load, "AICore(%)", second),
        memory_used_mib=hbm_used if has_hbm else ddr_used,
        memory_total_mib=hbm_total if has_hbm else ddr_total,
        memory_kind="HBM" if has_hbm else "DDR",
        ddr_used_mib=ddr_used,
        ddr_total_mib=ddr_total,
        hugepages_used=hugepages_used,
        hugepages_total=hugepages_total,
        bus_id=None if bus in NOT_TOLD else bus,
        line=place.line,
    )


def _pair(values: dict[str, str], key: str, place: Place) -> tuple[int | None, int | None]:
    """`used / total`; two None where the table has no such column, or NA."""
    text = values.get(key, "")
    if text in NOT_TOLD:
        return None, None
    used, slash, total = text.partition("/")
    if not slash:
        raise wrong(place, text, f"{key} is 'used / total', for example 3416 / 65536.")
    return whole(used, key, place), whole(total, key, place)
