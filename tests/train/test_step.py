"""The step where every rank holds the whole model: accumulation, clipping, loss scale, buckets."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.cpu

ms = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

from msparallel.recipe.schema import Optimizer  # noqa: E402
from msparallel.train import gradient  # noqa: E402
from msparallel.train.gradient import ClipByGlobalNorm, LossScale  # noqa: E402
from msparallel.train.optimizer import AdamW  # noqa: E402
from msparallel.train.step import LocalStep, buckets  # noqa: E402

ROWS = 8
RANDOM = np.random.default_rng(0)
X, START = RANDOM.normal(size=(ROWS, 5)).astype(np.float32), RANDOM.normal(size=(5, 3)).astype(np.float32)


class Squares(nn.Cell):
    """sum over rows of weight x |x W + b|^2."""

    def __init__(self):
        super().__init__()
        self.w, self.b = Parameter(Tensor(START), name="w"), Parameter(Tensor(np.ones(3, np.float32)), name="b")

    def construct(self, x, weights):
        return ops.reduce_sum(ops.reduce_sum(ops.square(ops.matmul(x, self.w) + self.b), 1) * weights)


def parts(count: int, weights: np.ndarray):
    return [(Tensor(x), Tensor(w)) for x, w in zip(np.split(X, count), np.split(weights, count), strict=True)]


def train(count: int, steps: int = 3, clip_norm: float = 1.0, weights=None, loss_scale=None):
    network = Squares()
    optimizer = AdamW(network.trainable_params(), Optimizer(learning_rate=0.01), steps)
    step = LocalStep(network, optimizer, clip_norm=clip_norm, accumulation_steps=count, loss_scale=loss_scale)
    weights = np.full(ROWS, 1 / ROWS, np.float32) if weights is None else weights
    results = [step(parts(count, weights)) for _ in range(steps)]
    return results, network.w.asnumpy(), optimizer


def expected_gradients():
    y = X @ START + 1
    return 2 * X.T @ y / ROWS, 2 * y.sum(0) / ROWS, (y**2).sum() / ROWS


def test_loss_and_norm_are_those_of_the_formula():
    results, _, _ = train(1, steps=1)
    of_w, of_b, loss = expected_gradients()
    assert results[0].loss == pytest.approx(loss, rel=1e-5)
    assert results[0].grad_norm == pytest.approx(np.sqrt((of_w**2).sum() + (of_b**2).sum()), rel=1e-5)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("scaled", [False, True])
def test_accumulation_changes_nothing(count, scaled):
    whole, weights, _ = train(1)
    cut, cut_weights, _ = train(count, loss_scale=LossScale(None) if scaled else None)
    assert [r.loss for r in cut] == pytest.approx([r.loss for r in whole], rel=1e-5)
    assert [r.grad_norm for r in cut] == pytest.approx([r.grad_norm for r in whole], rel=1e-5)
    np.testing.assert_allclose(cut_weights, weights, rtol=1e-5, atol=1e-7)


def test_unequal_weights_are_respected_across_micro_batches():
    """Micro-batches with different numbers of valid tokens: the mean over all, not the mean of means."""
    weights = np.array([1, 0, 0, 0, 1, 1, 1, 1], np.float32) / 5
    whole, expected, _ = train(1, weights=weights)
    cut, found, _ = train(4, weights=weights)
    assert [r.loss for r in cut] == pytest.approx([r.loss for r in whole], rel=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e9])
def test_clipping(limit):
    gradients = (Tensor(np.array([[3.0, 0.0]], np.float32)), Tensor(np.array([4.0], np.float32)))
    clipped, norm = ClipByGlobalNorm(limit)(gradients)
    assert norm.asnumpy()[0] == pytest.approx(5.0)
    factor = min(1.0, limit / 5) if limit else 1.0
    np.testing.assert_allclose(clipped[0].asnumpy(), [[3 * factor, 0]], rtol=1e-6)
    np.testing.assert_allclose(clipped[1].asnumpy(), [4 * factor], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_an_overflow_skips_the_step_and_halves_the_scale(count):
    scale = LossScale(None)
    weights = np.full(ROWS, 1e36, np.float32)  # x 65536 x 2 x y leaves float32
    results, found, optimizer = train(count, steps=1, weights=weights, loss_scale=scale)
    assert results[0].overflow
    np.testing.assert_array_equal(found, START)
    assert optimizer.global_step.asnumpy()[0] == 0
    assert float(scale.value.asnumpy()) == gradient.SCALE_START / 2


def test_after_an_overflow_the_sums_are_empty_again():
    network = Squares()
    optimizer = AdamW(network.trainable_params(), Optimizer(learning_rate=0.01), 3)
    step = LocalStep(network, optimizer, clip_norm=1.0, accumulation_steps=2, loss_scale=LossScale(None))
    assert step(parts(2, np.full(ROWS, 1e36, np.float32))).overflow
    result = step(parts(2, np.full(ROWS, 1 / ROWS, np.float32)))
    of_w, of_b, loss = expected_gradients()
    assert not result.overflow and result.loss == pytest.approx(loss, rel=1e-5)
    assert result.grad_norm == pytest.approx(np.sqrt((of_w**2).sum() + (of_b**2).sum()), rel=1e-4)


def test_the_scale_grows_after_a_window_of_good_steps(monkeypatch):
    monkeypatch.setattr(gradient, "SCALE_WINDOW", 3)
    scale = LossScale(None)
    values = [float(scale(Tensor(overflow)).asnumpy()) for overflow in (False, False, False, True, False)]
    start = gradient.SCALE_START
    assert values == [start, start, 2 * start, start, start]
    assert scale.good_steps.asnumpy() == 1


def test_a_fixed_scale_stays():
    scale = LossScale(128)
    assert [float(scale(Tensor(overflow)).asnumpy()) for overflow in (True, False)] == [128, 128]


def test_a_step_takes_exactly_its_micro_batches():
    network = Squares()
    step = LocalStep(network, AdamW(network.trainable_params(), Optimizer(), 1), clip_norm=1.0, accumulation_steps=2)
    with pytest.raises(ValueError, match="1 micro-batches for a step of 2"):
        step(parts(1, np.ones(ROWS, np.float32)))


@pytest.mark.parametrize(
    "sizes, limit, expected",
    [
        ([], 100, ()),
        ([1000], 100, ((0, 1),)),
        ([10, 10, 10], 120, ((0, 3),)),
        ([10, 10, 10, 10], 80, ((0, 2), (2, 4))),
        ([1, 1000, 1], 40, ((0, 1), (1, 2), (2, 3))),
    ],
)
def test_buckets_hold_every_tensor_once_and_stay_below_the_limit(sizes, limit, expected):
    assert buckets(sizes, limit) == expected
