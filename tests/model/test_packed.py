"""Packed layers have the weights of the separate ones, in their order, whatever the model has."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest

from msparallel.model.shape import ModelShape
from msparallel.serve.engine import Engine

pytestmark = pytest.mark.cpu
SIZES = {"num_layers": 1, "hidden_size": 16, "num_heads": 4, "head_dim": 8, "ffn_size": 24, "vocab_size": 40}
KINDS = {
    "grouped, norms": {"num_kv_heads": 2, "qk_norm": True},
    "one key head, norms": {"num_kv_heads": 1, "qk_norm": True},
    "no grouping, biases": {"num_kv_heads": 4, "attention_bias": True},
}


class Drawn:
    """Values by name; remembers what was asked for."""

    def __init__(self):
        self.asked: dict[str, tuple[int, ...]] = {}

    def read(self, name, bounds=None, whole=None):
        assert name not in self.asked
        self.asked[name] = tuple(whole)
        return np.random.default_rng(len(name) + sum(map(ord, name))).standard_normal(tuple(whole)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_training_is_read_once_and_stands_in_its_place(kind):
    ms.set_context(mode=ms.GRAPH_MODE)
    shape = ModelShape(**SIZES, **KINDS[kind])
    engine, drawn = Engine(shape, slots=2, length=16), Drawn()
    engine.load(drawn)
    layer, kv, d = "model.layers.0.", shape.num_kv_heads, shape.head_dim
    assert drawn.asked[f"{layer}self_attn.q_proj.weight"] == (32, 16)
    for name in ("k_proj", "v_proj"):
        assert drawn.asked[f"{layer}self_attn.{name}.weight"] == (kv * d, 16)
    assert drawn.asked[f"{layer}mlp.gate_proj.weight"] == drawn.asked[f"{layer}mlp.up_proj.weight"] == (24, 16)
    held = {one.name: one.asnumpy() for one in engine._parameters()}
    for name, (rows, width) in engine._matrices.items():
        held[name] = held[name].transpose(0, 2, 1).reshape(-1, width)[:rows]
    fresh = Drawn()

    def part(name):
        return fresh.read(layer + name, whole=drawn.asked[layer + name])

    def together(names):
        return np.concatenate([part(name) for name in names])

    names = ("q_proj", "k_proj", "v_proj")
    np.testing.assert_array_equal(
        held[f"{layer}self_attn.qkv_proj.weight"], together(f"self_attn.{one}.weight" for one in names)
    )
    np.testing.assert_array_equal(
        held[f"{layer}mlp.gate_up_proj.weight"], together(("mlp.gate_proj.weight", "mlp.up_proj.weight"))
    )
    if shape.attention_bias:
        np.testing.assert_array_equal(
            held[f"{layer}self_attn.qkv_proj.bias"], together(f"self_attn.{one}.bias" for one in names)
        )
    if shape.qk_norm:
        assert drawn.asked[f"{layer}self_attn.q_norm.weight"] == drawn.asked[f"{layer}self_attn.k_norm.weight"] == (d,)
        norms = held[f"{layer}self_attn.qk_norm.weight"]
        assert norms.shape == (2, d)
        assert (norms[0] == part("self_attn.q_norm.weight")).all()
        assert (norms[1] == part("self_attn.k_norm.weight")).all()
