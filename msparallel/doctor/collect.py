"""What this machine tells, in the form of a Recording.

In: this machine: its files under a root, its commands on PATH, its environment. Out: Recordings of three kinds, each
asked for by itself since they cost differently: the environment (under a second), devices (npu-smi, a second or two a
card), links (hccn_tool, ten questions a card).

A card whose tool hangs is asked nothing more, and after MOST_HUNG of them the tool is left alone: each question costs
half a minute then, and a node has a hundred of them.

Of the environment only variables that the doctor knows are kept, so that no token or password gets into a file; of
others that look like ours, the name.

>>> collect_environment().host  # doctest: +SKIP
'node_0'
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msparallel.devices.hccn import HccnRefusal
from msparallel.devices.npu_smi import Device, parse_info
from msparallel.devices.npu_smi_details import parse_map
from msparallel.devices.query import HCCN_TOOL, NPU_SMI, find_tool, hccn_tool, npu_smi, run_tool
from msparallel.devices.tool_text import DeviceUnavailable, ToolHung
from msparallel.doctor.device_rules import NEEDED
from msparallel.doctor.env_rules import NOT_RECORDED
from msparallel.doctor.env_values import elsewhere, variables
from msparallel.doctor.recording import Record, Recording
from msparallel.errors import UserError

ROOT = Path("/")
PACKAGES = ("mindspore", "mindformers", "torch", "torch_npu", "numpy")
SYSCTLS = ("net.netfilter.nf_conntrack_count", "net.netfilter.nf_conntrack_max", "net.ipv4.ip_local_port_range",
           "net.ipv4.ip_local_reserved_ports", "vm.nr_hugepages", "vm.swappiness", "kernel.pid_max", "fs.file-max",
           "kernel.numa_balancing")  # fmt: skip
CLOCK = (("timedatectl", "show"), ("chronyc", "-n", "tracking"), ("ntpq", "-pn"))
FIREWALL = (("systemctl", "is-active", "firewalld"), ("firewall-cmd", "--state"), ("ufw", "status"), ("iptables", "-S"),
            ("nft", "list", "ruleset"))  # fmt: skip
COMMAND_S = 10.0
MOST_HUNG = 2
HUAWEI = "0x19e5"
NPU_PCI = ("0xd100", "0xd105", "0xd107", "0xd500", "0xd801", "0xd802", "0xd803", "0xd806")
"""PCI device ids of NPUs (the driver's npu_common.c, Ascend/mind-cluster)."""
NPU_SMI_TYPES = ("health", "ecc", "board", "temp")
HCCN_GETS = ("link", "link_stat", "net_health", "ip", "gateway", "netdetect", "tls", "pfc", "fec", "stat", "optical")
_OURS = re.compile(r"(?:P2P_|TORCH_)?(?:HCCL|ASCEND|MS|GLOG|PYTORCH_NPU|MINDSPORE)_\w+")
Progress = Callable[[str], None]


def _nothing(step: str) -> None:
    return None


def collect_environment(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> Recording:
    """Versions, variables, memory, limits, disk, clock, firewall, name, ports, device files."""
    told = {
        "env.txt": ("environment", _env(environment)),
        "versions.txt": ("versions", _versions(root, environment)),
        "hostname.txt": ("hostname", _hostname(root)),
        "meminfo.txt": ("/proc/meminfo", _file(root / "proc/meminfo")),
        "limits.txt": ("/proc/self/limits", _file(root / "proc/self/limits")),
        "sysctl.txt": ("sysctl", _sysctl(root)),
        "disk.txt": ("df -Pk", _disk()),
        "devices.txt": ("device files", _device_files(root)),
        "ports.txt": ("/proc/net/tcp", _ports(root)),
        "clock.txt": ("clock", _commands(CLOCK)),
        "firewall.txt": ("firewall", _commands(FIREWALL)),
        "hccn.conf": ("/etc/hccn.conf", _file(root / "etc/hccn.conf")),
    }  # fmt: skip
    return _recording({name: Record(name, shown, text) for name, (shown, text) in told.items() if text})


def collect_devices(progress: Progress = _nothing) -> Recording:
    """npu-smi's table, and what it says of each card."""
    if find_tool(NPU_SMI) is None:
        return _recording({})
    records: dict[str, Record] = {}

    def ask(name: str, *arguments: str) -> bool:
        """Whether it answered in time."""
        shown = f"npu-smi {' '.join(arguments)}"
        progress(shown)
        answered = True
        try:
            text = npu_smi(*arguments)
        except DeviceUnavailable as refused:
            text, answered = f"{refused}\n", not isinstance(refused, ToolHung)
        records[name] = Record(name, shown, text)
        return answered

    ask("npu-smi_info.txt", "info")
    try:
        ids = sorted({device.npu_id for device in parse_info(records["npu-smi_info.txt"].text, "npu-smi info").devices})
    except UserError:
        return _recording(records)  # the rules say what is wrong with it
    hung = int(not ask("npu-smi_map.txt", "info", "-m"))
    for npu_id in ids:
        if hung >= MOST_HUNG:
            break
        names = [(f"npu-smi_{kind}_{npu_id}.txt", kind) for kind in NPU_SMI_TYPES]
        hung += not all(ask(name, "info", "-t", kind, "-i", str(npu_id)) for name, kind in names)
    return _recording(records)


def collect_links(devices: Recording, progress: Progress = _nothing) -> Recording:
    """What hccn_tool says of the card of each device that npu-smi told."""
    table = devices.get("npu-smi_info.txt")
    if find_tool(HCCN_TOOL) is None or table is None:
        return _recording({})
    try:
        found = parse_info(table.text, table.shown).devices
    except UserError:
        return _recording({})
    records: dict[str, Record] = {}
    hung = 0
    for device in sorted(_physical_ids(found, devices)):
        if hung >= MOST_HUNG:
            break
        for query in HCCN_GETS:
            name, shown = f"hccn_{query}_{device}.txt", f"hccn_tool -i {device} -{query} -g"
            progress(shown)
            try:
                text = hccn_tool(device, f"-{query}", "-g")
            except HccnRefusal as refused:
                text = "hccn_tool is busy, please try again.\n" if refused.busy else f"{refused}\n"
            except ToolHung as refused:
                records[name] = Record(name, shown, f"{refused}\n")
                hung += 1
                break
            except DeviceUnavailable as refused:
                text = f"{refused}\n"
            records[name] = Record(name, shown, text)
    return _recording(records)


def _physical_ids(found: Sequence[Device], devices: Recording) -> set[int]:
    """What hccn_tool calls the devices of a table: the N of /dev/davinciN. NPU ids of the table need not be 0..n-1
    (vllm-project/vllm-ascend#8519); `npu-smi info -m` says which is which."""
    record = devices.get("npu-smi_map.txt")
    try:
        entries = parse_map(record.text, record.shown) if record is not None else ()
    except UserError:
        entries = ()
    mapped = {(one.npu_id, one.chip_id): one.logic_id if one.phy_id is None else one.phy_id for one in entries}
    ids = set()
    for device in found:
        told = mapped.get((device.npu_id, device.chip_id)) if device.phy_id is None else device.phy_id
        ids.add(device.npu_id if told is None else told)
    return ids


def together(*parts: Recording) -> Recording:
    """One Recording of several of one host."""
    return _recording({name: record for part in parts for name, record in part.records.items()})


def _recording(records: dict[str, Record]) -> Recording:
    return Recording(host=socket.gethostname() or "this machine", live=True, records=records)


def _env(environment: Mapping[str, str]) -> str:
    lines = []
    for name, value in sorted(environment.items()):
        if name in variables() or name in elsewhere():
            lines.append(f"{name}={value.encode('unicode_escape').decode('ascii')[:4000]}")
        elif _OURS.fullmatch(name):
            lines.append(f"{name}={NOT_RECORDED}")
    return "\n".join(lines) + "\n" if lines else "# none of the variables that are known is set\n"


def _versions(root: Path, environment: Mapping[str, str]) -> str:
    told = {"python": platform.python_version(), "system": _system(root), "kernel": platform.release(),
            "machine": platform.machine()}  # fmt: skip
    driver, firmware = _pairs(root / "usr/local/Ascend/driver/version.info"), _pairs(
        root / "usr/local/Ascend/firmware/version.info")  # fmt: skip
    told |= {"driver": driver.get("package_version") or driver.get("Version", ""),
             "driver_needs_firmware": driver.get("compatible_version_fw", ""),
             "firmware": firmware.get("Version", ""),
             "firmware_needs_driver": firmware.get("compatible_version_drv", ""),
             "cann": _cann(root, environment)}  # fmt: skip
    for name in PACKAGES:
        try:
            told[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "".join(f"{name}={value}\n" for name, value in told.items() if value)


def _system(root: Path) -> str:
    return _pairs(root / "etc/os-release").get("PRETTY_NAME", "").strip('"')


def _cann(root: Path, environment: Mapping[str, str]) -> str:
    homes = [Path(environment[name]) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environment.get(name)]
    homes += [root / "usr/local/Ascend/cann", root / "usr/local/Ascend/ascend-toolkit/latest"]
    for home in homes:
        info = _pairs(home / f"{platform.machine()}-linux" / "ascend_toolkit_install.info")
        if version := info.get("version"):
            return version
    return ""


def _pairs(path: Path) -> dict[str, str]:
    found = re.findall(r"^\s*([A-Za-z_]\w{0,60})=(.{0,300})$", _file(path), re.M)
    return {name: value.strip() for name, value in found}


def _file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""  # not there, or not ours to read: what it tells is not checked


def _hostname(root: Path) -> str:
    name = socket.gethostname()
    lines = [f"name={name}", f"time_zone={time.strftime('%z')}", f"addresses={','.join(_addresses(root))}",
             f"interfaces={','.join(sorted(path.name for path in (root / 'sys/class/net').glob('*')))}"]  # fmt: skip
    if (getent := find_tool(("getent",))) is not None:
        try:
            answer = run_tool([getent, "ahosts", name], timeout_s=COMMAND_S).text
        except DeviceUnavailable:
            answer = ""
        addresses = sorted({line.split()[0] for line in answer.splitlines() if line.split()})
        lines.append(f"resolves={','.join(addresses)}")
    return "\n".join(lines) + "\n"


def _addresses(root: Path) -> list[str]:
    """Of this host's network cards, from the kernel's tables: they are there where `ip` is not."""
    four = re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\s+/32 host LOCAL", _file(root / "proc/net/fib_trie"))
    six = [str(ipaddress.IPv6Address(int(line[:32], 16))) for line in _file(root / "proc/net/if_inet6").splitlines()
           if re.match(r"[0-9a-f]{32} ", line)]  # fmt: skip
    return sorted(set(four)) + sorted(set(six))


def _sysctl(root: Path) -> str:
    told = {name: _file(root / "proc/sys" / name.replace(".", "/")).strip() for name in SYSCTLS}
    return "".join(f"{name} = {value}\n" for name, value in told.items() if value)


def _disk() -> str:
    lines = ["Filesystem 1024-blocks Used Available Capacity Mounted on"]
    home = os.path.expanduser("~")  # stays "~" for a user without one, as in a container with a number for a user
    for mount in dict.fromkeys((str(Path.cwd()), "/tmp", "/dev/shm", *([home] if home != "~" else []))):
        try:
            told = os.statvfs(mount)
        except OSError:
            continue
        size, free = told.f_blocks * told.f_frsize // 1024, told.f_bavail * told.f_frsize // 1024
        lines.append(f"- {size} {size - free} {free} - {mount}")
    return "\n".join(lines) + "\n"


def _device_files(root: Path) -> str:
    lines = [f"container {'yes' if _in_container(root) else 'no'}"]
    nodes = sorted(path.name for path in (root / "dev").glob("davinci*") if re.fullmatch(r"davinci\d+", path.name))
    lines += [f"present /dev/{name}" for name in nodes]
    if nodes or (root / "usr/local/Ascend/driver").exists():
        lines += [f"{'present' if (root / path[1:]).exists() else 'missing'} {path}" for path, _ in NEEDED]
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _file(device / "vendor").strip() == HUAWEI and (kind := _file(device / "device").strip()) in NPU_PCI:
            lines.append(f"pci {device.name} {HUAWEI[2:]}:{kind[2:]}")
    return "\n".join(lines) + "\n"


def _in_container(root: Path) -> bool:
    return (root / ".dockerenv").exists() or (root / "run/.containerenv").exists() or "KUBERNETES_SERVICE_HOST" in (
        os.environ
    )  # fmt: skip


def _ports(root: Path) -> str:
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in _file(root / "proc/net" / name).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A" and re.fullmatch(r"[0-9A-F]+:[0-9A-F]{4}", fields[1]):
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return "# TCP ports that something listens on\n" + "".join(f"{port}\n" for port in sorted(ports))


def _commands(commands: tuple[tuple[str, ...], ...]) -> str:
    lines = []
    for command in commands:
        tool = find_tool((command[0], f"/usr/sbin/{command[0]}"))
        if tool is None:
            continue
        try:
            text = run_tool([tool, *command[1:]], timeout_s=COMMAND_S, most_bytes=200_000).text
        except DeviceUnavailable as refused:
            text = f"({refused})"
        lines += [f"$ {' '.join(command)}", text.rstrip("\n")]
    return "\n".join(lines) + "\n" if lines else ""
