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

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msparallel.cluster.hosts import Cards, Host
from msparallel.cluster.rank_table import Device, Place, Rank, RankTable, Server, SuperPod
from msparallel.cluster.table_rules import VERSION_OF, spans
from msparallel.errors import Problem, RecipeError, UserError, short


def make_table(hosts: Sequence[Host], cards: Sequence[Cards], chip: str, devices: Sequence[int] = (),
               file: str = "") -> RankTable:  # fmt: skip
    """A table of version 1.0 or 1.2; rules are for `check_table.check`.

    Args:
        devices: physical ids to use on each host; by default all that its cards tell.
        file: the host list, for messages.

    Raises:
        UserError: for A5; see `make_rank_list`.
        RecipeError: everything that the hosts' files do not tell.
    """
    if chip == "A5":
        raise UserError("A5: a 2.0 rank table holds EIDs and ports, which no hccn.conf has.")
    version = 4 if any(known.ipv4 for known in cards) else 6
    pod_of = [host.super_pod or (known.super_pods[0] if known.super_pods else None)
              for host, known in zip(hosts, cards, strict=True)]  # fmt: skip
    problems = [problem for host, known, pod in zip(hosts, cards, pod_of, strict=True)
                for problem in _unknown(host, known, chip, devices, pod)]  # fmt: skip
    if problems:
        raise RecipeError(problems)
    servers, pods, rank = [], {}, 0
    for number, (host, known) in enumerate(zip(hosts, cards, strict=True)):
        addresses, found = known.addresses(version), []
        pod = pod_of[number]
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


def _unknown(host: Host, known: Cards, chip: str, devices: Sequence[int], pod: str | None) -> Iterator[Problem]:
    """What a table needs and the host's file does not tell."""

    def problem(rule: str, message: str) -> Problem:
        return Problem(key=host.name, value=None, rule=rule, message=message, file=known.file)

    if unknown := sorted(set(devices) - set(known.devices)):
        yield problem("devices_are_told", f"{host.name} has no device {spans(unknown)} in it; it tells of "
                      f"{spans(known.devices)}.")  # fmt: skip
    without = [one for one in devices or known.devices if one in known.devices and one not in known.super_device_ids]
    if chip == "A3" and without:
        yield problem("super_device_ids_are_told",
            f"There is no SDID for device {spans(without)}; A3 needs one for each. Put what "
            f"npu-smi info -t spod-info -i NPU -c CHIP prints behind a line: device {without[0]}"
        )  # fmt: skip
    if chip == "A3" and pod is None:
        yield problem("super_pods_are_told", "Which super pod is it in? Add super_pod=0 to its line of "
                      "the host list, or the line Super Pod ID of npu-smi info -t spod-info to this file.")  # fmt: skip
    if host.super_pod and known.super_pods and host.super_pod != known.super_pods[0]:
        yield problem("super_pods_agree", f"{host.name}: the host list says super_pod={host.super_pod}, {known.file} "
                      f"says {known.super_pods[0]}. Physical and logical numbers do not mix: use one of "
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
    tables = [_with_file(table) for table in tables]
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


def _with_file(table: RankTable) -> RankTable:
    """Each entry with the file that it came from: the table that they become has none."""

    def of(place: Place) -> Place:
        return replace(place, file=table.file)

    servers = tuple(replace(server, place=of(server.place), devices=tuple(replace(device, place=of(device.place))
                                                                          for device in server.devices))
                    for server in table.servers)  # fmt: skip
    ranks = tuple(replace(rank, place=of(rank.place), levels=tuple(replace(level, place=of(level.place))
                                                                   for level in rank.levels))
                  for rank in table.ranks)  # fmt: skip
    return replace(table, servers=servers, ranks=ranks)


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
