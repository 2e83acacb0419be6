"""Rules on a rank table as a whole: version, status, counts, ranks, super pods.

In: a Job. Out: what is broken, one by one. Each function is one rule of `check_table.RULES` or `.ADVICE`.
Sources: CANN's HCCL user guide, "Rank Table Configuration" (A2, A3, Ascend 950); MindCluster's description of
hccl.json; MindSpore's rank_table tutorial; error codes as users have reported them.

>>> from msparallel.cluster.rank_table import RankTable
>>> job = Job(table=RankTable(version="1.0"), chip="A3", chip_is_given=True)
>>> next(version_fits_chip(job)).value
'1.0'
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msparallel.cluster.rank_table import Place, RankTable, Server, SuperPod
from msparallel.errors import short

VERSION_OF = {"910A": "1.0", "A2": "1.0", "A3": "1.2", "A5": "2.0"}
"""Chip -> version of its rank tables."""
CHIP_OF = {"1.2": "A3", "2.0": "A5"}
"""Version -> chip, where nothing else tells; 1.0 is taken for A2."""
CHIP_OF_PROFILE = {"Ascend 910A": "910A", "Ascend 910B": "A2", "Ascend 910C": "A3"}
"""Chip of a hardware profile -> of a rank table."""
MOST_SERVER_ID = 64


@dataclass(frozen=True, kw_only=True)
class Job:
    """Attributes:
    chip: 910A, A2, A3 or A5.
    chip_is_given: whether a person named it, or it was read from the table.
    roce: HCCL_INTRA_ROCE_ENABLE=1.
    """

    table: RankTable
    chip: str
    chip_is_given: bool = False
    roce: bool = False


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A broken rule: `field` of what stands at `place`."""

    place: Place
    field: str = ""
    value: Any = None
    message: str
    suggestion: str = ""


Rule = Callable[[Job], Iterator[Broken]]


def chip_of(table: RankTable) -> str:
    """The chip that a table is for, by hardware_type (MindCluster writes it) or else by its version."""
    for server in table.servers:
        kind = str(server.more.get("hardware_type", ""))
        for chip in ("A5", "A3", "A2"):
            if chip in kind:
                return chip
    return CHIP_OF.get(table.version or "", "A2")


def status_is_completed(job: Job) -> Iterator[Broken]:
    table = job.table
    if table.status != "completed":
        known = table.status in ("initializing", "unknown")
        message = (
            "The file is still being written: its status must be completed. Wait for it with --wait."
            if known else f"status is completed, or initializing while the file is being written; "
            f"{short(table.status, 40)!r} is neither. Write \"completed\" if the table is whole."
        )  # fmt: skip
        yield Broken(place=table.place, field="status", value=table.status, message=message)


def file_is_regular(job: Job) -> Iterator[Broken]:
    file = job.table.file
    if file and os.path.islink(file) and not _is_of_a_config_map(file):
        yield Broken(place=Place(), value=None, message="RANK_TABLE_FILE must be a regular file, this is a symbolic "
                     "link. Copy it: cp -L, and name the copy.")  # fmt: skip


def file_is_copied_from_its_config_map(job: Job) -> Iterator[Broken]:
    """Advice: operators hand the table over in a ConfigMap, so it is checked where it lies."""
    file = job.table.file
    if file and _is_of_a_config_map(file):
        yield Broken(place=Place(), value=None, message="This file of a ConfigMap is a symbolic link, and "
                     "RANK_TABLE_FILE must be a regular file. Copy it: cp -L, and name the copy.")  # fmt: skip


def _is_of_a_config_map(file: str) -> bool:
    """Kubernetes mounts a ConfigMap's files as links into the folder ..data beside them."""
    return os.path.islink(file) and os.path.dirname(os.readlink(file)) == "..data"


def version_fits_chip(job: Job) -> Iterator[Broken]:
    version, table = job.table.version, job.table
    if table.form == "groups" and version is None:
        return
    if version not in ("1.0", "1.2", "2.0"):
        yield Broken(place=table.place, field="version", value=version, message="HCCL knows 1.0 (Ascend 910 and A2), "
        "1.2 "
                     f"(A3) and 2.0 (A5). Write \"{VERSION_OF[job.chip]}\" for {job.chip}.")  # fmt: skip
    elif VERSION_OF[job.chip] != version:
        why = "" if job.chip_is_given else " (hardware_type names the chip)"
        hint = (" 1.0 is A3's mode without super pods: HCCS between servers is not used, and link set-up over it fails "
                "with EI0014 or a time-out.") if (job.chip, version) == ("A3", "1.0") else ""  # fmt: skip
        yield Broken(place=table.place, field="version", value=version,
                     message=f"{job.chip} takes version {VERSION_OF[job.chip]}{why}; another one ends in EI0014.{hint} "
                     "Make the table anew with msparallel ranktable make.")  # fmt: skip


