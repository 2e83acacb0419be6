"""The model as a whole: parameter count and names, batch sizes, documents, gradients, switches that must not matter."""

import mindspore as ms
import numpy as np
import pytest
from hf_fixture import batch, load, model_with_weights
from mindspore import Tensor, nn

from msparallel.model.shape import ModelShape
from msparallel.model.transformer import build_model
from msparallel.parallel_config import OpParallelConfig

pytestmark = pytest.mark.cpu

ONE = OpParallelConfig(sharded=False)
SMALL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "vocab_size": 61}
GPT2 = {
    **SMALL,
    "position": "learned",
    "max_positions": 16,
    "norm": "layer",
    "activation": "gelu",
    "attention_bias": True,
    "output_bias": True,
    "ffn_bias": True,
    "tie_embeddings": True,
}
EXPERTS = {**SMALL, "num_experts": 4, "experts_per_token": 2, "expert_ffn_size": 16, "router_aux_loss": 0.1}
QWEN3 = {**SMALL, "num_kv_heads": 1, "head_dim": 16, "qk_norm": True, "vocab_multiple": 64}


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


def inputs(batch_size: int, seq: int, vocab: int = 61, seed: int = 0) -> list[Tensor]:
    random = np.random.RandomState(seed)
    ids = random.randint(0, vocab, (batch_size, seq)).astype(np.int32)
    weights = np.full((batch_size, seq), 1 / (batch_size * seq), np.float32)
    positions = np.tile(np.arange(seq, dtype=np.int32), (batch_size, 1))
    return [Tensor(a) for a in (ids, np.roll(ids, -1, 1), weights, positions, np.zeros_like(ids))]


@pytest.mark.parametrize("shape", [SMALL, GPT2, QWEN3, EXPERTS], ids=["llama", "gpt2", "qwen3", "experts"])
def test_parameters_are_as_many_as_the_shape_says(shape):
    shape = ModelShape(**shape)
    model = build_model(shape, ONE, seq_length=16)
    parameters = model.trainable_params()
    assert sum(parameter.size for parameter in parameters) == shape.parameters()
    assert {parameter.dtype for parameter in parameters} == {ms.float32}


def test_loss_of_a_new_model_is_that_of_a_guess_in_both_forms():
    shape = ModelShape(**{**QWEN3, "init_std": 0.002})
    for parallel in (ONE, OpParallelConfig()):
        loss = float(build_model(shape, parallel, seq_length=16)(*inputs(2, 16)))
        assert loss == pytest.approx(np.log(61), abs=0.01)


def test_another_batch_size_and_a_shorter_sequence():
    model = build_model(ModelShape(**SMALL), ONE, seq_length=16, seed=3)
    ids, labels, weights, positions, segments = inputs(4, 16)
    whole = model.transformer(ids, positions, segments)[0].asnumpy().reshape(4, 16, -1)
    one = model.transformer(ids[:1, :9], positions[:1, :9], segments[:1, :9])[0].asnumpy()
    np.testing.assert_allclose(one, whole[0, :9], atol=1e-5)


def test_a_token_sees_nothing_behind_it_and_nothing_of_other_documents():
    model = build_model(ModelShape(**{**SMALL, "init_std": 0.3}), ONE, seq_length=16)
    ids, _, _, positions, _ = inputs(1, 16)
    segments = Tensor(np.repeat([[0, 1]], 8, 1).astype(np.int32))
    before = model.transformer(ids, positions, segments)[0].asnumpy()
    changed = ids.asnumpy()
    changed[0, 11] = (changed[0, 11] + 1) % 61
    after = model.transformer(Tensor(changed), positions, segments)[0].asnumpy()
    differs = np.abs(after - before).max(1) > 1e-6
    assert not differs[:11].any()
    assert differs[11:].all()
    changed[0, 3] = (changed[0, 3] + 1) % 61
    again = model.transformer(Tensor(changed), positions, segments)[0].asnumpy()
    assert np.array_equal(again[8:], after[8:])


class TextLoss(nn.Cell):
    def __init__(self, model):
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, input_ids, labels, loss_weights, position_ids, segment_ids):
        return self.model.text_loss(input_ids, labels, loss_weights, position_ids, segment_ids)


def test_every_layer_adds_its_auxiliary_loss_to_the_training_loss():
    model = build_model(ModelShape(**EXPERTS), ONE, seq_length=16)
    batch = inputs(3, 16)
    text, aux = TextLoss(model)(*batch)
    assert aux.shape == (3,)
    assert float(model(*batch)) == pytest.approx(float(text) + 0.1 * float(aux.mean()), rel=1e-5)
    one_layer = build_model(ModelShape(**{**EXPERTS, "num_layers": 1}), ONE, seq_length=16)
    # A balanced layer's loss is about 1, so two layers' sum is about twice that of one.
    assert float(aux.mean()) == pytest.approx(2 * float(TextLoss(one_layer)(*batch)[1].mean()), rel=0.1)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recompute_changes_no_gradient(recompute):
    shape, arrays = load("llama")

    def gradients(parallel):
        model = model_with_weights(shape, arrays, parallel)
        weights = ms.ParameterTuple(model.trainable_params())
        return ms.ops.GradOperation(get_by_list=True)(model, weights)(*batch(arrays))

    plain = gradients(ONE)
    again = gradients(OpParallelConfig(sharded=False, recompute=recompute))
    for one, other in zip(plain, again, strict=True):
        np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), atol=1e-6)


def test_float16_stays_close_to_float32():
    shape, arrays = load("qwen3")
    exact = model_with_weights(shape, arrays)(*batch(arrays))
    rough = model_with_weights(shape, arrays, compute_dtype=ms.float16)(*batch(arrays))
    assert rough.dtype == ms.float32
    assert float(rough) == pytest.approx(float(exact), rel=5e-3)
    assert float(rough) != float(exact)
