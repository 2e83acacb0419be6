"""Wishes for axes inside a server, against the ranks themselves."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from cluster.tables import a3, a5, write

from msparallel.cluster.rank_order import axes_inside, units_of, wish
from msparallel.cluster.read_table import read_rank_table
from msparallel.hardware import load_hardware
from msparallel.mesh import AXES, Mesh
from msparallel.planner.placement import placement
from msparallel.planner.search.space import Space, meshes

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("devices", [16, 24, 32])
def test_every_wish_is_had_or_refused_for_a_reason_that_is_true(devices):
    for mesh in meshes(Space(devices=devices, devices_per_node=8, global_batch_size=64)):
        for count in (1, 2, 3):
            for axes in combinations(AXES, count):
                found = wish(mesh, 8, axes)
                groups = mesh.groups(*axes)
                assert found.possible == (found.reason == "")
                if not found.servers:
                    assert 8 % len(groups[0]) and not found.possible
                    continue
                server_of = {rank: number for number, ranks in enumerate(found.servers) for rank in ranks}
                assert sorted(server_of) == list(range(mesh.size))
                assert all(len(ranks) == 8 for ranks in found.servers)
                assert all(len({server_of[rank] for rank in group}) == 1 for group in groups), (mesh, axes)
                contiguous = all(right - left == 1 for ranks in found.servers for left, right in pairwise(ranks))
                assert found.possible == contiguous, (mesh, axes)


def test_what_stays_inside_is_what_the_planner_says():
    hardware = load_hardware("atlas_900_a2")
    for mesh in meshes(Space(devices=64, devices_per_node=8, global_batch_size=64)):
        told = axes_inside(mesh, [rank // 8 for rank in range(64)])
        assert told == {axis.name: not axis.crosses for axis in placement(mesh, 8, hardware)}


def test_pipeline_and_tensor_inside_one_server_cannot_be_had():
    found = wish(Mesh(pp=2, dp=2, tp=4), 8, ("pp", "tp"))
    assert not found.possible
    assert "pp2 x tp4 inside a server needs ranks 0..3, 8..11 on the first one" in found.reason
    assert "so dp must be 1" in found.reason
    assert found.reason.endswith("What can be had: dp (data parallel) and tp (tensor parallel) inside a server.")
    assert wish(Mesh(pp=2, dp=1, tp=4), 8, ("pp", "tp")).possible
    assert "tp16 = 16 devices do not fit into servers of 8 (16 > 8)" in wish(Mesh(tp=16), 8, ("tp",)).reason


def test_units_of_tables(tmp_path):
    servers, pods = units_of(read_rank_table(write(tmp_path, a3())))
    assert servers == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 and pods == [0] * 8 + [1] * 8
    assert units_of(read_rank_table(write(tmp_path, a5()))) == ([0, 0, 1, 1], [0] * 4)
