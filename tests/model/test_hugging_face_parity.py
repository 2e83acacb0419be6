"""Our blocks against Hugging Face transformers: logits, loss and every gradient, on packed documents."""

import mindspore as ms
import numpy as np
import pytest
from hf_fixture import PADDED_ROWS, batch, load, model_with_weights
from mindspore import nn

from msparallel.parallel_config import OpParallelConfig

pytestmark = pytest.mark.cpu

KINDS = ("llama", "qwen2", "qwen3", "gpt2")
UNCUT = OpParallelConfig(sharded=True)
"""All degrees 1: the operators of the sharded form, which on one device must compute the same."""


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


class LossAndGradients(nn.Cell):
    def __init__(self, model):
        super().__init__(auto_prefix=False)
        self.model = model
        self.gradient = ms.ops.GradOperation(get_by_list=True)
        self.weights = ms.ParameterTuple(model.trainable_params())

    def construct(self, *inputs):
        return self.model(*inputs), self.gradient(self.model, self.weights)(*inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallel", [None, UNCUT], ids=["one_device", "sharded_form"])
def test_logits(kind, parallel):
    shape, arrays = load(kind)
    model = model_with_weights(shape, arrays, parallel)
    ids, _, _, positions, segments = batch(arrays)
    logits = model.transformer(ids, positions, segments)[0].asnumpy().reshape(*ids.shape, -1)
    real, padding = logits[..., : shape.vocab_size], logits[..., shape.vocab_size :]
    np.testing.assert_allclose(real, arrays["logits"], atol=1e-4, rtol=0)
    assert padding.shape[-1] == 3
    assert padding.max() < real.min() - 1e6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallel", [None, UNCUT], ids=["one_device", "sharded_form"])
def test_loss_and_gradients(kind, parallel):
    shape, arrays = load(kind)
    model = model_with_weights(shape, arrays, parallel)
    step = LossAndGradients(model)
    loss, gradients = step(*batch(arrays))
    assert abs(float(loss) - float(arrays["loss"][0])) < 1e-5 * float(arrays["loss"][0])
    names = {name.removeprefix("gradient.") for name in arrays if name.startswith("gradient.")}
    assert {parameter.name for parameter in step.weights} == names
    for parameter, gradient in zip(step.weights, gradients, strict=True):
        expected, got = arrays[f"gradient.{parameter.name}"], gradient.asnumpy()
        if parameter.name in PADDED_ROWS:
            assert not got[shape.vocab_size :].any()
            got = got[: shape.vocab_size]
        # GPT-2's key bias shifts all scores of a query alike: its true gradient is 0, both sides hold rounding.
        limit = 1e-3 * np.abs(expected).max() + 1e-7
        np.testing.assert_allclose(got, expected, atol=limit, rtol=0, err_msg=parameter.name)
