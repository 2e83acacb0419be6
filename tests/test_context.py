"""The plan in MindSpore's words: one golden file for every shipped recipe.

After a change that is meant: MSPARALLEL_WRITE_GOLDEN=1 python -m pytest tests/test_context.py, then read the diff.
"""

import ast
import json
import os
from pathlib import Path

import pytest

from msparallel import context
from msparallel.plan import resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
GOLDEN = Path(__file__).parent / "golden" / "context"
NAMES = sorted(shipped_recipes())


def test_there_are_recipes():
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    plan = resolve(load_recipe(name))
    last = plan.world_size - 1
    got = f"# rank 0\n{context.context_calls(plan)}\n\n# rank {last}\n{context.context_calls(plan, last)}\n\n"
    got += f"# AutoParallel\n{context.autoparallel_text(plan)}\n"
    path = GOLDEN / f"{name}.py.txt"
    if os.environ.get("MSPARALLEL_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8")


def test_no_golden_without_a_recipe():
    assert sorted(path.name.removesuffix(".py.txt") for path in GOLDEN.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", [context.context_calls, context.autoparallel_text])
def test_the_printed_calls_are_python(name, text):
    ast.parse(text(resolve(load_recipe(name))))


def test_every_rank_differs_only_in_its_number():
    plan = resolve(load_recipe("llama2_7b_dp2_tp2_pp2"))
    for rank in range(8):
        kwargs = context.context_kwargs(plan, rank)
        assert kwargs.pop("global_rank") == rank
        assert kwargs == {key: value for key, value in context.context_kwargs(plan, 0).items() if key != "global_rank"}
    with pytest.raises(IndexError):
        context.context_kwargs(plan, 8)


BASE = "llama2_7b_dp2_tp2_pp2"
FUSED = ("allreduce", "allgather", "reducescatter")
FUSED_32 = {"mode": "size", "config": 32}
SHARD = {"parallel_optimizer_threshold": 64}
CHANGES = [
    (
        "parallel.pipeline_schedule=gpipe parallel.virtual_stages=2",
        "pipeline_config",
        {"pipeline_interleave": True, "pipeline_scheduler": "gpipe"},
    ),
    ("parallel.virtual_stages=2", "pipeline_config", {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}),
    ("parallel.optimizer_shard=true", "parallel_optimizer_config", SHARD | {"optimizer_level": "level1"}),
    ("parallel.optimizer_shard=level2", "parallel_optimizer_config", SHARD | {"optimizer_level": "level2"}),
    ("parallel.comm_fusion=none", "comm_fusion", {"openstate": False}),
    ("parallel.comm_fusion=32", "comm_fusion", {"openstate": True, **dict.fromkeys(FUSED, FUSED_32)}),
    ("parallel.strategy_save_file=s.json", "strategy_ckpt_config", {"save_file": "s.json"}),
    ("parallel.data_parallel=4", "device_num", 16),
]  # fmt: skip


@pytest.mark.parametrize(("override", "key", "value"), CHANGES)
def test_one_line_of_yaml_changes_one_argument(override, key, value):
    overrides = (
        [override, "cluster.devices_per_node=16", "cluster.hardware=atlas_900_a3"]
        if "data_parallel" in override
        else override.split()
    )
    before = context.context_kwargs(resolve(load_recipe(BASE)))
    after = context.context_kwargs(resolve(load_recipe(BASE, overrides)))
    assert after[key] == value
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    allowed = {key, "enable_parallel_optimizer"} if "optimizer_shard" in override else {key}
    allowed |= {"dataset_strategy"} if "data_parallel" in override else set()
    assert changed <= allowed


def test_both_interfaces_name_the_same_strategy_files():
    overrides = ["parallel.strategy_load_file=a/s.json", "parallel.strategy_save_file=t.ckpt"]
    plan = resolve(load_recipe("gpt2_124m_auto_load", overrides))
    files = {"load_file": "a/s.json", "save_file": "t.ckpt"}
    assert context.context_kwargs(plan)["strategy_ckpt_config"] == files
    # AutoParallel hands what these two are given to strategy_ckpt_config (MindSpore 2.9, parallel/_utils.py).
    calls = dict(context.autoparallel_calls(plan))
    assert calls["load_param_strategy_file"] == {"file_path": "a/s.json"}
    assert calls["save_param_strategy_file"] == {"file_path": "t.ckpt"}


@pytest.mark.parametrize("folder", ["it's", 'a"b', "'\"", "a\\b", "a\nb", "定义"])
def test_odd_paths_are_printed_as_python(folder):
    overrides = [f"train.output_dir={json.dumps(folder)}", f"parallel.strategy_save_file={json.dumps(folder)}"]
    plan = resolve(load_recipe("gpt2_124m_dp8", overrides))
    assert plan.recipe.train.output_dir == folder
    for text in (context.context_calls(plan), context.autoparallel_text(plan)):
        strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        assert str(context.speed_up_path(plan)) in strings and folder in strings


def test_gradient_overlap_is_a_file_not_an_argument():
    plan = resolve(load_recipe("gpt2_124m_dp8"))
    assert context.speed_up(plan) == {"grad_computation_allreduce_overlap": True}
    assert "ascend_config" in context.context_calls(plan)
    assert ("transformer_opt", {"file_path": str(context.speed_up_path(plan))}) in context.autoparallel_calls(plan)
