"""Rules about the devices of a host: are they there, healthy, cool, free, and may this user and container use them.

In: a Recording (npu-smi_info.txt, npu-smi_health_ID.txt, npu-smi_ecc_ID.txt, npu-smi_board_ID.txt, devices.txt,
env.txt). Out: Checked: the table, Findings, or why nothing can be said.

>>> check_devices(Recording(host="laptop", live=True)).impossible
'this machine has no npu-smi and no /dev/davinci*: it has no NPU, or this container got none'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from msparallel.devices.npu_smi import Device, DeviceTable, parse_info
from msparallel.devices.npu_smi_details import Details, parse_details
from msparallel.devices.tool_text import DeviceUnavailable, Place
from msparallel.doctor.finding import Evidence, Finding, report, stated, unreadable
from msparallel.doctor.recording import Record, Recording
from msparallel.errors import UserError
from msparallel.finding import Severity

WARM_C, HOT_C = 75.0, 90.0
"""At which a device is called warm, and hot. A device that idles is at 35 to 50 in every output that was seen."""
HELD_SHARE = 0.15
"""Of a device's memory that is in use with no process: the driver itself takes 3 to 6 %."""
NEEDED = (
    ("/dev/davinci_manager", "error"),
    ("/dev/devmm_svm", "error"),
    ("/dev/hisi_hdc", "error"),
    ("/usr/local/Ascend/driver/lib64", "error"),
    ("/usr/local/dcmi", "warning"),
    ("/etc/ascend_install.info", "warning"),
)
"""What a process needs beside /dev/davinciN (Ascend Docker Runtime mounts them; MindCluster 7.3 guide)."""


@dataclass(frozen=True)
class Checked:
    """Attributes:
    table: devices; None where there is none or it cannot be read.
    impossible: why nothing can be said; None where something was.
    """

    table: DeviceTable | None
    findings: tuple[Finding, ...] = ()
    impossible: str | None = None


def device_table(told: Recording) -> DeviceTable | None:
    """The host's table where it can be read, for rules that only need the number of devices or their name."""
    record = told.get("npu-smi_info.txt")
    try:
        return parse_info(record.text, record.shown) if record else None
    except UserError:
        return None


def check_devices(told: Recording) -> Checked:
    """All rules."""
    files = _paths(told)
    nodes = sorted(path for path in files.present if re.fullmatch(r"/dev/davinci\d+", path))
    record = told.get("npu-smi_info.txt")
    if record is None:
        return _without_table(told, files, nodes)
    try:
        table = parse_info(record.text, record.shown)
    except DeviceUnavailable as refused:
        return _refused(told, record, refused, files, nodes)
    except UserError as error:
        return Checked(None, (unreadable(error, told.host, name="npu-smi_info.txt"),))
    found = [*_mounts(told, files), *_health(told, table, record), *_temperature(told, table, record),
             *_details(told), *_visible(told, table), *_processes(told, table, record), *_held(told, table, record),
             *_ids(told, table, record)]  # fmt: skip
    return Checked(table, tuple(found))


@dataclass(frozen=True)
class _Paths:
    present: dict[str, Evidence]
    missing: dict[str, Evidence]
    pci: tuple[Evidence, ...]
    container: bool


def _paths(told: Recording) -> _Paths:
    """devices.txt: lines `present PATH`, `missing PATH`, `pci ADDRESS VENDOR:DEVICE`, `container yes|no`."""
    present: dict[str, Evidence] = {}
    missing: dict[str, Evidence] = {}
    pci: list[Evidence] = []
    container = False
    record = told.get("devices.txt")
    for number, line in enumerate(record.text.split("\n") if record else (), 1):
        word, _, rest = line.strip().partition(" ")
        evidence = Evidence(record.shown if record else "", number, line.strip())
        if word == "present":
            present[rest.strip()] = evidence
        elif word == "missing":
            missing[rest.strip()] = evidence
        elif word == "pci":
            pci.append(evidence)
        elif word == "container":
            container = rest.strip() == "yes"
    return _Paths(present, missing, tuple(pci), container)


