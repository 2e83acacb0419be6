"""Which axis of a recipe stays inside a server, and whether a wish for that can be had.

In: a mesh, devices of a server, axes that should not leave it. Out: the ranks of each server. MindSpore numbers ranks
(pp, dp, cp, tp), tp innermost; msrun places rank = node x devices_per_node + device, so only the order of nodes is
free. A rank table could name any order, but HCCL supports none in which ranks of servers interleave (HCCL user guide,
Rank Table Configuration, rank_id). So both can do the same, and a wish for interleaved ranks cannot be had.

>>> wish(Mesh(pp=2, dp=2, tp=4), 8, ("tp", "dp")).possible
True
>>> found = wish(Mesh(pp=2, dp=2, tp=4), 8, ("pp", "tp"))
>>> found.possible, found.servers[0]
(False, (0, 1, 2, 3, 8, 9, 10, 11))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from msparallel.cluster.rank_table import RankTable
from msparallel.cluster.table_rules import spans
from msparallel.mesh import AXES, Mesh

NAMES = {"pp": "pipeline", "dp": "data", "cp": "context", "tp": "tensor"}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Attributes:
    inside: axes that should stay inside a server.
    servers: ranks of each server that realise it; empty where no order does.
    possible: whether msrun, or a rank table that HCCL takes, can give that order.
    reason: in sentences; empty where it is possible.
    """

    inside: tuple[str, ...]
    servers: tuple[tuple[int, ...], ...]
    possible: bool
    reason: str = ""


def axes_inside(mesh: Mesh, unit_of: Sequence[int]) -> dict[str, bool]:
    """Axis above 1 -> whether each of its groups stays in one unit; `unit_of[rank]` is a server or a super pod."""
    return {axis: all(len({unit_of[rank] for rank in group}) == 1 for group in mesh.groups(axis))
            for axis in AXES if getattr(mesh, axis) > 1}  # fmt: skip


def wish(mesh: Mesh, devices_per_node: int, inside: Sequence[str]) -> Wish:
    """What becomes of the wish that groups over `inside` together stay in one server."""
    axes = tuple(axis for axis in AXES if axis in inside)
    together = math.prod(getattr(mesh, axis) for axis in axes)
    product = " x ".join(f"{axis}{getattr(mesh, axis)}" for axis in axes)
    can = f"What can be had: {' or '.join(_had(mesh, devices_per_node)) or 'no axis'} inside a server."
    if together > devices_per_node or devices_per_node % together:
        left = f"{together} > {devices_per_node}" if together > devices_per_node else (
            f"{devices_per_node} % {together} = {devices_per_node % together}")  # fmt: skip
        return Wish(inside=axes, servers=(), possible=False,
                    reason=f"{product} = {together} devices do not fit into servers of {devices_per_node} ({left}). "
                    f"{can}")
    if _contiguous(mesh, devices_per_node, axes):
        blocks = range(0, mesh.size, devices_per_node)
        return Wish(inside=axes, possible=True,
                    servers=tuple(tuple(range(first, min(first + devices_per_node, mesh.size))) for first in blocks))
    groups = sorted(mesh.groups(*axes))
    each = devices_per_node // together
    servers = tuple(tuple(sorted(rank for group in groups[at : at + each] for rank in group))
                    for at in range(0, len(groups), each))  # fmt: skip
    others = [axis for axis in AXES if axis not in axes and getattr(mesh, axis) > 1 and _between(axis, axes)]
    reason = (
        f"{product} inside a server needs ranks {spans(list(servers[0]))} on the first one. msrun cannot place them "
        "so: rank = "
        "node_rank x devices of a node + device, only the order of nodes is free. A rank table cannot either: HCCL "
        "does not "
        f"support ranks of servers that interleave. MindSpore numbers ranks {' x '.join(AXES)}, tp innermost"
        + (f", so {', '.join(others)} must be 1 for that" if others else "") + f". {can}"
    )  # fmt: skip
    return Wish(inside=axes, servers=servers, possible=False, reason=reason)


def _between(axis: str, axes: tuple[str, ...]) -> bool:
    """Whether an axis is numbered inside the outermost of some axes."""
    return AXES.index(axis) > AXES.index(axes[0])


def _contiguous(mesh: Mesh, devices_per_node: int, axes: Sequence[str]) -> bool:
    return all(len({rank // devices_per_node for rank in group}) == 1 for group in mesh.groups(*axes))


def _had(mesh: Mesh, devices_per_node: int) -> list[str]:
    """Largest sets of axes that stay inside a server together."""
    above = [axis for axis in AXES if getattr(mesh, axis) > 1]
    kept: list[tuple[str, ...]] = []
    for count in range(len(above), 0, -1):
        for axes in combinations(above, count):
            if not any(set(axes) <= set(larger) for larger in kept) and _contiguous(mesh, devices_per_node, axes):
                kept.append(axes)
    return [" and ".join(f"{axis} ({NAMES[axis]} parallel)" for axis in axes) for axes in kept]


def units_of(table: RankTable) -> tuple[list[int], list[int]]:
    """Server and super pod of each rank, as numbers, by rank; all of one super pod where the table has none.

    For a table that passed every rule. In version 2.0 ranks of one instance of level 0 share a server.
    """
    pod_of = {name: number for number, pod in enumerate(table.super_pods) for name in pod.server_ids}
    servers, pods = [0] * table.size, [0] * table.size
    for number, server in enumerate(table.servers):
        for device in server.devices:
            servers[device.rank_id], pods[device.rank_id] = number, pod_of.get(server.server_id, 0)
    instances: dict[str, int] = {}
    for rank in table.ranks:
        name = next((level.net_instance_id for level in rank.levels if level.net_layer == 0), "")
        servers[rank.rank_id] = instances.setdefault(name, len(instances))
    return servers, pods
