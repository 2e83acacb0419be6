"""AdamW against the published algorithm in NumPy, and the schedule against its formula."""

import numpy as np
import pytest

pytestmark = pytest.mark.cpu

ms = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor  # noqa: E402

from msparallel.recipe.schema import Optimizer  # noqa: E402
from msparallel.train.optimizer import AdamW, WarmupThenSchedule, learning_rate_at  # noqa: E402


def numpy_adamw(parameter, gradients, section, steps, decays):
    """Algorithm 2 of Loshchilov and Hutter (2019) in float64."""
    p, m, v = parameter.astype(np.float64), 0.0, 0.0
    for step, gradient in enumerate(gradients):
        lr, t = learning_rate_at(section, steps, step), step + 1
        p = p - lr * section.weight_decay * p if decays else p
        m = section.beta1 * m + (1 - section.beta1) * gradient
        v = section.beta2 * v + (1 - section.beta2) * gradient**2
        p = p - lr * (m / (1 - section.beta1**t)) / (np.sqrt(v / (1 - section.beta2**t)) + section.eps)
    return p


@pytest.mark.parametrize(
    "section",
    [
        Optimizer(learning_rate=1e-2, warmup_steps=4, weight_decay=0.1),
        Optimizer(learning_rate=1e-2, min_learning_rate=1e-3, weight_decay=0.5, beta1=0.8, beta2=0.999, eps=1e-4),
        Optimizer(learning_rate=3e-3, schedule="constant", weight_decay=0.0, beta1=0.0, eps=1e-6),
    ],
)
def test_adamw_is_the_published_algorithm(section):
    steps, random = 25, np.random.default_rng(0)
    shapes = {"matrix": (7, 5), "norm": (33,)}
    start = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    gradients = {
        name: random.normal(size=(steps, *shape)).astype(np.float32) * 10.0 ** random.integers(-4, 3, shape)
        for name, shape in shapes.items()
    }
    gradients = {name: values.astype(np.float32) for name, values in gradients.items()}
    parameters = [Parameter(Tensor(start[name]), name=name) for name in shapes]
    optimizer = AdamW(parameters, section, steps)
    for step in range(steps):
        optimizer(tuple(Tensor(gradients[name][step]) for name in shapes))
    for parameter, name in zip(parameters, shapes, strict=True):
        expected = numpy_adamw(start[name], gradients[name].astype(np.float64), section, steps, name == "matrix")
        np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-6, atol=1e-6)
    assert int(optimizer.global_step.asnumpy()[0]) == steps
    assert [p.name for p in optimizer.moments1] == ["adam_m.matrix", "adam_m.norm"]


@pytest.mark.parametrize("warmup, schedule", [(0, "cosine"), (5, "cosine"), (5, "constant"), (20, "cosine")])
def test_schedule_in_the_graph_follows_the_formula(warmup, schedule):
    section = Optimizer(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=warmup, schedule=schedule)
    cell = WarmupThenSchedule(section, 20)
    rates = [float(cell(Tensor([step], ms.int32)).asnumpy()) for step in range(25)]
    expected = [learning_rate_at(section, 20, step) for step in range(25)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    if warmup == 5:
        assert rates[4] == pytest.approx(1e-3) and rates[0] == pytest.approx(2e-4)
    assert rates[19] == pytest.approx(1e-3 if schedule == "constant" or warmup == 20 else 1e-4, rel=1e-4)
