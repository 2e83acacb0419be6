"""HCCL_ALGO: which levels of links an algorithm is for, and what is refused."""

from __future__ import annotations

import pytest

from msparallel.errors import UserError
from msparallel.hardware import load_hardware
from msparallel.hardware.hccl import CHOICES, choose_algorithms
from msparallel.hardware.speed import Speed, one_pass

pytestmark = pytest.mark.pure
A2, A3 = (load_hardware(name) for name in ("atlas_900_a2", "atlas_900_a3"))


def algorithms(machine) -> list[str]:
    return [link.algorithm for link in machine.links]


def test_a_level_is_between_servers_or_between_super_nodes():
    assert algorithms(choose_algorithms(A2, "level0:NA;level1:NHR")) == ["mesh", "NHR"]
    assert algorithms(choose_algorithms(A3, "level0:NA;level1:NHR;level2:H-D_R")) == ["ring", "ring", "NHR", "H-D_R"]
    assert algorithms(A2) == ["mesh", "ring"]  # the profile itself stays
    assert choose_algorithms(A2, "level1:NB").name == "atlas_900_a2 with HCCL_ALGO=level1:NB"


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_changes_the_time_of_a_message(name):
    speed = Speed(choose_algorithms(A2, f"level1:{name}"), 8)
    steps, share = one_pass(CHOICES[name], 24)
    roce, size = A2.links[-1], 2**24
    wanted = 10e-6 + 2 * (steps * roce.latency_us * 1e-6 + size * share / (roce.bandwidth_gb_s * 1e9 * roce.efficiency))
    assert speed.seconds("AllReduce", 24, 8, size) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("NHR", "'NHR' is no level with its algorithm"),
        ("allreduce=level0:NA;level1:ring", "'allreduce=level0:NA' is no level"),
        ("level0:ring", "Use level0:NA"),
        ("level1:pipeline", "'pipeline' has no formula here. Use ring, H-D_R, NHR, NB"),
    ],
)
def test_what_is_refused(text, told):
    with pytest.raises(UserError, match=told):
        choose_algorithms(A2, text)
    with pytest.raises(UserError, match="has no HCCL"):
        choose_algorithms(load_hardware("cpu"), "level1:NHR")