def _without_table(told: Recording, files: _Paths, nodes: list[str]) -> Checked:
    if nodes:
        where = "The driver's package puts it into /usr/local/sbin; put that on PATH."
        if files.container:
            where = "Start the container with -v /usr/local/bin/npu-smi and -v /usr/local/dcmi."
        finding = report("npu_smi_missing", "error", told,
                         f"There are {len(nodes)} device files ({nodes[0]} ...) and no npu-smi, so health and "
                         "versions cannot be seen.", where, files.present[nodes[0]])  # fmt: skip
        return Checked(None, (*_mounts(told, files), finding))
    if files.pci:
        finding = report("driver_not_loaded", "error", told,
                         f"{len(files.pci)} NPUs are on the PCIe bus and there is no /dev/davinci*: the driver is not "
                         "loaded" + (", or the container was started without devices." if files.container else "."),
                         "Start the container with --device=/dev/davinciN (or ASCEND_VISIBLE_DEVICES with Ascend "
                         "Docker Runtime)." if files.container else
                         "Install the driver, or load it: `lsmod | grep drv_`, `dmesg | grep -i davinci`.",
                         *files.pci[:2])  # fmt: skip
        return Checked(None, (finding,))
    if told.live:
        return Checked(None, impossible="this machine has no npu-smi and no /dev/davinci*: it has no NPU, or this "
                                        "container got none")  # fmt: skip
    return Checked(None, impossible="npu-smi_info.txt is not among the files")


_REFUSALS = {
    -8005: ("npu_not_initialised",
            "npu-smi cannot initialise the driver (-8005)",
            "Is the driver loaded (`lsmod | grep drv_`)? After installing firmware the host must be restarted. In a "
            "container: are /dev/davinci_manager and the driver's lib64 mounted? As another user than root: is the "
            "user in the group HwHiAiUser?"),
    -8020: ("npu_in_use",
            "the devices are in use by another container (-8020)",
            "Stop the other container, or give the two different devices: without --privileged a device belongs to "
            "one container. If no other container runs: mount /usr/local/dcmi and /usr/local/Ascend/driver/lib64. On "
            "the host `cat /proc/uda/namespace_node` names the process that holds a device."),
}  # fmt: skip


def _refused(
    told: Recording, record: Record, refused: DeviceUnavailable, files: _Paths, nodes: list[str]
) -> Checked:
    if refused.code is None and not nodes and not files.pci and told.live:
        return Checked(None, impossible=str(refused).splitlines()[-1].strip().rstrip(".").lower())
    line = refused.line or 1
    text = record.text.split("\n")[line - 1] if line <= len(record.text.split("\n")) else ""
    said = str(refused).splitlines()[-1].strip()
    otherwise = "npu_smi_refuses", said.rstrip("."), "Run `npu-smi info` as root on the host, and see dmesg."
    rule, cause, remedy = _REFUSALS.get(refused.code or 0, otherwise)
    finding = report(rule, "error", told, f"{cause[0].upper()}{cause[1:]}.", remedy, Evidence(record.shown, line, text))
    return Checked(None, (*_mounts(told, files), finding))


def _mounts(told: Recording, files: _Paths) -> Iterator[Finding]:
    for path, severity in NEEDED:
        if path in files.missing and files.present:
            how = f"--device={path}" if path.startswith("/dev") else f"-v {path}:{path}:ro"
            yield report("device_file_missing", "error" if severity == "error" else "warning", told,
                         f"{path} is not there; programs that use a device need it.",
                         f"Start the container with {how}." if files.container else "Install the driver again.",
                         files.missing[path])  # fmt: skip


def _line(record: Record, device: Device) -> Evidence:
    return Evidence(record.shown, device.line, record.text.split("\n")[device.line - 1].strip())