def version_fits_content(job: Job) -> Iterator[Broken]:
    table = job.table
    if table.form == "ranks" and table.version in ("1.0", "1.2"):
        yield Broken(place=table.place, field="version", value=table.version,
                     message=f"rank_list is version 2.0's; version {table.version} has server_list. Write \"2.0\".")
    if table.form == "servers" and table.version == "2.0":
        yield Broken(place=table.place, field="version", value="2.0",
                     message="server_list is of versions 1.0 and 1.2; version 2.0 has rank_list. "
                     f"Write \"{'1.2' if table.super_pods else '1.0'}\".")  # fmt: skip
    if table.form == "servers" and table.version == "1.0":
        pod = next((device for _, device in table.devices() if device.super_device_id is not None), None)
        if pod is not None or table.super_pods:
            yield Broken(place=table.place, field="version", value="1.0",
                         message=f"{'super_device_id' if pod else 'super_pod_list'} is A3's and belongs to version "
                         "1.2: "
                         "with 1.0 it is not read. Write \"1.2\", or leave it out for another chip.")  # fmt: skip


def count_fits_list(job: Job) -> Iterator[Broken]:
    table = job.table
    if table.form == "groups":
        return
    name, there = ("rank_count", len(table.ranks)) if table.form == "ranks" else ("server_count", len(table.servers))
    listed = "rank_list" if table.form == "ranks" else "server_list"
    right = str(there) if table.form == "ranks" else f'"{there}"'
    if table.count is None and table.version == "1.0":
        yield Broken(place=table.place, field=name, message=f"{name} is missing; version 1.0 needs it. Write {right}.")
    elif table.count is not None and table.count != there:
        yield Broken(place=table.place, field=name, value=table.count,
                     message=f"{listed} has {there} elements, {name} says {table.count}. Write {right}.")
    if not there:
        yield Broken(place=table.place, field=listed, message=f"{listed} is empty: a job has at least one rank.")


def rank_ids_are_complete(job: Job) -> Iterator[Broken]:
    table = job.table
    seen: dict[int, Any] = {}
    held = [*table.ranks, *(device for _, device in table.devices())]
    missing = sorted(set(range(len(held))) - {item.rank_id for item in held})
    for item in held:
        rank, free = item.rank_id, f" Free is {missing[0]}." if missing else ""
        if rank in seen:
            yield Broken(place=item.place, field="rank_id", value=rank,
                         message=f"rank {rank} is given twice (first: {seen[rank].place}); "
                         f"{len(held)} ranks have the numbers 0..{len(held) - 1}, each once.{free}")  # fmt: skip
        elif rank >= len(held):
            yield Broken(place=item.place, field="rank_id", value=rank,
                         message=f"{len(held)} ranks have the numbers 0..{len(held) - 1}, without a gap; "
                         f"{rank} is beyond.{free}")  # fmt: skip
        seen.setdefault(rank, item)


def _counted(job: Job) -> bool:
    """Whether ranks are 0..n-1; where they are not, that is told, and what follows from it is not."""
    return sorted(device.rank_id for _, device in job.table.devices()) == list(range(job.table.size))


def server_ids_are_unique(job: Job) -> Iterator[Broken]:
    seen: dict[str, Server] = {}
    for server in job.table.servers:
        if server.server_id in seen:
            yield Broken(place=server.place, field="server_id", value=server.server_id,
                         message=f"{seen[server.server_id].place} has the same server_id; every server has its "
                         "own, "
                         "for example its host name.")  # fmt: skip
        seen.setdefault(server.server_id, server)


def server_ids_are_short(job: Job) -> Iterator[Broken]:
    for server in job.table.servers:
        length = len(server.server_id)
        if not server.server_id.strip():
            yield Broken(place=server.place, field="server_id", value=server.server_id,
                         message="server_id is empty; write the server's name or address, for example \"node_0\".")
        elif length > MOST_SERVER_ID:
            yield Broken(place=server.place, field="server_id", value=server.server_id,
                         message=f"{length} characters; HCCL takes at most {MOST_SERVER_ID}. "
                         "Use the host's short name.")  # fmt: skip


def servers_have_devices(job: Job) -> Iterator[Broken]:
    for server in job.table.servers:
        if not server.devices:
            yield Broken(place=server.place, field="device", value=server.server_id,
                         message="This server has no device; take it out of server_list, or list its devices.")


def ranks_of_a_server_are_contiguous(job: Job) -> Iterator[Broken]:
    """HCCL guide: "Cross-server rank_id interleaving is not supported"."""
    for server in job.table.servers if _counted(job) else ():
        ranks = sorted(device.rank_id for device in server.devices)
        if ranks and ranks[-1] - ranks[0] >= len(ranks):
            yield Broken(place=server.place, field="server_id", value=server.server_id,
                         message=f"Its {len(ranks)} ranks are {spans(ranks)}: ranks of other servers lie between, "
                         "which HCCL "
                         f"does not support. {ranks[0]}..{ranks[0] + len(ranks) - 1} would do.")  # fmt: skip


def super_device_ids_are_there(job: Job) -> Iterator[Broken]:
    if job.table.version != "1.2":
        return
    for _, device in job.table.devices():
        if device.super_device_id is None:
            yield Broken(place=device.place, field="super_device_id",
                         message="super_device_id is missing: HCCS needs it between servers (else link set-up times "
                         "out, "
                         "\"invalid host device id 65535\"). It is the SDID of npu-smi info -t spod-info -i NPU -c "
                         "CHIP.")  # fmt: skip


