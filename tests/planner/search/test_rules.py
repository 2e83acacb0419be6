"""What a search says of meshes that the rules refuse; that they do is in `test_space.py`."""

from __future__ import annotations

import pytest
from legal_strategies import planned

from msparallel.hardware import load_hardware
from msparallel.mesh import Mesh
from msparallel.planner.search.overrides import space_of
from msparallel.planner.search.rules import engine_cuts, refusal
from msparallel.planner.workload import workload_of

pytestmark = pytest.mark.pure


def test_the_engine_cuts_what_the_rules_let_it_cut():
    ascend, cpu = load_hardware("atlas_800t_a2"), load_hardware("cpu")
    assert [n for n in range(1, 25) if engine_cuts(ascend, n)] == [2, 4, 8, 16, 24]
    assert not any(engine_cuts(cpu, n) for n in range(1, 25))


def test_refusals_say_what_would_do():
    plan = planned("llama2_70b_dp2_tp8_pp4")
    work, space = workload_of(plan), space_of(plan)
    found = refusal(work, space, Mesh(pp=4, tp=16))
    assert found is not None and found.change == "model_parallel 8"
    assert found.reason == "8 key and value heads cannot be split over 16 devices, at most over 8"
    found = refusal(work, space_of(plan, devices=1024), Mesh(dp=128, tp=8))
    assert found is not None and found.change == "--global-batch 128"