def _health(told: Recording, table: DeviceTable, record: Record) -> Iterator[Finding]:
    ill = [device for device in table.devices if not device.healthy]
    for health in sorted({device.health for device in ill}):
        devices = [device for device in ill if device.health == health]
        codes = [code for device in devices for code in _codes(told, device.npu_id)]
        named = f" Fault codes: {', '.join(sorted(set(codes)))}." if codes else ""
        severity: Severity = "warning" if health.lower() == "warning" else "error"
        yield report("device_health", severity, told,
                     f"{_list([device.label for device in devices])}: npu-smi says {health}.{named}",
                     "`npu-smi info -t health -i ID` names the fault; look it up in the chip's fault list. For a "
                     "temperature check fan and air duct, for memory `npu-smi info -t ecc -i ID`. Keep the device out "
                     "of the job (ASCEND_RT_VISIBLE_DEVICES) until it says OK.",
                     *[_line(record, device) for device in devices])  # fmt: skip


def _codes(told: Recording, npu_id: int) -> list[str]:
    for number, record in told.numbered("npu-smi_health"):
        if number == npu_id:
            try:
                text = parse_details(record.text, record.shown).text("Error Code")
            except UserError:
                return []  # a finding of its own, in _details
            return re.findall(r"0x[0-9A-Fa-f]{1,10}|[0-9A-F]{8}", text or "")
    return []


def _temperature(told: Recording, table: DeviceTable, record: Record) -> Iterator[Finding]:
    for rule, severity, low, high in (("device_hot", "error", HOT_C, 1e9), ("device_warm", "warning", WARM_C, HOT_C)):
        devices = [d for d in table.devices if d.temperature_c is not None and low <= d.temperature_c < high]
        if devices:
            hottest = max(d.temperature_c or 0 for d in devices)
            yield report(rule, "error" if severity == "error" else "warning", told,
                         f"{_list([d.label for d in devices])}: {hottest:.0f} C before a job has started; a device "
                         "that gets hot lowers its clock, and all ranks wait for it.",
                         "Check fan and air duct of the server, dust, and the room's temperature.",
                         *[_line(record, d) for d in devices])  # fmt: skip


def _details(told: Recording) -> Iterator[Finding]:
    for kind, rule in (("health", _health_file), ("ecc", _ecc), ("board", _board)):
        for number, record in told.numbered(f"npu-smi_{kind}"):
            try:
                yield from rule(told, number, parse_details(record.text, record.shown))
            except DeviceUnavailable:
                continue  # a driver that does not know the query, or a user who may not ask it
            except UserError as error:
                yield unreadable(error, told.host, name=record.name)


def _place(found: tuple[str, Place] | None, name: str) -> tuple[Evidence, ...]:
    return () if found is None else (Evidence(found[1].file, found[1].line, f"{name} : {found[0]}"),)


def _health_file(told: Recording, number: int, details: Details) -> Iterator[Finding]:
    status = details.text("Health Status") or details.text("Health")
    table = device_table(told)
    if status is None or status.upper() == "OK" or (table and any(
            d.npu_id == number and not d.healthy for d in table.devices)):  # fmt: skip
        return
    severity: Severity = "warning" if status.lower() == "warning" else "error"
    yield report("device_health", severity, told,
                 f"NPU {number}: npu-smi says {status}, error code {details.text('Error Code') or 'none'}.",
                 "Look the code up in the chip's fault list; keep the device out of the job until it says OK.",
                 *_place(details.find("Health Status"), "Health Status"))  # fmt: skip


def _ecc(told: Recording, number: int, details: Details) -> Iterator[Finding]:
    for kind in ("HBM", "DDR"):
        for name, rule, severity, meaning in (
            (f"{kind} Double Bit Error Count", "ecc_double", "error", "errors that cannot be corrected"),
            (f"{kind} Double Bit Isolated Pages Count", "ecc_isolated", "warning", "pages taken out for such errors"),
            (f"{kind} Double Bit Aggregate Total Err Cnt", "ecc_past", "warning",
             "errors that could not be corrected, over its life"),
            (f"{kind} Single Bit Error Count", "ecc_single", "info", "errors that were corrected"),
        ):  # fmt: skip
            for chip in details.chips:
                count = details.count(name, chip.chip_id) if name in chip.values else None
                if count:
                    where = f"NPU {number}" + (f" chip {chip.chip_id}" if chip.chip_id else "")
                    yield report(rule, severity, told, f"{where}: {count:,} {kind} {meaning}.",
                                 "Reset the device (`npu-smi set -t reset -i ID -c CHIP`) and look again; have the "
                                 "card replaced if the count grows." if rule != "ecc_single" else
                                 "Nothing, unless the count grows by the day.",
                                 *_place(details.find(name, chip.chip_id), name))  # fmt: skip


