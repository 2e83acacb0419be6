"""A rank table from a host list, or from the tables of single hosts.

In: Hosts and their Cards, or RankTables, in the order in which ranks are to run over them. Out: one RankTable: server
after server, device after device, rank 0 first. That is msrun's order too: rank = node x devices of a node + device.

>>> from msparallel.cluster.hosts import parse_hccn, parse_hosts
>>> hosts = parse_hosts("node_0\\nnode_1\\n", "hosts.txt")
>>> cards = [parse_hccn(f"address_0=198.51.100.{n}", "hccn.conf") for n in (1, 2)]
>>> [device.rank_id for _, device in make_table(hosts, cards, "A2").devices()]
[0, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msparallel.cluster.hosts import Cards, Host
from msparallel.cluster.rank_table import Device, Place, Rank, RankTable, Server, SuperPod
from msparallel.cluster.table_rules import VERSION_OF, spans
from msparallel.errors import UserError, short


def make_table(hosts: Sequence[Host], cards: Sequence[Cards], chip: str, devices: Sequence[int] = (),
               file: str = "") -> RankTable:  # fmt: skip
    """A table of version 1.0 or 1.2; rules are for `check_table.check`.

    Args:
        devices: physical ids to use on each host; by default all that its cards tell.
        file: the host list, for messages.

    Raises UserError for A5: see `make_rank_list`.
    """
    if chip == "A5":
        raise UserError("A5: a 2.0 rank table holds EIDs and ports, which no hccn.conf has.")
    version = 4 if any(known.ipv4 for known in cards) else 6
    servers, pods, rank = [], {}, 0
    for number, (host, known) in enumerate(zip(hosts, cards, strict=True)):
        addresses, found = known.addresses(version), []
        pod = host.super_pod or (known.super_pods[0] if known.super_pods else None)
        _refuse_unknown(host, known, chip, devices, pod)
        for device in devices or known.devices:
            at = Place(f"server_list[{number}].device[{len(found)}]", {"": host.line})
            found.append(Device(
                rank_id=rank, device_id=device, device_ip=addresses.get(device), place=at,
                super_device_id=known.super_device_ids.get(device) if chip == "A3" else None,
            ))  # fmt: skip
            rank += 1
        servers.append(Server(server_id=host.name, host_ip=host.address, devices=tuple(found),
                              place=Place(f"server_list[{number}]", {"": host.line})))  # fmt: skip
        if chip == "A3" and pod is not None:
            pods.setdefault(pod, []).append(host.name)
    return RankTable(version=VERSION_OF[chip], servers=tuple(servers), count=len(servers), super_pods=_pods(pods),
                     file=file)  # fmt: skip


def _refuse_unknown(host: Host, known: Cards, chip: str, devices: Sequence[int], pod: str | None) -> None:
    """What a table needs and the host's file does not tell."""
    unknown = sorted(set(devices) - set(known.devices))
    if unknown:
        raise UserError(f"{known.file}: {host.name} has no device {unknown[0]} in it; it tells of "
                        f"{spans(known.devices)}.")  # fmt: skip
    without = [device for device in devices or known.devices if device not in known.super_device_ids]
    if chip == "A3" and without:
        raise UserError(
            f"{known.file}: no SDID for device {without[0]} of {host.name}; A3 needs one for each. Put what "
            f"npu-smi info -t spod-info -i NPU -c CHIP prints behind a line: device {without[0]}"
        )
    if chip == "A3" and pod is None:
        raise UserError(f"{host.name}: which super pod is it in? Add super_pod=0 to its line of the host list, or "
        "the line "
                        f"Super Pod ID of npu-smi info -t spod-info to {known.file}.")  # fmt: skip
    if host.super_pod and known.super_pods and host.super_pod != known.super_pods[0]:
        raise UserError(f"{host.name}: the host list says super_pod={host.super_pod}, {known.file} says "
                        f"{known.super_pods[0]}. Physical and logical numbers do not mix: use one of "
                        "them.")  # fmt: skip


