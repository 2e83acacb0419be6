"""Schedules: every task once, in an order that can be, and the bubble of the closed form."""

from __future__ import annotations

from collections import Counter

import pytest

from msparallel.plan import resolve
from msparallel.planner.pipeline import group_seconds, pipeline_tasks
from msparallel.planner.step_time import step_time
from msparallel.planner.workload import workload_of
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure

PIPELINES = [
    ("llama2_70b_dp2_tp8_pp4", []),
    ("llama2_70b_dp2_tp8_pp4", ["parallel.stage_layers=null", "parallel.virtual_stages=4"]),
    ("llama2_70b_dp2_tp8_pp4",
     ["parallel.stage_layers=null", "parallel.virtual_stages=4", "parallel.pipeline_schedule=gpipe"]),
    ("llama2_13b_dp8_tp4_pp2", []),
    ("qwen3_32b_tp4_pp4", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "overrides"), PIPELINES)
@pytest.mark.parametrize("count", [1, 3, 8, 13])
def test_every_stage_computes_every_pass_once_and_nothing_before_what_it_needs(name, overrides, count):
    plan = resolve(load_recipe(name, overrides))
    work = workload_of(plan)
    if work.virtual_stages > 1 and work.schedule == "1f1b":
        with pytest.raises(ValueError, match="no multiple"):
            pipeline_tasks(work, plan.hardware, count * work.mesh.pp + 1)
        count *= work.mesh.pp
    tasks = pipeline_tasks(work, plan.hardware, count)
    groups = len(work.stage_layers)
    assert Counter((t.group, t.micro, t.backward) for t in tasks) == Counter(
        (group, micro, backward) for group in range(groups) for micro in range(count) for backward in (False, True)
    )
    ends = {(t.group, t.micro, t.backward): t.end_s for t in tasks}
    for t in tasks:
        assert t.stage == t.group % work.mesh.pp
        before = (t.group + 1, t.micro, True) if t.backward else (t.group - 1, t.micro, False)
        assert t.start_s >= ends.get(before, 0.0)
        if t.backward:
            assert t.start_s >= ends[t.group, t.micro, False]
    for stage in range(work.mesh.pp):
        spans = sorted((t.start_s, t.end_s) for t in tasks if t.stage == stage)
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))


@pytest.mark.parametrize(("name", "overrides"), PIPELINES)
def test_the_schedule_takes_what_the_formula_says_without_messages(name, overrides):
    plan = resolve(load_recipe(name, overrides))
    work = workload_of(plan)
    time = step_time(work, plan.hardware)
    tasks = pipeline_tasks(work, plan.hardware, work.micro_batch_num)
    formula = time.compute_s + time.recompute_s + time.bubble_s + sum(time.exposed_s[a] for a in ("tp", "cp", "ep"))
    assert max(t.end_s for t in tasks) == pytest.approx(formula, rel=0.02)


def test_a_stage_keeps_as_many_micro_batches_as_stages_follow():
    plan = resolve(load_recipe("llama2_70b_dp2_tp8_pp4"))
    tasks = pipeline_tasks(workload_of(plan), plan.hardware, 16)
    for stage in range(4):
        most = held = 0
        for t in sorted((t for t in tasks if t.stage == stage), key=lambda t: t.start_s):
            held += -1 if t.backward else 1
            most = max(most, held)
        assert most == 4 - stage


def test_embedding_and_head_are_part_of_the_ends():
    plan = resolve(load_recipe("qwen3_32b_tp4_pp4"))
    seconds = group_seconds(workload_of(plan), plan.hardware)
    layers = workload_of(plan).stage_layers
    per_layer = [forward / count for (forward, _), count in zip(seconds, layers, strict=True)]
    assert per_layer[1] == pytest.approx(per_layer[2]) and per_layer[0] > per_layer[1] and per_layer[3] > per_layer[1]
