"""Groups by degree and stride, and the algorithms of collectives, against arithmetic on paper."""

from __future__ import annotations

import pytest

from msparallel.hardware import Hardware, load_hardware
from msparallel.hardware.speed import Speed, one_pass

pytestmark = pytest.mark.pure
A2, A3 = (load_hardware(name) for name in ("atlas_900_a2", "atlas_900_a3"))
GIB = 2**30


def slow_link(machine: Hardware, algorithm: str) -> Hardware:
    """The machine with another algorithm between its nodes."""
    last = machine.links[-1].model_copy(update={"algorithm": algorithm})
    return machine.model_copy(update={"links": [*machine.links[:-1], last]})


@pytest.mark.parametrize("op", ["AllReduce", "AllGather", "ReduceScatter", "AlltoAll"])
@pytest.mark.parametrize(("degree", "stride"), [(2, 1), (8, 1), (4, 2), (16, 1), (4, 8), (32, 4), (2, 128)])
def test_a_group_by_degree_and_stride_costs_what_its_ranks_do(op, degree, stride):
    speed = Speed(A2, 8)
    ranks = tuple(range(0, degree * stride, stride))
    assert speed.seconds(op, degree, stride, GIB) == pytest.approx(speed.message(op, ranks, GIB).seconds)


def test_one_rank_sends_nothing():
    assert Speed(A2, 8).seconds("AllReduce", 1, 1, GIB) == 0.0
    assert Speed(A2, 8).transfer(1, 8, GIB) == 0.0


@pytest.mark.parametrize(
    ("degree", "stride", "links"),
    [
        (8, 1, ["HCCS"]),
        (3, 1, ["RoCE"]),  # ranks 6, 7, 8 are on two servers
        (2, 6, ["RoCE"]),
        (2, 4, ["HCCS"]),
        (12, 1, ["RoCE"]),  # unequal shares of servers
        (16, 1, ["HCCS", "RoCE"]),
    ],
)
def test_the_slowest_of_all_groups_counts(degree, stride, links):
    assert [link.name for link, _ in Speed(A2, 8).levels_apart(degree, stride)] == links


def test_a_pipeline_waits_for_its_slowest_border():
    """Four stages of four ranks on servers of eight: the second border is between servers."""
    speed, roce = Speed(A2, 8), A2.links[-1]
    wanted = 10e-6 + roce.latency_us * 1e-6 + GIB / (roce.bandwidth_gb_s * 1e9 * roce.efficiency)
    assert speed.transfer(4, 4, GIB) == pytest.approx(wanted)
    assert speed.transfer(2, 4, GIB) == speed.seconds("Send", 2, 4, GIB)  # both stages in one server


@pytest.mark.parametrize(
    ("algorithm", "members", "steps", "share"),
    [
        ("mesh", 8, 1, 7 / 8),
        ("ring", 8, 7, 7 / 8),
        ("H-D_R", 8, 3, 7 / 8),
        ("H-D_R", 5, 3, 3 / 4 + 1),  # one joins its neighbour, then four halve and double
        ("NHR", 5, 3, 4 / 5),
        ("NB", 8, 3, 7 / 8),
        ("NHR", 2, 1, 1 / 2),
    ],
)
def test_steps_and_bytes_of_an_algorithm(algorithm, members, steps, share):
    assert one_pass(algorithm, members) == (steps, pytest.approx(share))


def test_few_bytes_are_faster_in_few_steps_and_many_as_fast():
    ring, halving, hierarchical = (Speed(slow_link(A2, name), 8) for name in ("ring", "H-D_R", "NHR"))
    for members in (16, 24):
        assert hierarchical.seconds("AllReduce", members, 8, 8) < ring.seconds("AllReduce", members, 8, 8) / 2
        assert hierarchical.seconds("AllReduce", members, 8, GIB) == pytest.approx(
            ring.seconds("AllReduce", members, 8, GIB), rel=0.01
        )
    assert halving.seconds("AllReduce", 24, 8, GIB) > 1.5 * ring.seconds("AllReduce", 24, 8, GIB)


def test_profiles_say_which_algorithm_a_level_uses():
    assert [link.algorithm for link in A2.links] == ["mesh", "ring"]


def test_equal_profiles_share_what_is_computed_for_them():
    copy = A3.model_copy()
    assert copy == A3 and hash(copy) == hash(A3)
