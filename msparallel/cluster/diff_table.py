"""What is different between two rank tables, in lines to read.

In: two RankTables. Out: lines; none where they say the same. A device is known by its server and its number; a shift of
all ranks of a server is one line.

>>> from msparallel.cluster.rank_table import Device, RankTable, Server
>>> def table(first, ip):
...     device = Device(rank_id=first, device_id=0, device_ip=ip)
...     return RankTable(version="1.0", servers=(Server(server_id="node_0", devices=(device,)),))
>>> difference(table(0, "192.0.2.1"), table(0, "192.0.2.9"))
['node_0 device 0: device_ip 192.0.2.1 -> 192.0.2.9']
"""

from __future__ import annotations

from typing import Any

from msparallel.cluster.rank_table import RankTable
from msparallel.cluster.table_rules import spans
from msparallel.errors import short

_Devices = dict[str, dict[int, dict[str, Any]]]


def difference(old: RankTable, new: RankTable) -> list[str]:
    """Lines from the general to the particular."""
    lines = [f"{name}: {_word(getattr(old, name))} -> {_word(getattr(new, name))}"
             for name in ("version", "status", "detour") if getattr(old, name) != getattr(new, name)]  # fmt: skip
    before, after = _devices(old), _devices(new)
    if old.size != new.size:
        lines.append(f"ranks: {old.size} -> {new.size}")
    lines += [f"- {short(name, 64)}: {_ranks(before[name])}" for name in sorted(before.keys() - after.keys())]
    lines += [f"+ {short(name, 64)}: {_ranks(after[name])}" for name in sorted(after.keys() - before.keys())]
    for server in before:
        if server in after:
            lines += _of_server(short(server, 64), before[server], after[server])
    return lines + _pods(old, new)


def _of_server(server: str, before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]]) -> list[str]:
    lines = []
    for mark, only in (("-", before.keys() - after.keys()), ("+", after.keys() - before.keys())):
        if only:
            lines.append(f"{mark} {server} device {spans(sorted(only))}")
    both = sorted(before.keys() & after.keys())
    moved = [device for device in both if before[device]["rank_id"] != after[device]["rank_id"]]
    shifts = {after[device]["rank_id"] - before[device]["rank_id"] for device in moved}
    if len(moved) > 1 and len(shifts) == 1:
        lines.append(f"{server} device {spans(moved)}: rank {spans(sorted(before[d]['rank_id'] for d in moved))} -> "
                     f"{spans(sorted(after[d]['rank_id'] for d in moved))}")  # fmt: skip
        moved = []
    for device in both:
        for name in dict.fromkeys([*before[device], *after[device]]):
            left, right = before[device].get(name), after[device].get(name)
            if left != right and (name != "rank_id" or device in moved):
                where = f"{server} device {device}" if device >= 0 else server
                lines.append(f"{where}: {'rank' if name == 'rank_id' else name} {_word(left)} -> {_word(right)}")
    return lines


def _devices(table: RankTable) -> _Devices:
    """Server -> device -> field -> value; fields of a server itself stand under -1."""
    found: _Devices = {}
    for server in table.servers:
        own = {"rank_id": None, "host_ip": server.host_ip, **server.more}
        at = found.setdefault(server.server_id, {-1: own})
        for device in server.devices:
            at[device.device_id] = {"rank_id": device.rank_id, "device_ip": device.device_ip,
                                    "super_device_id": device.super_device_id, **device.more}  # fmt: skip
    for rank in table.ranks:
        server = next((level.net_instance_id for level in rank.levels if level.net_layer == 0), "(no level 0)")
        levels = {f"level {level.net_layer}": ", ".join([level.net_instance_id, *(a.addr for a in level.addresses)])
                  for level in rank.levels}  # fmt: skip
        found.setdefault(server, {})[rank.device_id] = {"rank_id": rank.rank_id, "local_id": rank.local_id, **levels}
    return found


def _pods(old: RankTable, new: RankTable) -> list[str]:
    before = {name: pod.super_pod_id for pod in old.super_pods for name in pod.server_ids}
    after = {name: pod.super_pod_id for pod in new.super_pods for name in pod.server_ids}
    return [f"{short(name, 64)}: super pod {_word(before.get(name))} -> {_word(after.get(name))}"
            for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]  # fmt: skip


def _ranks(devices: dict[int, dict[str, Any]]) -> str:
    ranks = sorted(fields["rank_id"] for device, fields in devices.items() if device >= 0)
    return f"rank {spans(ranks)}" if ranks else "no rank"


def _word(value: Any) -> str:
    return "none" if value in (None, "") else short(value, 80)
