"""The engine of an Ascend rank as far as it goes without one: its model, its sizes, and which slices it reads."""

from __future__ import annotations

import numpy as np
import pytest

from msparallel.mesh import Mesh
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.cpu
SMALL = (
    *("model.num_layers=1", "model.hidden_size=32", "model.num_heads=4", "model.num_kv_heads=2", "model.head_dim=8"),
    *("model.ffn_size=64", "model.vocab_size=100", "model.vocab_multiple=8"),
    *("serve.max_concurrency=3", "serve.max_length=200", "serve.weights=random"),
)


class Recorded:
    """Random weights that note what was asked for."""

    def __init__(self, shape):
        from msparallel.weights.source import RandomWeights

        self.asked, self._weights = {}, RandomWeights(shape)

    def read(self, name, bounds=None, whole=None):
        self.asked[name] = (tuple(bounds), tuple(whole))
        return self._weights.read(name, bounds, whole)


def plan_of(*words):
    return resolve(load_recipe("qwen3_8b_serve_tp1", [*SMALL, *words]))


def test_one_device_reads_everything_once_into_16_bits_and_norms_into_32():
    import mindspore as ms

    from msparallel.serve.paged_engine import PagedEngine

    plan, told = plan_of(), []
    engine = PagedEngine(plan, rank=0)
    weights = Recorded(plan.shape)
    engine.load(weights, told.append)
    assert engine.sizes.rows == (1, 3) and engine.sizes.chunks == (128, 200)
    assert sorted(told) == sorted(weights.asked) and len(told) == engine.parameter_count
    for parameter in engine._parameters():
        bounds, whole = weights.asked[parameter.name]
        assert whole == parameter.shape and bounds == tuple((0, length) for length in whole)
        norm = "norm" in parameter.name
        assert parameter.dtype == (ms.float32 if norm else ms.bfloat16)
        values = weights.read(parameter.name, bounds, whole)
        np.testing.assert_allclose(parameter.asnumpy().astype(np.float32), values, rtol=0 if norm else 2**-8)


def test_every_rank_reads_its_slices_only_and_together_they_are_the_whole():
    """Layouts are those that MindSpore gave for these shapes on two ranks."""
    import mindspore as ms
    from mindspore import Parameter, Tensor

    from msparallel.serve.paged_engine import fill

    shape, tp = plan_of().shape, 2
    layouts = {
        "up.weight": [[2], [0, -1], [32, 32], 0, True, "", [64, 32]],
        "down.weight": [[2], [-1, 0], [32, 32], 0, True, "", [32, 64]],
        "norm.weight": [[2], [-1], [32], 0, True, "", [32]],
    }
    held, asked = [], []
    for rank in range(tp):
        parameters = [
            Parameter(Tensor(np.zeros(layout[2], np.float32), ms.bfloat16), name=name)
            for name, layout in layouts.items()
        ]
        weights = Recorded(shape)
        fill(parameters, layouts, weights, mesh=Mesh(tp=tp), rank=rank)
        asked.append(weights.asked)
        held.append({one.name: one.asnumpy().astype(np.float32) for one in parameters})
    assert asked[1]["up.weight"] == (((32, 64), (0, 32)), (64, 32))
    assert asked[1]["down.weight"] == (((0, 32), (32, 64)), (32, 64))
    assert asked[0]["norm.weight"] == asked[1]["norm.weight"] == (((0, 32),), (32,))
    for name, axis in (("up.weight", 0), ("down.weight", 1)):
        whole = Recorded(shape).read(name, [(0, n) for n in layouts[name][6]], layouts[name][6])
        np.testing.assert_allclose(np.concatenate([one[name] for one in held], axis), whole, rtol=2**-8)


@pytest.mark.parametrize(("recipe", "kind"), [("qwen3_8b_serve_tp1", "PagedEngine"), ("serve_tiny_cpu", "Engine")])
def test_the_worker_takes_the_engine_of_its_hardware(recipe, kind):
    from msparallel.serve.worker import _engine

    words = SMALL if recipe != "serve_tiny_cpu" else ("model.num_layers=1",)
    engine = _engine(resolve(load_recipe(recipe, words)), rank=0)
    assert type(engine).__name__ == kind


def test_msrun_starts_a_worker_for_every_rank(tmp_path):
    from msparallel.serve.engine_client import EngineClient

    plan = resolve(load_recipe("qwen3_8b_serve_tp2", ["serve.weights=random"]))
    command = EngineClient(plan, tmp_path / "engine.log")._command(tmp_path / "socket")
    told = dict(zip(command, command[1:], strict=False))
    assert command[0] == "msrun" and told["--worker_num"] == told["--local_worker_num"] == "2"
    assert command[-5:-2] == ["-m", "msparallel.serve.worker", str(tmp_path / "socket")]
