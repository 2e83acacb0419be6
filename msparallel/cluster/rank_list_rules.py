"""Rules on version 2.0 (A5): ranks and the levels of the network they are on.

In: a Job. Out: what is broken, one by one. Each function is one rule of `check_table.RULES`.
Sources: CANN's HCCL user guide, "Rank Table Configuration (Ascend 950)"; the limits are those of cann/hcomm's reader
(rank_graph/rank_table_info).

>>> from msparallel.cluster.rank_table import Rank, RankTable
>>> table = RankTable(version="2.0", form="ranks", ranks=(Rank(rank_id=0, local_id=65, device_id=0, levels=()),))
>>> next(ids_are_in_range(Job(table=table, chip="A5"))).field
'local_id'
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from itertools import pairwise

from msparallel.cluster.rank_table import Address, Level, Place, Rank
from msparallel.cluster.table_rules import Broken, Job
from msparallel.errors import short

MOST_ID = 64
"""64 marks a rank that stands in for another; it has replaced_local_id."""
MOST_LEVELS, MOST_ADDRESSES, MOST_PORTS = 8, 24, 16
_PORT = re.compile(r"\d{1,3}/\d{1,3}")
_FAMILY = {"IPV4": 4, "IPV6": 6}


def local_ids_are_unique(job: Job) -> Iterator[Broken]:
    """Inside an instance of level 0, a server, every local_id and device_id is held once."""
    seen: dict[tuple[str, str, int], Place] = {}
    for rank in job.table.ranks:
        server = next((level.net_instance_id for level in rank.levels if level.net_layer == 0), None)
        for name in ("local_id", "device_id") if server is not None else ():
            key = (str(server), name, getattr(rank, name))
            if key in seen:
                yield Broken(place=rank.place, field=name, value=key[2],
                             message=f"{seen[key]} has the same {name} in {short(key[0], 64)!r} (net_instance_id "
                             "of "
                             "level 0); a device of a server has one rank.")  # fmt: skip
            seen.setdefault(key, rank.place)


def ids_are_in_range(job: Job) -> Iterator[Broken]:
    for rank in job.table.ranks:
        for name in ("local_id", "device_id"):
            if getattr(rank, name) > MOST_ID:
                yield Broken(place=rank.place, field=name, value=getattr(rank, name),
                             message=f"{name} goes from 0 to {MOST_ID - 1}, {MOST_ID} for one that stands in.")
        if rank.local_id == MOST_ID and "replaced_local_id" not in rank.more:
            yield Broken(place=rank.place, field="local_id", value=MOST_ID,
                         message="64 marks a device that stands in: replaced_local_id must say for which (0..63).")


def levels_ascend(job: Job) -> Iterator[Broken]:
    for rank in job.table.ranks:
        layers = [level.net_layer for level in rank.levels]
        if not layers or len(layers) > MOST_LEVELS:
            yield Broken(place=rank.place, field="level_list", value=len(layers),
                         message=f"A rank is on 1 to {MOST_LEVELS} levels, this one on {len(layers)}.")
        elif max(layers) >= MOST_LEVELS or any(left >= right for left, right in pairwise(layers)):
            yield Broken(place=rank.place, field="level_list", value=layers,
                         message=f"net_layer goes from 0 to {MOST_LEVELS - 1} and ascends in level_list, each once.")


def level_0_is_described(job: Job) -> Iterator[Broken]:
    for level in _levels(job):
        if level.net_layer == 0 and level.net_type != "TOPO_FILE_DESC":
            yield Broken(place=level.place, field="net_type", value=level.net_type,
                         message="Level 0, inside a server, is described by the driver's topology file. "
                         'Write "TOPO_FILE_DESC".')  # fmt: skip


def addresses_fit_their_type(job: Job) -> Iterator[Broken]:
    for level, address in _addresses(job):
        if address.addr_type not in ("EID", *_FAMILY):
            yield Broken(place=level.place, field="rank_addr_list", value=address.addr_type,
                         message="addr_type is EID, IPV4 or IPV6.")
        elif not 1 <= len(address.addr) <= 256:
            yield Broken(place=level.place, field="rank_addr_list", value=address.addr,
                         message=f"addr has 1 to 256 characters, this one {len(address.addr)}.")
        elif address.addr_type in _FAMILY and _version(address.addr) != _FAMILY[address.addr_type]:
            example = "192.0.2.10" if address.addr_type == "IPV4" else "2001:db8::10"
            yield Broken(place=level.place, field="rank_addr_list", value=address.addr,
                         message=f"This is no {address.addr_type} address; one looks like {example}.")


def address_counts_are_equal(job: Job) -> Iterator[Broken]:
    """hcomm: ranks of one instance of a level have equally many addresses."""
    seen: dict[tuple[int, str], tuple[int, Rank]] = {}
    for rank in job.table.ranks:
        for level in rank.levels:
            count = len(level.addresses)
            other, first = seen.setdefault((level.net_layer, level.net_instance_id), (count, rank))
            if count != other or count > MOST_ADDRESSES:
                yield Broken(place=level.place, field="rank_addr_list", value=count,
                             message=f"{count} addresses here, {other} at {first.place}; ranks on the same "
                             "net_instance_id "
                             f"have equally many, at most {MOST_ADDRESSES}.")  # fmt: skip


def addresses_have_ports(job: Job) -> Iterator[Broken]:
    for level, address in _addresses(job):
        wrong = [port for port in address.ports if not _PORT.fullmatch(port)]
        if wrong or not 1 <= len(address.ports) <= MOST_PORTS:
            yield Broken(place=level.place, field="rank_addr_list", value=wrong[0] if wrong else len(address.ports),
                         message=f'ports has 1 to {MOST_PORTS} elements of the form "die/port", for example "0/1".')


def _levels(job: Job) -> Iterator[Level]:
    return (level for rank in job.table.ranks for level in rank.levels)


def _addresses(job: Job) -> Iterator[tuple[Level, Address]]:
    return ((level, address) for level in _levels(job) for address in level.addresses)


def _version(text: str) -> int | None:
    try:
        return ipaddress.ip_address(text).version
    except ValueError:
        return None
