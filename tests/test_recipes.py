"""The shipped recipes as a whole: every key is shown, every header holds what a reader needs."""

import re

import pytest
import yaml

from msparallel.plan import resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe
from msparallel.recipe.schema import SECTIONS

pytestmark = pytest.mark.pure
RECIPES = shipped_recipes()
PROMISED = {
    "quickstart": 1, "gpt_tiny_dp2_cpu": 2, "gpt_tiny_dp4_cpu": 4, "gpt2_124m_dp8": 8, "gpt2_124m_auto_parallel": 8,
    "llama2_7b_dp8_zero1": 8, "llama2_7b_dp2_tp2_pp2": 8, "llama2_13b_dp4_tp4_pp2": 32, "llama2_13b_dp8_tp4_pp2": 64,
    "llama2_70b_dp2_tp8_pp4": 64, "qwen3_8b_dp2_tp4": 8, "qwen3_32b_tp4_pp4": 16, "qwen3_30b_a3b_dp8_pp2_ep8": 16,
    "qwen3_8b_serve_tp1": 1, "qwen3_8b_serve_tp2": 2,
}  # fmt: skip


@pytest.mark.parametrize(("name", "devices"), PROMISED.items())
def test_devices(name, devices):
    plan = resolve(load_recipe(name))
    assert plan.world_size == devices == plan.nodes * plan.devices_per_node


def test_together_they_show_every_key():
    shown = {(section, key) for path in RECIPES.values()
             for section, values in yaml.safe_load(path.read_text(encoding="utf-8")).items()
             for key in values}  # fmt: skip
    shown.add(("serve", "api_keys_file"))  # a file of secrets, which no shipped recipe has
    missing = [f"{section}.{key}" for section, model in SECTIONS.items() for key in model.model_fields
               if (section, key) not in shown]  # fmt: skip
    assert not missing


@pytest.mark.parametrize("name", RECIPES)
def test_the_header_says_what_a_reader_needs(name):
    lines = RECIPES[name].read_text(encoding="utf-8").splitlines()
    header = "\n".join(line for line in lines[:12] if line.startswith("#"))
    for part in ("Teaches:", "Devices:", "Run:", "Try:"):
        assert re.search(rf"^# {part} +\S", header, re.MULTILINE), f"{name} has no {part}"
    run, attempt = (
        re.search(rf"^# {part} +(msparallel .*)$", header, re.MULTILINE).group(1) for part in ("Run:", "Try:")
    )
    assert name in run and name in attempt
    assert "=" in attempt


def test_the_llama2_recipe_for_swapping_strategies():
    """It states both batch sizes, derives the count and has no optimizer shard."""
    recipe = load_recipe("llama2_7b_dp2_tp2_pp2")
    assert recipe.stated("train.global_batch_size") and recipe.stated("train.micro_batch_size")
    assert not recipe.stated("parallel.micro_batch_num") and not recipe.parallel.optimizer_shard
    assert resolve(recipe).micro_batch_num == 8
    for overrides in (["parallel.model_parallel=1", "parallel.data_parallel=4"],
                      ["parallel.pipeline_stages=1", "parallel.model_parallel=4"],
                      ["parallel.data_parallel=8", "parallel.model_parallel=1", "parallel.pipeline_stages=1"],
                      ["parallel.data_parallel=1"]):  # fmt: skip
        resolve(load_recipe("llama2_7b_dp2_tp2_pp2", overrides))