def super_device_ids_are_unique(job: Job) -> Iterator[Broken]:
    pod_of = {name: pod.super_pod_id for pod in job.table.super_pods for name in pod.server_ids}
    seen: dict[tuple[str, int], Place] = {}
    for server, device in job.table.devices():
        if device.super_device_id is None:
            continue
        key = (pod_of.get(server.server_id, ""), device.super_device_id)
        if key in seen:
            yield Broken(place=device.place, field="super_device_id", value=device.super_device_id,
                         message=f"{seen[key]} has the same super_device_id in super pod {short(key[0], 40)!r}; "
                         "each die "
                         "has its own (SDID of npu-smi info -t spod-info).")  # fmt: skip
        seen.setdefault(key, device.place)


def super_pods_cover_servers(job: Job) -> Iterator[Broken]:
    table = job.table
    if table.version == "1.2" and not table.super_pods and table.servers:
        yield Broken(place=table.place, field="super_pod_list",
                     message="super_pod_list is missing or empty: version 1.2 says which servers one super pod "
                     "joins. For one "
                     'super pod: [{"super_pod_id": "0", "server_list": [{"server_id": '
                     f'"{short(table.servers[0].server_id, 64)}"}}, ...]}}].')  # fmt: skip
    elif table.version == "1.2":
        yield from _cover(table, table.super_pods, "super_pod_id", "super pod")


def clusters_cover_servers(job: Job) -> Iterator[Broken]:
    if job.table.clusters:
        yield from _cover(job.table, job.table.clusters, "cluster_id", "cluster")


def _cover(table: RankTable, groups: tuple[SuperPod, ...], field: str, what: str) -> Iterator[Broken]:
    """Every server is in exactly one of the groups."""
    servers = {server.server_id for server in table.servers}
    held: dict[str, str] = {}
    ids: set[str] = set()
    for group in groups:
        if group.super_pod_id in ids:
            yield Broken(place=group.place, field=field, value=group.super_pod_id,
                         message=f"Two elements have this {field}; every {what} has its own.")
        ids.add(group.super_pod_id)
        for name in group.server_ids:
            if name not in servers:
                yield Broken(place=group.place, field=field, value=group.super_pod_id,
                             message=f"It names server {short(name, 64)!r}, which is not in server_list.")
            elif name in held:
                yield Broken(place=group.place, field=field, value=group.super_pod_id,
                             message=f"Server {short(name, 64)!r} is in {what} {short(held[name], 64)!r} already; "
                             "a server is in one.")  # fmt: skip
            held.setdefault(name, group.super_pod_id)
    for server in table.servers:
        if server.server_id not in held:
            yield Broken(place=server.place, field="server_id", value=server.server_id,
                         message=f"This server is in no {what}; add it to the server_list of one.")


def ranks_of_a_super_pod_are_contiguous(job: Job) -> Iterator[Broken]:
    ranks_of = {server.server_id: [device.rank_id for device in server.devices] for server in job.table.servers}
    for pod in job.table.super_pods if _counted(job) else ():
        ranks = sorted(rank for name in dict.fromkeys(pod.server_ids) for rank in ranks_of.get(name, ()))
        if ranks and ranks[-1] - ranks[0] >= len(ranks):
            yield Broken(place=pod.place, field="super_pod_id", value=pod.super_pod_id,
                         message=f"Its {len(ranks)} ranks are {spans(ranks)}: ranks of other super pods lie between. "
                         "List "
                         "the servers of one super pod together, and number them so.")  # fmt: skip


def servers_are_in_dictionary_order(job: Job) -> Iterator[Broken]:
    first = {server.server_id: min((device.rank_id for device in server.devices), default=0)
             for server in job.table.servers}  # fmt: skip
    by_rank = sorted(first, key=lambda name: first[name])
    for written, sorted_id in zip(by_rank, sorted(first), strict=True):
        if written != sorted_id:
            yield Broken(place=job.table.place, field="server_list", value=written,
                         message=f"MindSpore's guide wants ranks in the dictionary order of server_id; by that "
                         f"{short(sorted_id, 64)!r} comes before {short(written, 64)!r}. Names with leading zeros "
                         "(node_02, "
                         "node_10) sort as they count.")  # fmt: skip
            return


def form_is_current(job: Job) -> Iterator[Broken]:
    if job.table.form == "groups":
        yield Broken(place=job.table.place, field="group_list", message="This is the old form (template 2), which "
        "the HCCL "
                     "guide keeps for old scenarios only. server_list (version 1.0) is today's.")  # fmt: skip


def spans(numbers: list[int]) -> str:
    """Sorted numbers with runs drawn together.

    >>> spans([0, 1, 2, 3, 8, 9, 11])
    '0..3, 8..9, 11'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = [str(low) if low == high else f"{low}..{high}" for low, high in runs]
    return ", ".join(text if len(text) <= 8 else [*text[:8], f"... ({len(text) - 8} more)"])
