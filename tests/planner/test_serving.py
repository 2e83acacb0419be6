"""Memory of serving: keys and values by hand, limits that are tight, monotone in what is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msparallel.model.presets import PRESETS
from msparallel.plan import resolve
from msparallel.planner.serving import ServingMemory, serving_memory, serving_weights_bytes, token_cache_bytes
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure

GIB = 2**30


def serve(*overrides: str, recipe: str = "qwen3_8b_serve_tp2") -> ServingMemory:
    return serving_memory(resolve(load_recipe(recipe, overrides)))


def test_keys_and_values_of_qwen3_8b() -> None:
    shape = resolve(load_recipe("qwen3_8b_serve_tp1")).shape
    assert token_cache_bytes(shape) == 2 * 36 * 8 * 128 * 2 == 147_456
    assert 8 * 2048 * token_cache_bytes(shape) == 2.25 * GIB
    assert token_cache_bytes(shape, tp=8) == token_cache_bytes(shape) // 8


def test_weights_are_two_bytes_a_parameter_and_norms_four() -> None:
    plan = resolve(load_recipe("qwen3_8b_serve_tp1"))
    norms = plan.shape.num_layers * (2 * 4096 + 2 * 128) + 4096
    assert serving_weights_bytes(plan) == 2 * plan.shape.parameters() + 2 * norms
    cut = serving_weights_bytes(resolve(load_recipe("qwen3_8b_serve_tp2")))
    assert cut == (serving_weights_bytes(plan) - 4 * norms) // 2 + 4 * norms


@pytest.mark.parametrize("recipe", ["qwen3_8b_serve_tp1", "qwen3_8b_serve_tp2"])
def test_shipped_recipes_fit(recipe: str) -> None:
    found = serve(recipe=recipe)
    assert found.fits and found.longest_context >= found.length and found.largest_batch >= found.batch


def test_limits_are_tight() -> None:
    found, many = serve(), "serve.max_concurrency=32"
    longest, largest = serve(many).longest_context, found.largest_batch
    assert serve(many, f"serve.max_length={longest}").fits and not serve(many, f"serve.max_length={longest + 1}").fits
    assert found.longest_context == 40_960  # the model has no more positions
    assert serve(f"serve.max_concurrency={largest}").fits and not serve(f"serve.max_concurrency={largest + 1}").fits


def test_a_model_that_does_not_fit_leaves_no_room() -> None:
    found = serve("model.preset=llama2_70b", "serve.weights=random", recipe="qwen3_8b_serve_tp1")
    assert not found.fits and found.longest_context == 0 and found.largest_batch == 0


def test_terms_add_up() -> None:
    found = serve()
    assert found.cache_bytes == (16 * 4096 + 128) * found.token_cache_bytes == 4.5 * GIB + 128 * 72 * 1024
    assert found.total_bytes == found.weights_bytes + found.cache_bytes + found.workspace_bytes < found.high_bytes
    more = replace(found, cache_bytes=found.cache_bytes * 100)
    assert not more.fits


def test_presets_have_shapes_that_can_be_served() -> None:
    assert all(token_cache_bytes(shape) > 0 for shape in PRESETS.values())


@pytest.mark.parametrize("length", [100, 128, 129, 4000])
def test_a_request_has_whole_blocks_and_one_is_spare(length: int) -> None:
    found = serve(f"serve.max_length={length}", "serve.max_concurrency=3")
    assert found.cache_bytes == (3 * -(-length // 128) + 1) * 128 * found.token_cache_bytes


def test_a_longer_prompt_takes_no_more_workspace_but_for_its_mask() -> None:
    """It is read in pieces."""
    short, long = serve("serve.max_length=1024"), serve("serve.max_length=2048")
    assert long.workspace_bytes - short.workspace_bytes == 512 * 1024 * 2


def test_logits_are_whole_on_every_device() -> None:
    many = ("serve.max_concurrency=512", "serve.max_length=128")
    assert serve(*many).workspace_bytes == serve(*many, recipe="qwen3_8b_serve_tp1").workspace_bytes == 512 * 151936 * 6
