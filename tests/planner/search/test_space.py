"""The space of a search against the recipe's rules: what it calls legal passes all, what it refuses breaks one."""

from __future__ import annotations

import random

import pytest
from legal_strategies import legal, planned

from msparallel.planner.search.overrides import overrides_of, space_of
from msparallel.planner.search.rules import refusal
from msparallel.planner.search.space import (
    Space,
    balanced_split,
    combinations,
    head_in_layers,
    meshes,
)
from msparallel.planner.workload import workload_of
from msparallel.recipe.override import format_override, with_values
from msparallel.recipe.rules import find_problems

pytestmark = pytest.mark.pure

SPACES = [
    ("llama2_70b_dp2_tp8_pp4", None, None),
    ("llama2_70b_dp2_tp8_pp4", 1024, 1024),
    ("llama2_70b_dp2_tp8_pp4", 1000, 125),
    ("llama2_70b_dp2_tp8_pp4", 96, 96),
    ("llama2_7b_dp2_tp2_pp2", 24, 48),
    ("llama2_7b_dp2_tp2_pp2", 7, 70),
    ("llama2_7b_dp2_tp2_pp2", 4, None),
    ("llama2_7b_dp2_tp2_pp2", 1, None),
    ("llama2_13b_dp8_tp4_pp2", None, None),
    ("qwen3_8b_cp4_tp2", None, None),
    ("qwen3_8b_dp2_tp4", 16, 64),
    ("qwen3_30b_a3b_dp8_pp2_ep8", None, None),
    ("qwen3_30b_a3b_dp8_pp2_ep8", 48, 96),
    ("gpt2_124m_dp8", None, None),
    ("gpt2_124m_auto_parallel", None, None),
    ("gpt2_124m_auto_load", None, None),
    ("gpt_tiny_dp2_cpu", 4, None),
    ("quickstart", None, None),
    ("moe_tiny_cpu", 3, 24),
]


@pytest.mark.parametrize(("name", "devices", "batch"), SPACES)
def test_a_legal_strategy_is_a_recipe_that_passes_every_rule_and_comes_out_as_that_strategy(name, devices, batch):
    plan = planned(name)
    space = space_of(plan, devices=devices, global_batch_size=batch)
    found = legal(workload_of(plan), space)
    assert found
    for work in random.Random(1).sample(found, min(25, len(found))):
        changes = overrides_of(plan, work)
        recipe = with_values(plan.recipe, changes)
        assert find_problems(recipe) == [], changes
        typed = [format_override(key, value) for key, value in changes.items()]
        assert workload_of(planned(name, *typed)) == work, typed


@pytest.mark.parametrize(("name", "devices", "batch"), SPACES)
def test_what_is_refused_breaks_the_rule_that_is_named(name, devices, batch):
    plan = planned(name)
    work, space = workload_of(plan), space_of(plan, devices=devices, global_batch_size=batch)
    refused = [(mesh, found) for mesh in meshes(space) if (found := refusal(work, space, mesh))]
    for mesh, found in random.Random(1).sample(refused, min(25, len(refused))):
        uneven = 1 < mesh.pp <= work.shape.num_layers
        recipe = with_values(plan.recipe, {
            "parallel.mode": "semi_auto_parallel" if space.engine else "data_parallel",
            "parallel.data_parallel": mesh.dp, "parallel.model_parallel": mesh.tp,
            "parallel.pipeline_stages": mesh.pp, "parallel.context_parallel": mesh.cp,
            "parallel.expert_parallel": 1, "parallel.virtual_stages": 1, "parallel.micro_batch_num": None,
            "parallel.stage_layers": list(balanced_split(work, mesh.pp)) if uneven else None,
            "train.global_batch_size": space.global_batch_size, "train.micro_batch_size": 1,
            "cluster.nodes": space.devices // space.devices_per_node,
            "cluster.devices_per_node": space.devices_per_node,
        })  # fmt: skip
        rules = {problem.rule for problem in find_problems(recipe)}
        assert found.rule in rules, (mesh, found)


def test_meshes_are_all_ordered_factorizations():
    for devices in (1, 7, 24, 1000):
        found = list(meshes(Space(devices=devices, devices_per_node=8, global_batch_size=64)))
        brute = {(pp, dp, cp, tp) for pp in range(1, devices + 1) if devices % pp == 0
                 for dp in range(1, devices // pp + 1) if devices // pp % dp == 0
                 for cp in range(1, devices // pp // dp + 1) if devices // pp // dp % cp == 0
                 for tp in [devices // pp // dp // cp]}  # fmt: skip
        assert len(found) == len(brute) and {mesh.shape for mesh in found} == brute


def test_no_more_is_legal_than_is_counted():
    plan = planned("qwen3_30b_a3b_dp8_pp2_ep8")
    work, space = workload_of(plan), space_of(plan)
    counted = sum(combinations(work, space, mesh) for mesh in meshes(space))
    found = legal(work, space)
    assert len(found) == len(set(found)) <= counted


def test_a_split_by_cost_takes_the_head_from_the_last_stage():
    wide = workload_of(planned("qwen3_32b_tp4_pp4"))  # 151936 rows
    assert head_in_layers(wide) == pytest.approx(151936 / (2 * 8192 + 2 * 1024 + 3 * 25600))
    assert balanced_split(wide, 4) == (16, 16, 17, 15)  # 15 layers and a head of 1.6
    small = workload_of(planned("llama2_70b_dp2_tp8_pp4"))
    assert balanced_split(small, 4) == (20, 20, 20, 20)
    for stages in range(2, 81):
        layers = balanced_split(small, stages)
        assert sum(layers) == 80 and len(layers) == stages and min(layers) >= 1
        assert layers[-1] <= max(layers) and max(layers[:-1]) - min(layers[:-1]) <= 1




def test_context_parallel_is_looked_at_where_ranks_keep_long_parts() -> None:
    """8192 tokens and more, or what the recipe itself has."""
    short = space_of(planned("llama2_7b_dp2_tp2_pp2"))
    long = space_of(planned("qwen3_8b_cp4_tp2"))
    typed = space_of(planned("qwen3_8b_cp4_tp2", "train.seq_length=8192"))
    assert [space.most_context_parallel for space in (short, long, typed)] == [1, 4, 4]
    assert {mesh.cp for mesh in meshes(long)} == {1, 2, 4} and {mesh.cp for mesh in meshes(short)} == {1}
