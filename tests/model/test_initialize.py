"""First values: from seed and name alone, whatever the strategy, the mode or the order of creation."""

import math

import mindspore as ms
import numpy as np
import pytest

from msparallel.model.initialize import draw_slices, initial_std, normal_values
from msparallel.model.shape import ModelShape
from msparallel.model.transformer import build_model
from msparallel.parallel_config import OpParallelConfig
from msparallel.slice import Slice

pytestmark = pytest.mark.cpu

SHAPE = ModelShape(num_layers=3, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_size=48, vocab_size=60)


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.reset_auto_parallel_context()


def values(shape: ModelShape = SHAPE, *, seed: int = 1, sharded: bool = False) -> dict[str, np.ndarray]:
    model = build_model(shape, OpParallelConfig(sharded=sharded), seq_length=16, seed=seed)
    return {parameter.name: parameter.init_data().asnumpy() for parameter in model.get_parameters()}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)


def test_the_seed_decides_and_nothing_else():
    first = values()
    ms.ops.randn(3)  # another generator's state has no part in it
    np.random.rand(5)
    assert same(first, values())
    assert not np.array_equal(first["lm_head.weight"], values(seed=2)["lm_head.weight"])


def test_no_two_matrices_are_equal():
    matrices = [value.reshape(-1)[:8] for value in values().values() if value.ndim == 2]
    assert len({matrix.tobytes() for matrix in matrices}) == len(matrices)


def test_a_layer_does_not_depend_on_the_layers_beside_it():
    deep = values(ModelShape(**{**SHAPE.__dict__, "num_layers": 3}))
    shallow = values(ModelShape(**{**SHAPE.__dict__, "num_layers": 1}))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert np.array_equal(deep[name], shallow[name])


@pytest.mark.parametrize("parts", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_slices_of_all_ranks_put_together_are_the_whole(parts):
    """Whatever the cut, in rows, columns or both, each rank holds its own part of one and the same matrix."""
    name, shape = "model.layers.0.self_attn.o_proj.weight", (8, 12)
    rows, columns = shape[0] // parts[0], shape[1] // parts[1]
    got = np.zeros(shape, np.float32)
    for row in range(parts[0]):
        for column in range(parts[1]):
            bounds = ((row * rows, row * rows + rows), (column * columns, column * columns + columns))
            parameter = ms.Parameter(ms.Tensor(np.zeros((rows, columns), np.float32)), name=name)
            draw_slices([parameter], {name: Slice(shape=shape, bounds=bounds, cut_by=((), ()))}, SHAPE, seed=1)
            got[bounds[0][0] : bounds[0][1], bounds[1][0] : bounds[1][1]] = parameter.asnumpy()
    assert np.array_equal(got, normal_values(1, name, shape, initial_std(SHAPE, name)))


def test_norms_keep_their_ones():
    parameter = ms.Parameter(ms.Tensor(np.ones(4, np.float32)), name="model.norm.weight")
    draw_slices([parameter], {parameter.name: Slice(shape=(8,), bounds=((0, 4),), cut_by=((),))}, SHAPE, seed=1)
    assert (parameter.asnumpy() == 1).all()


def test_spread_of_matrices_norms_and_biases():
    found = values(ModelShape(**{**SHAPE.__dict__, "hidden_size": 256, "attention_bias": True}))
    scaled = SHAPE.init_std / math.sqrt(2 * SHAPE.num_layers)
    assert found["model.layers.1.mlp.up_proj.weight"].std() == pytest.approx(SHAPE.init_std, rel=0.05)
    assert found["model.layers.1.mlp.down_proj.weight"].std() == pytest.approx(scaled, rel=0.05)
    assert found["model.layers.1.self_attn.o_proj.weight"].std() == pytest.approx(scaled, rel=0.05)
    assert (found["model.norm.weight"] == 1).all()
    assert not found["model.layers.2.self_attn.k_proj.bias"].any()


def test_normal_values_are_what_a_name_says():
    whole = normal_values(3, "model.norm.weight", (4, 6), 0.5)
    assert whole.dtype == np.float32
    assert initial_std(SHAPE, "model.layers.0.mlp.experts.down_proj") < initial_std(SHAPE, "lm_head.weight")


def test_a_model_larger_than_memory_is_built_without_its_values():
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=1)
    shape = ModelShape(
        num_layers=2, hidden_size=65536, num_heads=512, num_kv_heads=8, ffn_size=262144, vocab_size=1000000
    )
    model = build_model(shape, OpParallelConfig(), seq_length=16)
    held = sum(math.prod(parameter.shape) for parameter in model.get_parameters())
    assert held == shape.parameters() > 200e9  # 800 GB of values
