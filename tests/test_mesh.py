import itertools

import pytest

from msparallel.mesh import AXES, Mesh

pytestmark = pytest.mark.pure


def factorisations(devices: int):
    for pp, dp, cp in itertools.product(range(1, devices + 1), repeat=3):
        if devices % (pp * dp * cp) == 0:
            yield Mesh(pp=pp, dp=dp, cp=cp, tp=devices // (pp * dp * cp))


@pytest.mark.parametrize("devices", range(1, 17))
def test_groups_partition_the_ranks_on_every_factorisation(devices):
    count = 0
    for mesh in factorisations(devices):
        count += 1
        for size in range(1, 5):
            for axes in itertools.combinations(AXES, size):
                groups = mesh.groups(*axes)
                assert sorted(rank for group in groups for rank in group) == list(range(devices))
                degree = 1
                for axis in axes:
                    degree *= getattr(mesh, axis)
                assert {len(group) for group in groups} == {degree}
                for rank in range(devices):
                    assert rank in mesh.group_of(rank, *axes)
        for rank in range(devices):
            assert mesh.rank(**mesh.coordinates(rank)) == rank
    assert count > 0


def test_rank_order_is_mindspores():
    """Stages are contiguous blocks; inside a stage tp is innermost."""
    mesh = Mesh(pp=2, dp=2, tp=2)
    assert mesh.groups("pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("dp", "tp") == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_mesh_is_an_error(rank):
    with pytest.raises(IndexError, match=f"rank {rank} is outside 0..7"):
        Mesh(dp=8).coordinates(rank)


def test_a_degree_below_one_is_an_error():
    with pytest.raises(ValueError, match="axis tp has degree 0"):
        Mesh(tp=0)


def test_text():
    assert str(Mesh()) == "one device (1)"
    assert str(Mesh(pp=2, dp=4, tp=4)) == "pp2 x dp4 x tp4 (32)"
