"""The search against asking every strategy, on spaces small enough for that; rejections and changes against memory."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from legal_strategies import legal, planned

from msparallel.hardware import Hardware, load_hardware
from msparallel.planner.estimate import estimate, fits, limit_bytes
from msparallel.planner.memory import stage_memories
from msparallel.planner.search.changes import other_settings, smallest_changes
from msparallel.planner.search.overrides import space_of
from msparallel.planner.search.rejected import rejections
from msparallel.planner.search.rules import refusal
from msparallel.planner.search.search import floor_s, search
from msparallel.planner.search.space import Space, meshes, strategies, with_batch
from msparallel.planner.step_time import step_time
from msparallel.planner.workload import Workload, workload_of
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.override import format_override

pytestmark = pytest.mark.pure

SMALL = [
    ("llama2_7b_dp2_tp2_pp2", 8, 32),
    ("llama2_13b_dp4_tp4_pp2", 16, 32),
    ("qwen3_8b_cp4_tp2", 8, 4),
    ("qwen3_30b_a3b_dp8_pp2_ep8", 16, 16),
    ("gpt2_124m_dp8", 8, 64),
    ("llama2_7b_dp2_tp2_pp2", 24, 48),
]
LARGE = [("llama2_70b_dp2_tp8_pp4", 64, 64), ("llama2_70b_dp2_tp8_pp4", 1024, 1024),
         ("qwen3_32b_tp4_pp4", 96, 96)]  # fmt: skip


def asked(name: str, devices: int, batch: int) -> tuple[Workload, Hardware, Space]:
    plan = planned(name)
    return workload_of(plan), plan.hardware, space_of(plan, devices=devices, global_batch_size=batch)


@pytest.mark.parametrize(("name", "devices", "batch"), SMALL)
def test_it_finds_what_asking_every_strategy_finds(name, devices, batch):
    work, hardware, space = asked(name, devices, batch)
    everything = legal(work, space)
    roomy = [one for one in everything if fits(one, hardware)]
    best: dict[tuple[object, ...], float] = {}
    for one in roomy:
        key = (one.mesh, one.expert_parallel)
        best[key] = min(best.get(key, float("inf")), step_time(one, hardware).step_s)
    found = search(work, hardware, space, top=5)
    assert found.legal == len(everything)
    assert found.fitting == len(roomy)
    assert [one.time.step_s for one in found.candidates] == pytest.approx(sorted(best.values())[:5])
    for one in found.candidates:
        assert one.fits and one.work in roomy
    assert found.timed <= len(roomy)


@pytest.mark.parametrize(("name", "devices", "batch"), [*SMALL, *LARGE])
def test_the_bound_is_below_every_step(name, devices, batch):
    work, hardware, space = asked(name, devices, batch)
    everything = legal(work, space)
    for one in random.Random(2).sample(everything, min(200, len(everything))):
        assert 0 < floor_s(one, hardware) <= step_time(one, hardware).step_s * (1 + 1e-9), one


@pytest.mark.parametrize(("name", "devices", "batch"), [*SMALL, *LARGE])
def test_memory_grows_with_the_micro_batch_and_recomputing_more_does_not_lengthen_a_fit(name, devices, batch):
    """What bisection stands on. More recomputation may take a little more where a stage keeps next to nothing; and a
    larger micro-batch a little less, far above the limit, where fewer of them are under way with casts of weights."""
    work, hardware, space = asked(name, devices, batch)

    lists = [levels for mesh in meshes(space) if refusal(work, space, mesh) is None
             for levels in strategies(work, space, mesh)]  # fmt: skip
    for levels in random.Random(3).sample(lists, min(60, len(lists))):
        for chosen, sizes in levels:
            ones = [with_batch(chosen, space, size) for size in sizes]
            roomy = [fits(one, hardware) for one in ones if one.micro_batch_num > 1 or one.mesh.pp > 1]
            assert roomy == sorted(roomy, reverse=True), chosen
        times = [step_time(with_batch(chosen, space, sizes[0]), hardware).step_s for chosen, sizes in levels]
        assert times == sorted(times)


def test_candidates_are_written_as_overrides_that_come_out_as_they_are():
    plan = planned("llama2_70b_dp2_tp8_pp4")
    from msparallel.planner.search.overrides import overrides_of

    for devices, batch in ((64, 64), (1024, 1024), (96, 192)):
        found = search(workload_of(plan), plan.hardware, space_of(plan, devices=devices, global_batch_size=batch))
        assert len(found.candidates) == 5
        for one in found.candidates:
            typed = [format_override(key, value) for key, value in overrides_of(plan, one.work).items()]
            again = planned("llama2_70b_dp2_tp8_pp4", *typed)
            assert estimate(workload_of(again), again.hardware) == one


@pytest.mark.parametrize("devices", [7, 24, 96, 1000, 1024])
def test_any_number_of_devices_is_answered(devices):
    plan = planned("llama2_70b_dp2_tp8_pp4")
    space = space_of(plan, devices=devices)
    found = search(workload_of(plan), plan.hardware, space)
    if found.candidates:
        assert all(one.work.mesh.size == devices and one.work.global_batch_size == 64 for one in found.candidates)
        return
    changes = smallest_changes(workload_of(plan), plan.hardware, space)
    assert changes
    for change in changes:
        assert fits(change.work, plan.hardware), change
    if devices == 1000:
        assert changes[0].told == "--global-batch 125"
    assert rejections(found)


def test_seven_devices_run_replicas_of_a_small_model():
    plan = planned("gpt2_124m_dp8", "train.dtype=float16")
    found = search(workload_of(plan), plan.hardware, space_of(plan, devices=7, global_batch_size=56))
    assert [str(one.work.mesh) for one in found.candidates] == ["dp7 (7)"]


def test_a_family_without_room_says_what_its_lightest_needs_and_the_change_works():
    plan = planned("llama2_70b_dp2_tp8_pp4")
    work, space = workload_of(plan), space_of(plan)
    found = search(work, plan.hardware, space)
    without = [one for one in rejections(found) if one.rule == "memory"]
    assert without
    everything = legal(work, space)
    for one in without:
        alike = [other for other in everything if all(_setting(other, key) == value
                 for key, value in one.settings.items())]  # fmt: skip
        assert len(alike) == one.count
        least = min(max(stage.high_bytes for stage in stage_memories(other)) for other in alike)
        assert one.needs_bytes == least > limit_bytes(plan.hardware, 8)
        assert f"{least / 2**30:.1f} GiB" in one.reason
        assert one.change
        there = dict(re.findall(r"(pipeline_stages|model_parallel) (\d+)", one.change.split(", or ")[0]))
        wanted = {**one.settings, **{key: int(value) for key, value in there.items()}}
        assert any(fits(other, plan.hardware) for other in everything if all(
            _setting(other, key) == value for key, value in wanted.items()))  # fmt: skip


def test_more_devices_and_shorter_sequences_let_a_family_in():
    plan = planned("llama2_7b_dp2_tp2_pp2", "train.seq_length=4096")
    work, space = workload_of(plan), space_of(plan, devices=2)
    found, seen = search(work, plan.hardware, space), set()
    for one in rejections(found):
        key = (one.settings.get("pipeline_stages"), one.settings.get("model_parallel"))
        more = re.search(r"(\d+) devices \(data_parallel (\d+)(?:.*global batch of (\d+))?", one.change)
        if more and None not in key:
            seen.add("devices")
            batch = int(more[3]) if more[3] else space.global_batch_size
            wider = replace(space, devices=int(more[1]), devices_per_node=min(8, int(more[1])), global_batch_size=batch)
            assert search(work, plan.hardware, wider).families[key].fitting, one
        shorter = re.search(r"train.seq_length=(\d+)", one.change)
        if shorter and None not in key:
            seen.add("sequence")
            short = replace(work, seq_length=int(shorter[1]))
            assert search(short, plan.hardware, space).families[key].fitting, one
    assert "devices" in seen


def _setting(work: Workload, key: str) -> object:
    return {"pipeline_stages": work.mesh.pp, "model_parallel": work.mesh.tp, "recompute": work.recompute,
            "optimizer_shard": work.optimizer_shard, "sequence_parallel": work.sequence_parallel}[key]  # fmt: skip


def test_what_helps_where_nothing_fits_is_the_smallest_of_its_kind():
    plan = planned("llama2_70b_dp2_tp8_pp4")
    work, space = workload_of(plan), space_of(plan, devices=8)
    assert not search(work, plan.hardware, space).candidates
    told = {change.told.partition(" ")[0]: change for change in smallest_changes(work, plan.hardware, space)}
    devices = told["--devices"].work.mesh.size
    assert fits(told["--devices"].work, plan.hardware) and devices > 8
    for fewer in range(16, devices, 8):
        assert not search(work, plan.hardware, space_of(plan, devices=fewer)).fitting, fewer


def test_a_shorter_sequence_is_proposed_where_it_is_enough():
    plan = planned("qwen3_8b_cp4_tp2", "model.max_positions=1048576", "train.seq_length=1048576")
    work, space = workload_of(plan), space_of(plan)
    assert not search(work, plan.hardware, space).candidates
    change = next(one for one in smallest_changes(work, plan.hardware, space) if one.told.startswith("train."))
    length = int(change.told.partition("=")[2])
    assert search(replace(work, seq_length=length), plan.hardware, space).candidates
    assert not search(replace(work, seq_length=length + 1048576 // 16), plan.hardware, space).candidates


def test_the_fewest_settings_that_make_a_recipe_fit():
    plan = planned("llama2_7b_dp2_tp2_pp2", "train.micro_batch_size=8", "train.global_batch_size=64")
    work = workload_of(plan)
    assert not fits(work, plan.hardware)
    found = other_settings(plan, work, space_of(plan))
    assert found is not None
    changes, best = found
    assert len(changes) == 1 and best.fits and best.work.mesh == work.mesh


def test_a_degree_that_is_auto_stays_so_where_it_follows():
    plan = planned("qwen3_8b_dp2_tp4", "parallel.recompute=none", "parallel.optimizer_shard=false")
    found = other_settings(plan, workload_of(plan), space_of(plan))
    assert found is not None and list(found[0]) == ["parallel.optimizer_shard"]


PRODUCTION = [name for name in shipped_recipes() if "serve" not in name]


@pytest.mark.parametrize("name", PRODUCTION)
def test_every_shipped_recipe_that_trains_fits(name):
    plan = planned(name)
    assert estimate(workload_of(plan), plan.hardware).fits


def test_no_search_is_faster_than_the_best_of_a_wider_space():
    plan = planned("llama2_13b_dp4_tp4_pp2")
    work, whole = workload_of(plan), space_of(plan)
    narrow = replace(whole, recompute=("full",), most_virtual_stages=1)
    best = search(work, plan.hardware, whole, top=1).candidates[0].time.step_s
    assert search(work, plan.hardware, narrow, top=1).candidates[0].time.step_s >= best


def test_a_faster_link_never_slows_the_best():
    plan = planned("llama2_13b_dp4_tp4_pp2")
    slow = load_hardware("atlas_800t_a2")
    links = [link.model_copy(update={"bandwidth_gb_s": 2 * link.bandwidth_gb_s}) for link in slow.links]
    fast = slow.model_copy(update={"links": links, "name": "twice_the_links"})
    work, space = workload_of(plan), space_of(plan)
    found = [search(work, machine, space, top=1).candidates[0].time.step_s for machine in (slow, fast)]
    assert found[1] <= found[0]


def test_workers_on_a_processor_share_its_memory():
    plan = planned("gpt_tiny_dp2_cpu")
    work = workload_of(plan)
    alone, two = (limit_bytes(plan.hardware, workers) for workers in (1, 2))
    assert two == alone // 2 == estimate(work, plan.hardware).limit_bytes
    need = max(stage.high_bytes for stage in stage_memories(work))
    assert fits(replace(work, devices_per_node=alone // need), plan.hardware)
    assert not fits(replace(work, devices_per_node=alone // need + 1), plan.hardware)
    npu = load_hardware("atlas_800t_a2")
    assert limit_bytes(npu, 1) == limit_bytes(npu, 8)
