"""MindSpore accepts every argument that `context_kwargs` gives it, and every `AutoParallel` call exists."""

import inspect
import os
import subprocess
import sys

import pytest

from msparallel import context
from msparallel.plan import resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.cpu
NAMES = sorted(shipped_recipes())
WRITE_ONLY = {"pipeline_config", "strategy_ckpt_config", "comm_fusion", "parallel_optimizer_config"}
"""Arguments that MindSpore checks when they are set and does not give back."""


@pytest.fixture
def mindspore():
    import mindspore

    mindspore.reset_auto_parallel_context()
    yield mindspore
    mindspore.reset_auto_parallel_context()


@pytest.mark.parametrize("name", NAMES)
def test_mindspore_takes_the_arguments(mindspore, name):
    plan = resolve(load_recipe(name))
    kwargs = context.context_kwargs(plan, plan.world_size - 1)
    mindspore.set_auto_parallel_context(**kwargs)
    for key in kwargs.keys() - WRITE_ONLY:
        got = mindspore.get_auto_parallel_context(key)
        if key == "dataset_strategy":
            got = tuple(tuple(row) for row in got)
        assert got == kwargs[key], key


def test_apply_writes_the_same_values(repo):
    """In a process of its own: a device cannot be set where kernels have run."""
    script = (
        "import mindspore\n"
        "from msparallel import context\n"
        "from msparallel.plan import resolve\n"
        "from msparallel.recipe.load import load_recipe\n"
        "context.apply(resolve(load_recipe('gpt_tiny_dp2_cpu', ['parallel.data_parallel=1'])))\n"
        "assert mindspore.get_auto_parallel_context('parallel_mode') == 'data_parallel'\n"
        "assert mindspore.get_auto_parallel_context('device_num') == 1\n"
        "assert mindspore.get_context('mode') == mindspore.GRAPH_MODE\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(repo)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_autoparallel_calls_bind(mindspore, name, tmp_path, monkeypatch):
    from mindspore.parallel.auto_parallel import AutoParallel

    calls = context.autoparallel_calls(resolve(load_recipe(name)))
    if not calls:
        return
    net = AutoParallel(mindspore.nn.ReLU(), **calls[0][1])
    for method, arguments in calls[1:]:
        inspect.signature(getattr(net, method)).bind(**arguments)
        if method != "transformer_opt":  # reads its file at once
            getattr(net, method)(**arguments)
    written = context.context_kwargs(resolve(load_recipe(name))).get("strategy_ckpt_config", {})
    assert net._load_strategy_file_path == written.get("load_file", "")
    assert net._save_strategy_file_path == written.get("save_file", "")
