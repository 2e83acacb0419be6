"""Rules about a host itself: memory, pinned memory, open files, disk, kernel parameters, processes' limits.

In: a Recording (meminfo.txt, limits.txt, disk.txt, sysctl.txt), how many devices it has. Out: Findings.

>>> check_host(Recording(host="node_0"), devices=0)
[]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msparallel.devices.tool_text import Place, wrong
from msparallel.doctor.finding import Evidence, Finding, report, unreadable
from msparallel.doctor.recording import Record, Recording
from msparallel.errors import UserError

HOST_GIB_A_DEVICE = 16
"""Free host memory that a worker of one device takes: its Python, compiled graphs and data; a job of 8 devices that
reads a checkpoint shard and a corpus needs more. An estimate, so falling short of it is a warning."""
LEAST_OPEN_FILES = 65_536
LEAST_FREE_GIB = 20
LEAST_SHM_GIB_A_DEVICE = 1
CONNTRACK_FULL = 0.8


def check_host(told: Recording, devices: int) -> list[Finding]:
    """All rules. `devices`: NPUs of the host, 0 where it has none or where that is not known."""
    found: list[Finding] = []
    for rule in (_memory, _limits, _disk, _sysctl):
        try:
            found += rule(told, devices)
        except UserError as error:
            found.append(unreadable(error, told.host, name=_NAMES[rule]))
    return found


def meminfo(record: Record) -> dict[str, tuple[int, Evidence]]:
    """Name -> kibibytes (or pages), its line. Raises UserError where MemTotal is missing or a line is no entry."""
    found: dict[str, tuple[int, Evidence]] = {}
    for number, line in enumerate(record.text.split("\n"), 1):
        place = Place(record.shown, number)
        entry = re.fullmatch(r"([A-Za-z0-9_()]{1,40}):\s+(\d{1,18})(?: kB)?\s*", line)
        if entry:
            found[entry[1]] = int(entry[2]), Evidence(*place, line)
        elif line.strip():
            raise wrong(place, line, "Expected is an entry of /proc/meminfo, such as 'MemTotal: 263856520 kB'.")
    if "MemTotal" not in found:
        raise wrong(Place(record.shown, 1), "", "There is no MemTotal in it, so this is not /proc/meminfo.")
    return found


def _memory(told: Recording, devices: int) -> Iterator[Finding]:
    if (record := told.get("meminfo.txt")) is None:
        return
    info = meminfo(record)
    free, line = info.get("MemAvailable", info["MemTotal"])
    free_gib, wanted = free / 2**20, HOST_GIB_A_DEVICE * devices
    if free_gib < max(wanted, 2):
        each = f"{devices} devices want about {wanted} GiB" if devices else "A run wants 2 GiB"
        yield report("host_memory", "warning" if free_gib >= wanted / 4 and free_gib >= 1 else "error", told,
                     f"{free_gib:.1f} GiB of the host's memory are free. {each}; when it runs out the kernel kills a "
                     "worker, and the others report a time-out.",
                     "End what else runs on the host, or start fewer workers.", line)  # fmt: skip
    total, line = info.get("HugePages_Total", (0, line))
    size = info.get("Hugepagesize", (2048, line))[0]
    if total and total * size > info["MemTotal"][0] / 2:
        yield report("host_hugepages", "warning", told,
                     f"{total * size / 2**20:.1f} GiB of {info['MemTotal'][0] / 2**20:.1f} GiB are set aside as huge "
                     "pages; neither Python nor MindSpore gets them.",
                     "sysctl -w vm.nr_hugepages=0, unless another program needs them.", line)  # fmt: skip
    swap, swap_free = info.get("SwapTotal", (0, line)), info.get("SwapFree", (0, line))
    if swap[0] and swap_free[0] < swap[0] / 2:
        yield report("host_swapping", "warning", told,
                     f"{(swap[0] - swap_free[0]) / 2**20:.1f} GiB are swapped out: workers that wait for the disk are "
                     "the slow ranks that all others wait for.",
                     "Free memory; `swapoff -a && swapon -a` brings it back.", swap_free[1])  # fmt: skip


def _limits(told: Recording, devices: int) -> Iterator[Finding]:
    if (record := told.get("limits.txt")) is None:
        return
    limits: dict[str, tuple[str, Evidence]] = {}
    for number, line in enumerate(record.text.split("\n"), 1):
        if entry := re.match(r"(Max [a-z -]{3,30}?)\s{2,}(unlimited|\d{1,20})\s+(unlimited|\d{1,20})\b", line):
            limits[entry[1]] = entry[2], Evidence(record.shown, number, line)
    if "Max open files" not in limits:
        raise wrong(Place(record.shown, 1), record.text.split("\n")[0],
                    "There is no 'Max open files' in it, so this is not /proc/self/limits.")  # fmt: skip
    files, shown = limits["Max open files"]
    if files != "unlimited" and int(files) < (LEAST_OPEN_FILES if devices else 1024):
        wanted = LEAST_OPEN_FILES if devices else 1024
        yield report("open_files", "warning", told,
                     f"A process may open {int(files):,} files; each link between ranks and each file of a corpus "
                     f"takes one, and {wanted:,} are enough.",
                     f"ulimit -n {wanted}, and `* - "
                     f"nofile {wanted}` in /etc/security/limits.conf.", shown)  # fmt: skip
    locked, shown = limits.get("Max locked memory", ("unlimited", shown))
    if devices and locked != "unlimited":
        yield report("pinned_memory", "warning", told,
                     f"A process may lock {int(locked) // 1024:,} KiB of memory; copies between host and device, and "
                     "RDMA, use locked (pinned) memory, and fail as out of memory while the device is half empty.",
                     "ulimit -l unlimited; `* - memlock unlimited` in /etc/security/limits.conf; in a container "
                     "--ulimit memlock=-1.", shown)  # fmt: skip
    for name, least in (("Max stack size", 8 * 2**20), ("Max processes", 4096)):
        value, shown = limits.get(name, ("unlimited", shown))
        if value != "unlimited" and int(value) < least:
            option = "s" if "stack" in name else "u"
            wanted = least // 1024 if option == "s" else least
            yield report("process_limits", "warning", told, f"{name} is {int(value):,}; {least:,} are usual.",
                         f"ulimit -{option} {wanted}", shown)  # fmt: skip


def _disk(told: Recording, devices: int) -> Iterator[Finding]:
    if (record := told.get("disk.txt")) is None:
        return
    rows = 0
    for number, line in enumerate(record.text.split("\n"), 1):
        row = re.fullmatch(r"(\S.{0,200}?)\s+(\d{1,18})\s+(\d{1,18})\s+(-?\d{1,18})\s+(\d{1,3}%|-)\s+(/.{0,400})", line)
        if row is None:
            if number > 1 and line.strip():
                raise wrong(Place(record.shown, number), line, "Expected is a line of `df -Pk`: FILESYSTEM BLOCKS USED "
                            "AVAILABLE CAPACITY /MOUNT.")  # fmt: skip
            continue
        rows += 1
        size_gib, free_gib, mount = int(row[2]) / 2**20, int(row[4]) / 2**20, row[6]
        shown = Evidence(record.shown, number, line)
        if mount == "/dev/shm":
            if devices and size_gib < LEAST_SHM_GIB_A_DEVICE * devices:
                yield report("shared_memory", "warning", told,
                             f"/dev/shm has {size_gib:.2g} GiB; data loaders of {devices} devices pass batches "
                             f"through it and want {LEAST_SHM_GIB_A_DEVICE * devices} GiB (a container has 64 MiB by "
                             "default).",
                             f"Start the container with --shm-size={max(8, devices * LEAST_SHM_GIB_A_DEVICE)}g.",
                             shown)  # fmt: skip
        elif free_gib < 1:
            yield report("disk_full", "error", told,
                         f"{mount} has {max(free_gib, 0) * 1024:.0f} MiB free: checkpoints and logs cannot be written.",
                         f"Free {LEAST_FREE_GIB} GiB there, or set train.output_dir to another place.",
                         shown)  # fmt: skip
        elif free_gib < LEAST_FREE_GIB and devices:
            yield report("disk_short", "warning", told,
                         f"{mount} has {free_gib:.1f} GiB free; a checkpoint of a 7B model with its optimizer is "
                         "about 80 GiB, plog and compiled graphs take tens.",
                         "Free space there, or set train.output_dir to another place.", shown)  # fmt: skip
    if not rows:
        raise wrong(Place(record.shown, 1), record.text.split("\n")[0], "There is no line of `df -Pk` in it.")


def _sysctl(told: Recording, devices: int) -> Iterator[Finding]:
    values = told.values("sysctl.txt")

    def number(name: str) -> int | None:
        found = values.get(name)
        return int(found.text) if found is not None and re.fullmatch(r"\d{1,18}", found.text) else None

    def line(name: str) -> Evidence:
        return Evidence(*values[name].place, f"{name} = {values[name].text}")

    used, most = number("net.netfilter.nf_conntrack_count"), number("net.netfilter.nf_conntrack_max")
    if used is not None and most and used > CONNTRACK_FULL * most:
        yield report("conntrack_full", "error" if used >= most else "warning", told,
                     f"The table of connections holds {used:,} of {most:,}; when it is full the kernel drops packets, "
                     "and ranks report socket time-outs.",
                     f"sysctl -w net.netfilter.nf_conntrack_max={max(1_048_576, 4 * most)}, or leave the job's "
                     "network out of connection tracking.", line("net.netfilter.nf_conntrack_count"),
                     line("net.netfilter.nf_conntrack_max"))  # fmt: skip
    low = re.match(r"(\d{1,5})\s+(\d{1,5})$", values["net.ipv4.ip_local_port_range"].text) if (
        "net.ipv4.ip_local_port_range" in values
    ) else None  # fmt: skip
    reserved = values["net.ipv4.ip_local_reserved_ports"].text if "net.ipv4.ip_local_reserved_ports" in values else ""
    if devices and low and int(low[1]) <= 60000 <= int(low[2]) and not _covers(reserved, 60000, 60015):
        yield report("ports_not_reserved", "info", told,
                     f"Programs get ports {low[1]} to {low[2]} for their own connections, and HCCL listens on 60000 "
                     "to 60015: now and then one of these is taken when a job starts (CANN 9.0).",
                     "sysctl -w net.ipv4.ip_local_reserved_ports=60000-60015",
                     line("net.ipv4.ip_local_port_range"))  # fmt: skip


def _covers(ranges: str, first: int, last: int) -> bool:
    for part in ranges.split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if ends and int(ends[1]) <= first and last <= int(ends[2] or ends[1]):
            return True
    return False


_NAMES = {_memory: "meminfo.txt", _limits: "limits.txt", _disk: "disk.txt", _sysctl: "sysctl.txt"}
