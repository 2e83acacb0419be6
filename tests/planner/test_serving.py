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
    assert token_cache_bytes(shape, tp=8) == token_cache_bytes(shape) // 8 == token_cache_bytes(shape, tp=16)


def test_weights_are_two_bytes_a_parameter() -> None:
    plan = resolve(load_recipe("qwen3_8b_serve_tp1"))
    assert serving_weights_bytes(plan) == 2 * plan.shape.parameters()
    cut = serving_weights_bytes(resolve(load_recipe("qwen3_8b_serve_tp2")))
    norms = plan.shape.num_layers * (2 * 4096 + 2 * 128) + 4096
    assert cut == (serving_weights_bytes(plan) - 2 * norms) // 2 + 2 * norms


@pytest.mark.parametrize("recipe", ["qwen3_8b_serve_tp1", "qwen3_8b_serve_tp2"])
def test_shipped_recipes_fit(recipe: str) -> None:
    found = serve(recipe=recipe)
    assert found.fits and found.longest_context >= found.length and found.largest_batch >= found.batch


def test_limits_are_tight() -> None:
    found = serve()
    longest, largest = found.longest_context, found.largest_batch
    assert serve(f"serve.max_length={longest}").fits and not serve(f"serve.max_length={longest + 1}").fits
    assert serve(f"serve.max_concurrency={largest}").fits and not serve(f"serve.max_concurrency={largest + 1}").fits


def test_a_model_that_does_not_fit_leaves_no_room() -> None:
    found = serve("model.preset=llama2_70b", "serve.weights=random", recipe="qwen3_8b_serve_tp1")
    assert not found.fits and found.longest_context == 0 and found.largest_batch == 0


def test_terms_add_up() -> None:
    found = serve()
    assert found.cache_bytes == 16 * 4096 * found.token_cache_bytes == 4.5 * GIB
    assert found.total_bytes == found.weights_bytes + found.cache_bytes + found.workspace_bytes < found.high_bytes
    more = replace(found, cache_bytes=found.cache_bytes * 100)
    assert not more.fits


def test_presets_have_shapes_that_can_be_served() -> None:
    assert all(token_cache_bytes(shape) > 0 for shape in PRESETS.values())
