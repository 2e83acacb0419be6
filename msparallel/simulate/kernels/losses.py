"""The loss of labels among log-probabilities.

In: Calls of NLLLoss and NLLLossGrad. Out: what MindSpore's primitives give.

>>> loss, total = nll_loss(Call("NLLLoss", (log_softmax, labels, np.ones(257, np.float32), 2, -100), {}, kind))
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from msparallel.simulate.kernels.arguments import (
    float_tensor,
    in_range,
    index_tensor,
    integer,
    only,
    same_dtype,
    tensor,
)
from msparallel.simulate.kernels.call import Call, Kernel, Value

SUM, MEAN, NONE = 0, 1, 2
"""MindSpore's numbers of reductions."""


def _weights(call: Call, place: int, labels: np.ndarray, classes: int) -> np.ndarray:
    """Weight of each label, 0 for one that is ignored. Raises IndexError for a label that is no class."""
    weight, ignored = float_tensor(call, place), labels == integer(call, len(call.inputs) - 1)
    in_range(call, labels[~ignored], classes, "label")
    return np.where(ignored, weight.dtype.type(0), weight[np.where(ignored, 0, labels)])


def nll_loss(call: Call) -> Value:
    """Minus the log-probability of each label times its class's weight; with it the sum of the weights."""
    logits, labels = float_tensor(call, 0), index_tensor(call, 1)
    reduction = integer(call, 3)
    only(call, "reduction", reduction, SUM, MEAN, NONE)
    weights = _weights(call, 2, labels, logits.shape[1])
    same_dtype(call, logits, weights)
    picked = np.take_along_axis(logits, np.where(weights == 0, 0, labels)[:, None].astype(np.int64), 1)[:, 0]
    losses, total = -picked * weights, weights.sum()
    if reduction == NONE:
        return losses, np.asarray(total)
    return np.asarray(losses.sum() / total if reduction == MEAN else losses.sum()), np.asarray(total)


def nll_loss_grad(call: Call) -> Value:
    """Of the log-probabilities: minus the weight at each label."""
    logits, given, labels = float_tensor(call, 0), float_tensor(call, 1), index_tensor(call, 2)
    reduction = integer(call, 5)
    only(call, "reduction", reduction, SUM, MEAN, NONE)
    weights = _weights(call, 3, labels, logits.shape[1])
    same_dtype(call, logits, given, weights)
    share = tensor(call, 4) if reduction == MEAN else logits.dtype.type(1)
    result = np.zeros_like(logits)
    rows = np.flatnonzero(weights)
    result[rows, labels[rows]] = (-weights * given / share)[rows]
    return result


KERNELS: Mapping[str, Kernel] = {"NLLLoss": nll_loss, "NLLLossGrad": nll_loss_grad}
