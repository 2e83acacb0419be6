"""Where each axis of a mesh lies on the machines.

In: a mesh, how many devices of a node the job uses, the hardware. Out: for each axis above 1 the links that its groups
go over. Ranks are placed as MindSpore's launcher places them: rank = node x devices_per_node + device, and tp is
innermost, then cp, dp and pp.

>>> found = placement(Mesh(pp=2, dp=4, tp=4), 8, load_hardware("atlas_900_a2"))
>>> [(axis.name, axis.stride, axis.crosses) for axis in found]
[('tp', 1, False), ('dp', 4, True), ('pp', 16, True)]
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.hardware import Hardware
from msparallel.hardware.speed import Speed
from msparallel.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Attributes:
    name: tp, cp, dp, pp or ep.
    stride: from a rank of a group to the next one.
    links: that its slowest group goes over, narrowest first.
    crosses: whether a group lies on several servers.
    """

    name: str
    degree: int
    stride: int
    links: tuple[str, ...]
    crosses: bool


def placement(mesh: Mesh, devices_per_node: int, hardware: Hardware, expert_parallel: int = 1) -> tuple[Axis, ...]:
    """Axes above 1, innermost first."""
    strides = {"tp": 1, "cp": mesh.tp, "dp": mesh.tp * mesh.cp, "pp": mesh.size // mesh.pp}
    degrees = {name: getattr(mesh, name) for name in strides}
    if expert_parallel > 1:
        strides["ep"], degrees["ep"] = 1, expert_parallel
    speed = Speed(hardware, devices_per_node)
    found = []
    for name, stride in strides.items():
        degree = degrees[name]
        if degree > 1:
            links = tuple(link.name for link, _ in speed.levels_apart(degree, stride))
            block = degree * stride
            found.append(Axis(name=name, degree=degree, stride=stride, links=links,
                              crosses=block > devices_per_node or devices_per_node % block != 0))  # fmt: skip
    return tuple(found)
