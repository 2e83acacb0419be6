"""Seconds of a step: the schedule against a walk of all its tasks, and what must hold for every strategy."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.hardware import Hardware, load_hardware
from msparallel.hardware.speed import Speed
from msparallel.mesh import Mesh
from msparallel.model.presets import PRESETS
from msparallel.plan import resolve
from msparallel.planner.estimate import StepTime
from msparallel.planner.layer_time import layer_time
from msparallel.planner.pipeline import pipeline_tasks
from msparallel.planner.reasons import reasons
from msparallel.planner.stack import MSPARALLEL, megatron
from msparallel.planner.step_time import step_time
from msparallel.planner.workload import Workload, workload_of
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
A2 = load_hardware("atlas_900_a2")
MEGATRON = megatron("bfloat16")


def work(**changes) -> Workload:
    whole = Workload(
        shape=PRESETS["llama2_7b"],
        mesh=Mesh(pp=4),
        devices_per_node=8,
        stage_layers=(8, 8, 8, 8),
        micro_batch_size=1,
        micro_batch_num=16,
        seq_length=4096,
        dtype="bfloat16",
        stack=MSPARALLEL,
        vocab_parallel=True,
    )
    return replace(whole, **changes)


# The schedule

UNEVEN = [(8, 8, 8, 8), (7, 9, 9, 7), (6, 8, 9, 9), (9, 9, 8, 6), (8, 8, 8, 7)]


@pytest.mark.parametrize("stage_layers", UNEVEN)
@pytest.mark.parametrize("count", [1, 4, 16, 64])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_formula_of_a_pipeline_against_a_walk_of_its_tasks(stage_layers, count, schedule):
    """Messages apart. The formula is exact where the last stage sets the pace; behind an earlier one later stages catch
    up, which it does not see, and which matters where micro-batches are as few as stages."""
    one = work(stage_layers=stage_layers, micro_batch_num=count, schedule=schedule)
    time = step_time(one, A2)
    walked = max(task.end_s for task in pipeline_tasks(one, A2, count))
    formula = time.compute_s + time.recompute_s + time.bubble_s
    assert walked <= formula * 1.0001
    assert formula == pytest.approx(walked, rel=0.07 if count < 16 else 0.025)


@pytest.mark.parametrize("stage_layers", [(4,) * 8, (2,) * 16, (3, 4, 4, 4, 4, 4, 4, 5)])
@pytest.mark.parametrize("count", [4, 8, 64])
def test_the_formula_of_interleaved_groups_against_a_walk_of_their_tasks(stage_layers, count):
    one = work(stage_layers=stage_layers, micro_batch_num=count)
    time = step_time(one, A2)
    walked = max(task.end_s for task in pipeline_tasks(one, A2, count))
    assert time.compute_s + time.recompute_s + time.bubble_s == pytest.approx(walked, rel=0.015)


def test_equal_stages_wait_as_published():
    """(p - 1) / (v m) of the work; embedding and head left out, they are not alike."""
    shape = replace(PRESETS["llama2_7b"], vocab_size=16)
    for groups, layers in ((1, 8), (2, 4), (4, 2)):
        one = work(shape=shape, stage_layers=(layers,) * 4 * groups)
        time = step_time(one, A2)
        assert time.bubble_s / (time.compute_s + time.recompute_s) == pytest.approx(3 / (groups * 16), rel=0.02)


def test_recomputed_layers_count_on_their_stage_only():
    one = work(recompute="full", recomputed_layers=(4, 0, 0, 0), stage_layers=(9, 8, 8, 7))
    assert step_time(one, A2).recompute_s == pytest.approx(16 * 4 * layer_time(one, A2).again.compute_s)


def test_software_that_waits_for_transfers_does_so_for_every_micro_batch():
    apart, waits = (step_time(work(stack=stack), A2).exposed_s["pp"] for stack in (MSPARALLEL, MEGATRON))
    hop_s = Speed(A2, 8).transfer(4, 1, 2 * 4096 * 4096)
    assert apart == pytest.approx(6 * hop_s)
    assert waits == pytest.approx((6 + 2 * 15) * hop_s)


# The end of a step


def numbers(one: Workload) -> int:
    """Parameters of the model but norms."""
    shape = one.shape
    return shape.parameters() - (2 * shape.num_layers + 1) * shape.hidden_size


@pytest.mark.parametrize(
    ("level", "often"), [("none", (0, 1)), ("level1", (1, 1)), ("level2", (8, 1)), ("level3", (8, 16))]
)
def test_what_replicas_send(level, often):
    """docs/10_what_is_sent.md: gradients in float32, weights in 16 bits once they are cast."""
    one = work(mesh=Mesh(dp=8), stage_layers=(32,), micro_batch_num=8, optimizer_shard=level)
    speed, count = Speed(A2, 8), numbers(one)
    if level == "none":
        wanted = speed.seconds("AllReduce", 8, 1, 4 * count)
    else:
        wanted = often[0] * speed.seconds("ReduceScatter", 8, 1, 4 * count)
        wanted += often[1] * speed.seconds("AllGather", 8, 1, 2 * count)
    assert step_time(one, A2).exposed_s["dp"] == pytest.approx(wanted, rel=1e-3)


def test_gradients_that_overlap_hide_behind_the_backward_pass():
    apart, hidden = (
        step_time(work(mesh=Mesh(dp=8), stage_layers=(32,), overlap_gradients=on), A2).exposed_s["dp"]
        for on in (False, True)
    )
    assert hidden < apart


def test_the_update_moves_state_over_the_memory_of_those_that_share_it():
    whole, shared = (
        step_time(work(mesh=Mesh(dp=8), stage_layers=(32,), optimizer_shard=level), A2).optimizer_s
        for level in ("none", "level1")
    )
    assert whole == pytest.approx(8 * shared)
    assert whole == pytest.approx(Speed(A2, 8).moved(40 * numbers(work())), rel=1e-3)


# Everything


def together(time: StepTime) -> float:
    parts = [*time.compute_parts_s.values(), time.recompute_s, *time.exposed_s.values(), time.bubble_s]
    return sum(parts) + time.optimizer_s


@st.composite
def workloads(draw) -> Workload:
    """Of Llama 2 7B and Qwen3 30B-A3B on one to sixteen servers, degrees that are no powers of two among them."""
    shape = PRESETS[draw(st.sampled_from(["llama2_7b", "qwen3_30b_a3b", "gpt2_124m"]))]
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2, 3, 4]))
    dp, cp = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2]))
    groups = pp * (draw(st.sampled_from([1, 2])) if pp > 1 else 1)
    base, more = divmod(shape.num_layers, groups)
    return Workload(
        shape=shape,
        mesh=Mesh(pp=pp, dp=dp, cp=cp, tp=tp),
        devices_per_node=draw(st.sampled_from([4, 8])),
        stage_layers=tuple(base + (group < more) for group in range(groups)),
        micro_batch_size=draw(st.integers(1, 4)),
        micro_batch_num=draw(st.integers(1, 24)),
        seq_length=draw(st.sampled_from([512, 4096])),
        dtype="bfloat16",
        stack=draw(st.sampled_from([MSPARALLEL, MEGATRON])),
        expert_parallel=tp * cp if shape.num_experts else 1,
        sequence_parallel=draw(st.booleans()),
        vocab_parallel=draw(st.booleans()),
        context_parallel_algo=draw(st.sampled_from(["ring", "ulysses", "all_gather"])),
        attention=draw(st.sampled_from(["flash", "plain"])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        optimizer_shard=draw(st.sampled_from(["none", "level1", "level2", "level3"])),
        overlap_gradients=draw(st.booleans()),
        overlap_tensor=draw(st.booleans()),
    )


def faster(machine: Hardware, part: str, by: float) -> Hardware:
    """The same machine with more bandwidth: in memory, or on a level of links."""
    if part == "memory":
        memory = machine.memory.model_copy(update={"bandwidth_gb_s": machine.memory.bandwidth_gb_s * by})
        return machine.model_copy(update={"memory": memory})
    links = [
        link.model_copy(
            update={"bandwidth_gb_s": link.bandwidth_gb_s * by, "most_gb_s": link.most_gb_s and link.most_gb_s * by}
        )
        if link.name == part
        else link
        for link in machine.links
    ]
    return machine.model_copy(update={"links": links})


@settings(max_examples=150, deadline=None)
@given(workloads())
def test_parts_add_up_and_are_no_less_than_nothing(one):
    time = step_time(one, A2)
    assert together(time) == pytest.approx(time.step_s)
    assert sum(time.compute_parts_s.values()) == pytest.approx(time.compute_s)
    assert min(*time.compute_parts_s.values(), *time.exposed_s.values(), time.bubble_s, time.optimizer_s) >= 0
    assert time.recompute_s >= 0 and time.flops > 0


@settings(max_examples=150, deadline=None)
@given(workloads(), st.sampled_from(["memory", "HCCS", "RoCE"]), st.floats(1.1, 4))
def test_bandwidth_never_makes_a_step_slower(one, part, by):
    assert step_time(one, faster(A2, part, by)).step_s <= step_time(one, A2).step_s * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(workloads())
def test_recomputation_never_makes_a_step_faster(one):
    steps = [step_time(replace(one, recompute=kind), A2).step_s for kind in ("none", "selective", "full")]
    assert all(less <= more * (1 + 1e-9) for less, more in pairwise(steps))


@settings(max_examples=150, deadline=None)
@given(workloads(), st.integers(1, 24))
def test_more_micro_batches_never_raise_the_share_of_the_bubble(one, more):
    counts = (one.micro_batch_num, one.micro_batch_num + more)
    few, many = (step_time(replace(one, micro_batch_num=count), A2) for count in counts)
    assert many.bubble_s / many.step_s <= few.bubble_s / few.step_s * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(workloads())
def test_reasons_are_what_a_step_takes_beside_operations_at_the_peak(one):
    time = step_time(one, A2)
    found = reasons(one, time)
    assert [reason.seconds for reason in found] == sorted((reason.seconds for reason in found), reverse=True)
    assert sum(reason.seconds for reason in found) + sum(time.peak_parts_s.values()) == pytest.approx(time.step_s)
    assert all(reason.hint.endswith(".") and 0 < reason.share < 1 for reason in found)


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_has_a_time(name):
    plan = resolve(load_recipe(name))
    if plan.recipe.train is None or plan.recipe.parallel.mode == "auto_parallel":
        return
    time = step_time(workload_of(plan), plan.hardware)
    assert 0 < sum(time.peak_parts_s.values()) < time.step_s


def hint(name: str, one: Workload) -> str:
    return next(reason.hint for reason in reasons(one, step_time(one, A2)) if reason.name == name)


def test_hints_name_what_would_change():
    assert "sequence_parallel" in hint("operators that only move memory", work(mesh=Mesh(pp=4, tp=8)))
    assert "level1" in hint("waits for dp", work(mesh=Mesh(pp=4, dp=2), optimizer_shard="level2"))
    assert "overlap_gradients" in hint("waits for dp", work(mesh=Mesh(pp=4, dp=2)))
    assert "micro-batches for 4 stages" in hint("bubble", work(micro_batch_num=4))
    assert "virtual_stages 2" in hint("bubble", work(micro_batch_num=64))
    assert "selective" in hint("recomputation", work(recompute="full"))
    assert "crosses servers" in hint("waits for tp", work(mesh=Mesh(pp=4, tp=16)))
    assert "all_gather" in hint("waits for cp", work(mesh=Mesh(pp=4, cp=2), context_parallel_algo="ulysses"))
