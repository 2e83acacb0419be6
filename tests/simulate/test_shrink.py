"""A recipe made small keeps its strategy; one device gets the same work."""

from __future__ import annotations

import numpy as np
import pytest
from matrix import CASES

from msparallel.data.batch import micro_batches
from msparallel.errors import UserError
from msparallel.plan import resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe
from msparallel.simulate.data import random_batches
from msparallel.simulate.shrink import alone, shrunk, whole
from msparallel.simulate.timed import time_recipe
from msparallel.train.rank_inputs import rank_inputs

pytestmark = pytest.mark.pure
SEARCHED = "gpt2_124m_auto_parallel"
RECIPES = {**CASES, **{name: (name,) for name in shipped_recipes()}}


def plan_of(recipe, *words):
    return resolve(load_recipe(recipe, words))


def small_of(name):
    recipe, *words = RECIPES[name]
    plan = plan_of(recipe, *words)
    return (None, None) if plan.recipe.train is None or name == SEARCHED else (plan, shrunk(plan, 3)[0])


@pytest.mark.parametrize("name", RECIPES)
def test_the_strategy_stays_and_every_size_shrinks(name):
    plan, small = small_of(name)
    if small is None:
        return
    assert small.mesh == plan.mesh
    kept = {"micro_batch_num", "stage_layers", "optimizer_shard_threshold_kib"}
    parallel = [p.recipe.parallel.model_dump(exclude=kept) for p in (plan, small)]
    assert parallel[0] == parallel[1]
    assert small.shape.parameters() <= plan.shape.parameters() and small.shape.parameters() < 500_000
    assert small.seq_length <= plan.seq_length and small.micro_batch_num <= plan.micro_batch_num
    assert small.shape.num_layers == max(2, plan.mesh.pp * plan.recipe.parallel.virtual_stages) or name == "uneven-pp2"
    assert (small.shape.num_kv_heads < small.shape.num_heads) == (plan.shape.num_kv_heads < plan.shape.num_heads)
    assert small.recipe.train.dtype == "float32" and small.attention == "plain"


@pytest.mark.parametrize("name", RECIPES)
def test_one_device_gets_the_same_model_and_the_same_sequences(name):
    _, small = small_of(name)
    if small is None:
        return
    single = alone(small)
    assert single.world_size == 1 and not single.shards
    assert single.shape == small.shape and single.global_batch_size == small.global_batch_size
    assert single.recipe.optimizer == small.recipe.optimizer
    batch = random_batches(small)(1)
    assert np.array_equal(random_batches(single)(1).input_ids, batch.input_ids)
    rows = np.concatenate([part[0] for part in rank_inputs(single, 0, batch)])
    assert np.array_equal(rows, batch.input_ids)


def test_every_row_reaches_one_replica():
    small, _ = shrunk(plan_of("llama2_7b_dp2_tp2_pp2", "parallel.pipeline_stages=1"), 3)
    batch = random_batches(small)(0)
    fed = {rank: rank_inputs(small, rank, batch)[0][0] for rank in range(small.world_size)}
    assert np.array_equal(fed[0], fed[1]) and np.array_equal(fed[2], fed[3])
    parts = [part.input_ids for part in micro_batches(batch, small.micro_batch_num)]
    mine = np.split(fed[0], small.micro_batch_num), np.split(fed[2], small.micro_batch_num)
    for part, first, second in zip(parts, *mine, strict=True):
        assert np.array_equal(part, np.concatenate([first, second]))


def test_what_is_typed_wins():
    small, changes = shrunk(plan_of("llama2_7b_dp2_tp2_pp2", "model.hidden_size=64", "train.seq_length=24"), 3)
    assert small.shape.hidden_size == 64 and small.seq_length == 24
    assert "model.hidden_size" not in changes and changes["model.num_layers"] == 2


def test_what_is_typed_and_does_not_fit_is_refused_with_what_was_changed():
    with pytest.raises(UserError, match="made small for execution: .*model.num_heads=4") as caught:
        shrunk(plan_of("llama2_7b_dp2_tp2_pp2", "model.num_kv_heads=8"), 3)
    assert "model.num_kv_heads" in str(caught.value)


@pytest.mark.parametrize("way", [shrunk, whole, lambda plan, steps: time_recipe(plan)])
def test_a_recipe_that_only_serves_is_refused(way):
    with pytest.raises(UserError, match="no `train` section"):
        way(plan_of("qwen3_8b_serve_tp1"), 3)


def test_a_search_that_needs_half_precision_is_refused_with_one_that_does_not():
    with pytest.raises(UserError, match="recursive_programming needs flash attention") as caught:
        shrunk(plan_of(SEARCHED), 3)
    suggestion = str(caught.value).rpartition("Try: ")[2]
    small, _ = shrunk(plan_of(SEARCHED, suggestion), 3)
    assert small.attention == "plain"


def test_whole_keeps_sizes():
    plan = plan_of("quickstart")
    kept, changes = whole(plan, 2)
    assert kept.shape == plan.shape and kept.seq_length == plan.seq_length
    assert all(key.partition(".")[0] in ("train", "optimizer") for key in changes)


def test_drawn_tokens_are_documents_of_uneven_length():
    small, _ = shrunk(plan_of("llama2_7b_dp2_tp2_pp2"), 3)
    draw = random_batches(small)
    batch = draw(0)
    assert np.array_equal(batch.input_ids[:, 1:], batch.labels[:, :-1])
    assert not np.array_equal(batch.input_ids, draw(1).input_ids)
    starts = np.diff(batch.segment_ids, axis=1) > 0
    assert (batch.position_ids[:, 1:][starts] == 0).all() and (batch.position_ids[:, 0] == 0).all()
    assert (batch.loss_mask[:, :-1][starts] == 0).all()
    assert 0 < batch.valid_tokens < batch.loss_mask.size
    valid = batch.loss_mask.sum(axis=1)
    assert len(set(valid.tolist())) > 1
