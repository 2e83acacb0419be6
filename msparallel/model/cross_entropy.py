"""Cross entropy of next-token predictions, one value a token.

In: logits float32 [T, V], labels int32 [T] in [0, V). Out: float32 [T], -log softmax(logits)[label].
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from msparallel.parallel_config import OpParallelConfig


class CrossEntropy(nn.Cell):
    """One device: log-softmax and a look-up of the label's entry; no [T, V] one-hot."""

    def __init__(self, vocab: int, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.log_softmax, self.nll = ops.LogSoftmax(), ops.NLLLoss("none")
        self.class_weights = Tensor([1.0] * vocab, ms.float32)

    def construct(self, logits, labels):
        return self.nll(self.log_softmax(logits), labels, self.class_weights)[0]