def make_rank_list(infos: Sequence[RankTable], devices: Sequence[int] = ()) -> RankTable:
    """A table of version 2.0 (A5) from what each host tells of its devices (`read_rootinfo`), in the order of hosts.

    Args:
        devices: physical ids to use on each host, in the order of their ranks; by default all.

    Raises UserError where a host lacks one of `devices`, or hosts do not agree about detours.
    """
    ranks: list[Rank] = []
    for info in infos:
        held = {rank.device_id: rank for rank in info.ranks}
        unknown = sorted(set(devices) - set(held))
        if unknown:
            raise UserError(f"{info.file}: no device {unknown[0]} in it; it tells of {spans(sorted(held))}.")
        if info.detour != infos[0].detour:
            raise UserError(f"{info.file}: detour is {short(info.detour or 'not there', 20)}, in {infos[0].file} "
                            f"{short(infos[0].detour or 'not there', 20)}; hosts of one job say the same.")  # fmt: skip
        chosen = [held[device] for device in devices] if devices else list(info.ranks)
        ranks += [replace(rank, rank_id=len(ranks) + place) for place, rank in enumerate(chosen)]
    return RankTable(version=infos[0].version, form="ranks", ranks=tuple(ranks), count=len(ranks),
                     detour=infos[0].detour, file=infos[0].file)  # fmt: skip


def merge_tables(tables: Sequence[RankTable]) -> RankTable:
    """Tables of single hosts as one: servers in the order of `tables`, ranks counted through.

    Raises UserError where the tables are not of one kind.
    """
    first = tables[0]
    for table in tables:
        if table.form == "groups":
            raise UserError(f"{table.file}: the old group_list form is not merged; make the table anew from a host "
            "list.")
        if (table.form, table.version) != (first.form, first.version):
            raise UserError(f"{table.file}: version {short(table.version, 20)}, but {first.file} has version "
                            f"{short(first.version, 20)}; only tables of one version make one.")  # fmt: skip
        if table.clusters:
            raise UserError(f"{table.file}: tables with cluster_list are not merged.")
    if first.form == "ranks":
        ranks = [rank for table in tables for rank in sorted(table.ranks, key=lambda rank: rank.rank_id)]
        numbered = tuple(replace(rank, rank_id=number) for number, rank in enumerate(ranks))
        return RankTable(version=first.version, form="ranks", ranks=numbered, count=len(numbered), detour=first.detour)
    servers, pods, rank = [], {}, 0
    for table in tables:
        for server in sorted(table.servers, key=lambda item: min((d.rank_id for d in item.devices), default=0)):
            devices = sorted(server.devices, key=lambda device: device.rank_id)
            servers.append(replace(server, devices=tuple(replace(device, rank_id=rank + place)
                                                         for place, device in enumerate(devices))))  # fmt: skip
            rank += len(devices)
        for pod in table.super_pods:
            pods.setdefault(pod.super_pod_id, []).extend(pod.server_ids)
    return RankTable(version=first.version, servers=tuple(servers), count=len(servers), super_pods=_pods(pods))


def in_order_of(tables: Sequence[RankTable], hosts: Sequence[Host]) -> list[RankTable]:
    """Tables of one server each, in the order of a host list; a server is found by its name or its address.

    Raises UserError where hosts and tables do not match one to one.
    """
    by_name: dict[str, RankTable] = {}
    for table in tables:
        if len(table.servers) != 1:
            raise UserError(f"{table.file}: {len(table.servers)} servers; to be put in the order of a host list, a "
            "table has "
                            "one.")  # fmt: skip
        by_name[table.servers[0].server_id] = table
    ordered = []
    for host in hosts:
        name = next((name for name in (host.name, host.address) if name in by_name), None)
        if name is None:
            raise UserError(f"No table has the server {short(host.name, 64)}; there are "
            f"{', '.join(map(short, by_name))}.")
        ordered.append(by_name.pop(name))
    if by_name:
        raise UserError(f"Not in the host list: {', '.join(map(short, by_name))}. Add a line for each, or leave its "
        "table out.")
    return ordered


def _pods(pods: dict[str, list[str]]) -> tuple[SuperPod, ...]:
    return tuple(SuperPod(super_pod_id=name, server_ids=tuple(dict.fromkeys(servers)),
                          place=Place(f"super_pod_list[{number}]"))
                 for number, (name, servers) in enumerate(pods.items()))  # fmt: skip
