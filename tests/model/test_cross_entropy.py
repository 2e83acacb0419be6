"""The loss against NumPy in float64: both forms, padding columns, weights, and a router's share."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from msparallel.model.cross_entropy import AuxiliaryLoss, CrossEntropy, VocabParallelCrossEntropy, WeightedSum
from msparallel.model.embedding import Head
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig

pytestmark = pytest.mark.cpu

ONE = OpParallelConfig(sharded=False)
TOKENS, VOCAB = 12, 37


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


def forms() -> dict[str, nn.Cell]:
    return {"one_device": CrossEntropy(VOCAB), "vocab_parallel": VocabParallelCrossEntropy(VOCAB, ONE)}


def reference(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """-log softmax(logits)[label] in float64."""
    logits = logits.astype(np.float64)
    top = logits.max(1, keepdims=True)
    return np.log(np.exp(logits - top).sum(1)) - (logits - top)[np.arange(len(labels)), labels]


@pytest.mark.parametrize("form", ["one_device", "vocab_parallel"])
@pytest.mark.parametrize("size", [1.0, 1e4], ids=["ordinary", "exp_would_overflow"])
def test_values_and_gradient(form, size):
    random = np.random.RandomState(0)
    logits = (random.randn(TOKENS, VOCAB) * size).astype(np.float32)
    labels = random.randint(0, VOCAB, TOKENS).astype(np.int32)
    cell = forms()[form]
    losses = cell(Tensor(logits), Tensor(labels)).asnumpy()
    np.testing.assert_allclose(losses, reference(logits, labels), rtol=1e-5, atol=1e-5)

    gradient = ms.ops.GradOperation(sens_param=True)(cell)(Tensor(logits), Tensor(labels), ms.ops.ones((TOKENS,)))
    top = logits.astype(np.float64) - logits.max(1, keepdims=True)
    expected = np.exp(top) / np.exp(top).sum(1, keepdims=True)
    expected[np.arange(TOKENS), labels] -= 1
    np.testing.assert_allclose(gradient.asnumpy(), expected, atol=1e-6)


def test_weighted_sums_of_parts_add_up():
    """Half the batch at a time gives the same loss as the whole: what micro-batches and ranks rely on."""
    random = np.random.RandomState(1)
    losses = random.rand(4, 6).astype(np.float32)
    mask = random.rand(4, 6) > 0.4
    weights = (mask / mask.sum()).astype(np.float32)
    add = WeightedSum(ONE)
    whole = float(add(Tensor(losses.reshape(-1)), Tensor(weights)))
    parts = sum(float(add(Tensor(losses[i : i + 2].reshape(-1)), Tensor(weights[i : i + 2]))) for i in (0, 2))
    assert whole == pytest.approx(losses[mask].mean(), rel=1e-6)
    assert parts == pytest.approx(whole, rel=1e-6)


def test_auxiliary_loss_counts_a_sequence_by_its_valid_tokens():
    aux = np.array([2.0, 4.0], np.float32)
    weights = np.array([[0.25, 0.0, 0.0], [0.25, 0.25, 0.25]], np.float32)
    got = float(AuxiliaryLoss(0.1, ONE)(Tensor(aux), Tensor(weights)))
    assert got == pytest.approx(0.1 * (2.0 * 0.25 + 4.0 * 0.75), rel=1e-6)


def test_padding_columns_never_win_and_take_no_probability():
    shape = ModelShape(num_layers=1, hidden_size=8, num_heads=2, ffn_size=8, vocab_size=5, vocab_multiple=8)
    random = np.random.RandomState(2)
    x, table = random.randn(TOKENS, 8).astype(np.float32), random.randn(8, 8).astype(np.float32)
    table[5:] = 50.0
    logits = Head(shape, ONE, ms.float32)(Tensor(x), Tensor(table)).asnumpy()
    assert logits.argmax(1).max() < 5
    labels = random.randint(0, 5, TOKENS).astype(np.int32)
    losses = CrossEntropy(8)(Tensor(logits), Tensor(labels)).asnumpy()
    np.testing.assert_allclose(losses, reference(x @ table[:5].T, labels), rtol=1e-5, atol=1e-5)
