"""Which axis crosses servers, against the ranks themselves."""

from __future__ import annotations

import pytest

from msparallel.hardware import load_hardware
from msparallel.mesh import Mesh
from msparallel.planner.placement import placement
from msparallel.planner.search.space import Space, meshes

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(("devices", "per_node"), [(64, 8), (24, 8), (96, 8), (32, 16), (6, 6)])
def test_an_axis_crosses_servers_where_one_of_its_groups_does(devices, per_node):
    hardware = load_hardware("atlas_900_a3" if per_node == 16 else "atlas_900_a2")
    for mesh in meshes(Space(devices=devices, devices_per_node=per_node, global_batch_size=64)):
        told = {axis.name: axis for axis in placement(mesh, per_node, hardware)}
        assert set(told) == {axis for axis in ("pp", "dp", "cp", "tp") if getattr(mesh, axis) > 1}
        for name, axis in told.items():
            groups = mesh.groups(name)
            assert axis.crosses == any(len({rank // per_node for rank in group}) > 1 for group in groups), (mesh, name)
            assert axis.degree == len(groups[0])
            assert axis.stride == groups[0][1] - groups[0][0]


def test_links_are_named_and_experts_are_neighbours():
    hardware = load_hardware("atlas_900_a2")
    found = placement(Mesh(pp=2, dp=4, tp=4), 8, hardware, expert_parallel=16)
    assert [(axis.name, axis.crosses, axis.links) for axis in found] == [
        ("tp", False, ("HCCS",)),
        ("dp", True, ("HCCS", "RoCE")),
        ("pp", True, ("RoCE",)),
        ("ep", True, ("HCCS", "RoCE")),
    ]