def _board(told: Recording, number: int, details: Details) -> Iterator[Finding]:
    if (details.text("Compatibility") or "").upper() == "NOK":
        yield report("driver_firmware", "error", told,
                     f"NPU {number}: driver {details.text('Software Version')} and firmware "
                     f"{details.text('Firmware Version')} do not go together (Compatibility NOK).",
                     "Install driver and firmware of one release, then restart the host.",
                     *_place(details.find("Compatibility"), "Compatibility"))  # fmt: skip


def _visible(told: Recording, table: DeviceTable) -> Iterator[Finding]:
    try:
        value = told.values("env.txt").get("ASCEND_RT_VISIBLE_DEVICES")
    except UserError:
        return  # a finding of the environment
    if value is None or not re.fullmatch(r"\d{1,3}(,\d{1,3})*", value.text):
        return
    beyond = [number for number in map(int, value.text.split(",")) if number >= len(table.devices)]
    if beyond:
        yield report("visible_devices", "error", told,
                     f"ASCEND_RT_VISIBLE_DEVICES={value.text} names device {beyond[0]}; there are "
                     f"{len(table.devices)}, 0 to {len(table.devices) - 1}. From there on no device is seen.",
                     f"export ASCEND_RT_VISIBLE_DEVICES={','.join(map(str, range(len(table.devices))))}",
                     stated("ASCEND_RT_VISIBLE_DEVICES", value))  # fmt: skip


def _processes(told: Recording, table: DeviceTable, record: Record) -> Iterator[Finding]:
    if table.processes:
        npus = sorted({p.npu_id for p in table.processes})
        lines = record.text.split("\n")
        evidence = [Evidence(record.shown, p.line, lines[p.line - 1].strip()) for p in table.processes]
        pids = _list([str(pid) for pid in sorted({p.pid for p in table.processes})], 8)
        yield report("device_occupied", "warning", told,
                     f"{len(table.processes)} processes hold memory of NPU {_list([str(n) for n in npus])}: {pids}. A "
                     "job that shares a device with another one runs out of memory, or finds port 16666 taken "
                     "(EJ0003).",
                     "`ps -fp PID` says whose they are. What a job left behind: kill it and wait 10 s (EJ0001).",
                     *evidence)  # fmt: skip


def _held(told: Recording, table: DeviceTable, record: Record) -> Iterator[Finding]:
    busy = {p.npu_id for p in table.processes}
    held = [d for d in table.devices if table.has_process_table and d.npu_id not in busy and d.memory_total_mib
            and (d.memory_used_mib or 0) > HELD_SHARE * d.memory_total_mib]  # fmt: skip
    if held:
        worst = max(held, key=lambda d: d.memory_used_mib or 0)
        yield report("device_memory_held", "warning", told,
                     f"{_list([d.label for d in held])}: {worst.memory_used_mib:,} of {worst.memory_total_mib:,} MiB "
                     "are in use and npu-smi names no process: one in another container, which it does not see from "
                     "here, or one that ended without giving its memory back.",
                     "Look for it on the host; reset the device if there is none (`npu-smi set -t reset -i ID -c "
                     "CHIP`).",
                     *[_line(record, d) for d in held])  # fmt: skip


def _ids(told: Recording, table: DeviceTable, record: Record) -> Iterator[Finding]:
    ids = sorted({device.npu_id for device in table.devices})
    if ids != list(range(len(ids))):
        yield report("npu_ids", "info", told,
                     f"npu-smi's ids are {_list([str(i) for i in ids], 8)}; MindSpore and ASCEND_RT_VISIBLE_DEVICES "
                     f"count devices from 0 to {len(table.devices) - 1}.",
                     "`npu-smi info -m` says which is which (column Chip Logic ID).",
                     _line(record, table.devices[0]))  # fmt: skip


def _list(words: list[str], most: int = 4) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
