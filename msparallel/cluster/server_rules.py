"""Rules on the devices of servers (versions 1.0 and 1.2): numbers, addresses, ports.

In: a Job. Out: what is broken, one by one. Each function is one rule of `check_table.RULES` or `.ADVICE`; sources are
those of `table_rules.py`.

>>> from msparallel.cluster.rank_table import Device, RankTable, Server
>>> table = RankTable(version="1.0", servers=(Server(server_id="a", devices=(Device(rank_id=0, device_id=9),)),))
>>> next(device_ids_are_physical(Job(table=table, chip="A2"))).message
'A server of A2 has 8 devices, 0..7; 9 is beyond. device_id is the N of /dev/davinciN.'
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from msparallel.cluster.rank_table import Device, Place
from msparallel.cluster.table_rules import Broken, Job, spans
from msparallel.errors import short

DEVICES_OF = {"910A": 8, "A2": 8, "A3": 16, "A5": 64}
"""Chip -> most devices of a server. A3: 8 cards with two dies each."""
_PORTS = ("device_port", "backup_device_port", "host_port")


def device_ids_are_unique(job: Job) -> Iterator[Broken]:
    for server in job.table.servers:
        seen: dict[int, Device] = {}
        used = {device.device_id for device in server.devices}
        for device in server.devices:
            if device.device_id in seen:
                free = next(number for number in range(len(used) + 1) if number not in used)
                yield Broken(place=device.place, field="device_id", value=device.device_id,
                             message=f"Rank {seen[device.device_id].rank_id} has device {device.device_id} of this "
                             "server "
                             f"already; a device has one rank (EI0004, EI0014). Device {free} is free.")  # fmt: skip
            seen.setdefault(device.device_id, device)


def device_ids_are_physical(job: Job) -> Iterator[Broken]:
    most = DEVICES_OF[job.chip]
    for _, device in job.table.devices():
        if device.device_id >= most:
            yield Broken(place=device.place, field="device_id", value=device.device_id,
                         message=f"A server of {job.chip} has {most} devices, 0..{most - 1}; {device.device_id} is "
                         "beyond. "
                         "device_id is the N of /dev/davinciN.")  # fmt: skip


def device_counts_are_legal(job: Job) -> Iterator[Broken]:
    legal = (1, 2, 4, 8) if job.chip == "910A" else range(1, DEVICES_OF[job.chip] + 1)
    words = "1, 2, 4 or 8" if job.chip == "910A" else f"1 to {DEVICES_OF[job.chip]}"
    for server in job.table.servers:
        count = len(server.devices)
        if count and count not in legal:
            below = max(number for number in legal if number <= count)
            yield Broken(place=server.place, field="device", value=count,
                         message=f"A job uses {words} devices of a server of {job.chip}, this one has {count}. "
                         f"{below} would do.")  # fmt: skip


def device_counts_are_equal(job: Job) -> Iterator[Broken]:
    servers = job.table.servers
    if job.chip not in ("910A", "A2") or not servers:
        return
    first = servers[0]
    for server in servers[1:]:
        if len(server.devices) != len(first.devices):
            yield Broken(place=server.place, field="device", value=len(server.devices),
                         message=f"{len(server.devices)} devices here, {len(first.devices)} on "
                         f"{short(first.server_id, 64)!r}; "
                         f"on {job.chip} every server of a job has the same number.")  # fmt: skip


def devices_are_of_one_half(job: Job) -> Iterator[Broken]:
    """910A: HCCS joins 0-3 and 4-7; a job of fewer than 8 devices stays in one of the two."""
    if job.chip != "910A":
        return
    for server in job.table.servers:
        ids = sorted({device.device_id for device in server.devices})
        if len(ids) < 8 and len({number // 4 for number in ids}) > 1:
            halves = "0..3 or 4..7" if len(ids) <= 4 else "all 8"
            yield Broken(place=server.place, field="device", value=spans(ids),
                         message="On 910A devices 0..3 and 4..7 are two rings, and a job of fewer than 8 devices "
                         f"stays in one. Use {halves}.")  # fmt: skip


def device_ips_are_there(job: Job) -> Iterator[Broken]:
    """HCCL guide: needed between servers; on A3 only where there are several super pods, or HCCS is off."""
    servers, pods = job.table.servers, job.table.super_pods
    between_servers = len(servers) > 1 and not (job.table.version == "1.2" and len(pods) == 1)
    if not between_servers and not job.roce:
        return
    why = f"{len(servers)} servers reach each other by it" if between_servers else "HCCL_INTRA_ROCE_ENABLE=1 uses it"
    for _, device in job.table.devices():
        if device.address is None and device.device_ip in (None, ""):
            yield Broken(place=device.place, field="device_ip", value=device.device_ip,
                         message=f"device_ip is missing: {why} ('device_ip' is not set correctly). It is address_"
                         f"{device.device_id} in /etc/hccn.conf of this server; hccn_tool -i {device.device_id} -ip -s "
                         "address ADDRESS netmask MASK sets it.")  # fmt: skip


def device_ips_are_addresses(job: Job) -> Iterator[Broken]:
    for _, device in job.table.devices():
        for name, text in (("device_ip", device.device_ip), ("backup_device_ip", device.more.get("backup_device_ip"))):
            if text not in (None, "") and _address(str(text)) is None:
                yield Broken(place=device.place, field=name, value=text, message=(
                    "This is no address of a network card; tools write such a placeholder where hccn_tool tells none. "
                    if device.address is None and name == "device_ip" else "This is no address of a network card. "
                ) + f"Look with hccn_tool -i {device.device_id} -ip -g. An address looks like 192.0.2.10 or "
                "2001:db8::10.")


def device_ips_are_unique(job: Job) -> Iterator[Broken]:
    seen: dict[str, Place] = {}
    for _, device in job.table.devices():
        address = _address(device.device_ip or "")
        if address is None:
            continue
        if str(address) in seen:
            yield Broken(place=device.place, field="device_ip", value=device.device_ip,
                         message=f"{seen[str(address)]} has the same device_ip; every network card has its own. "
                         f"hccn_tool -i {device.device_id} -ip -g tells this one's.")  # fmt: skip
        seen.setdefault(str(address), device.place)


def device_ips_are_of_one_family(job: Job) -> Iterator[Broken]:
    first: tuple[int, Place] | None = None
    for _, device in job.table.devices():
        address = _address(device.device_ip or "")
        if address is None:
            continue
        first = first or (address.version, device.place)
        if address.version != first[0]:
            yield Broken(place=device.place, field="device_ip", value=device.device_ip,
                         message=f"IPv{address.version} here, IPv{first[0]} at {first[1]}; all are of one kind.")


def backup_ips_are_of_the_same_npu(job: Job) -> Iterator[Broken]:
    """HCCL guide: only the two dies of one NPU stand in for each other."""
    owner = {(_address(device.device_ip or "")): (server.server_id, device.device_id)
             for server, device in job.table.devices()}  # fmt: skip
    for server, device in job.table.devices():
        backup = _address(str(device.more.get("backup_device_ip", "")))
        found = owner.get(backup) if backup is not None else None
        if found is not None and found != (server.server_id, device.device_id ^ 1):
            yield Broken(place=device.place, field="backup_device_ip", value=str(backup),
                         message=f"This is the card of device {found[1]} on {short(found[0], 64)!r}; the other die "
                         "of the same "
                         f"NPU is device {device.device_id ^ 1}, and only its address can stand in.")  # fmt: skip


def host_ips_are_addresses(job: Job) -> Iterator[Broken]:
    for server in job.table.servers:
        if server.host_ip and _address(server.host_ip) is None:
            yield Broken(place=server.place, field="host_ip", value=server.host_ip,
                         message="host_ip is an address, for example 192.0.2.1; names go into server_id.")


def ports_are_legal(job: Job) -> Iterator[Broken]:
    for device, name, port in _ports(job):
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65_535):
            yield Broken(place=device.place, field=name, value=port,
                         message="A port is a number from 1 to 65535, above 1023 in practice, for example 16666.")


def ports_are_not_reserved(job: Job) -> Iterator[Broken]:
    for device, name, port in _ports(job):
        if int(port) < 1024:
            yield Broken(place=device.place, field=name, value=port,
                         message="Ports 1 to 1023 are the system's. 16666 is HCCL's default for a device.")


def host_ports_are_unique(job: Job) -> Iterator[Broken]:
    for server in job.table.servers:
        seen: dict[str, Place] = {}
        for device in server.devices:
            port = str(device.more.get("host_port", ""))
            if port and port in seen:
                yield Broken(place=device.place, field="host_port", value=port,
                             message=f"{seen[port]} has the same host_port on this server; each device has its "
                             "own.")
            seen.setdefault(port, device.place)


def backup_ports_differ(job: Job) -> Iterator[Broken]:
    """HCCL guide: a card's port as the first card and as the one that stands in are two."""
    first = {(device.device_ip, str(device.more["device_port"])): device.place
             for _, device in job.table.devices() if device.address and "device_port" in device.more}  # fmt: skip
    for _, device in job.table.devices():
        key = (str(device.more.get("backup_device_ip")), str(device.more.get("backup_device_port")))
        if key in first:
            yield Broken(place=device.place, field="backup_device_port", value=key[1],
                         message=f"{first[key]} uses this port of {key[0]} for itself; a card that stands in "
                         "needs a "
                         f"second one, for example {'16667' if key[1] != '16667' else '16668'}.")  # fmt: skip


def dies_are_in_pairs(job: Job) -> Iterator[Broken]:
    for server in job.table.servers if job.chip == "A3" else ():
        ids = {device.device_id for device in server.devices}
        alone = sorted(number for number in ids if number ^ 1 not in ids)
        if alone:
            yield Broken(place=server.place, field="device", value=spans(alone),
                         message="An NPU of A3 is two devices (2k, 2k + 1); here one of the two is used alone, and "
                         "shares "
                         "memory bandwidth and network card with whoever has the other.")  # fmt: skip


def _ports(job: Job) -> Iterator[tuple[Device, str, str]]:
    return ((device, name, str(device.more[name])) for _, device in job.table.devices() for name in _PORTS
            if device.more.get(name) not in (None, ""))  # fmt: skip


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address that a network card can have."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return None if address.is_unspecified or address.is_loopback or address.is_multicast else address
