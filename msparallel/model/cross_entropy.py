"""Cross entropy of next-token predictions, one value a token, and its weighted sum.

In: logits float32 [T, V], labels int32 [T] in [0, V). Out: float32 [T], -log softmax(logits)[label].
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from msparallel.model import strategies
from msparallel.parallel_config import OpParallelConfig


class CrossEntropy(nn.Cell):
    """For whole logits on one device: log-softmax and a look-up of the label's entry, without a [T, V] one-hot."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.log_softmax, self.look_up = ops.LogSoftmax(), ops.NLLLoss("none")
        self.class_weights = ops.ones((vocab,), ms.float32)

    def construct(self, logits, labels):
        return self.look_up(self.log_softmax(logits), labels, self.class_weights)[0]


class VocabParallelCrossEntropy(nn.Cell):
    """For logits cut along the vocabulary: log(sum_v exp(x_v - max)) - (x_label - max).

    Maximum, sum and the label's entry each cross tp as one number a token, never as logits (Megatron-LM's
    vocab-parallel cross entropy).
    """

    def __init__(self, vocab: int, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.vocab = vocab
        self.max, self.sub, self.exp = ops.ReduceMax(True), ops.Sub(), ops.Exp()
        self.sum_exp, self.sum_label, self.log = ops.ReduceSum(), ops.ReduceSum(), ops.Log()
        self.one_hot, self.pick, self.difference = ops.OneHot(), ops.Mul(), ops.Sub()
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, logits, labels):
        shifted = self.sub(logits, ops.stop_gradient(self.max(logits, 1)))
        label = self.pick(self.one_hot(labels, self.vocab, self.on, self.off), shifted)
        return self.difference(self.log(self.sum_exp(self.exp(shifted), 1)), self.sum_label(label, 1))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        tokens, vocab = logits = strategies.logits(parallel)
        self.max.shard((logits,))
        self.sub.shard((logits, (tokens, 1)))
        for unary in (self.exp, self.sum_exp, self.sum_label):
            unary.shard((logits,))
        self.one_hot.shard(((tokens, vocab), (), ()))
        self.pick.shard((logits, logits))
        self.log.shard(((tokens,),))
        self.difference.shard(((tokens,), (tokens,)))


class WeightedSum(nn.Cell):
    """Token losses [T] and loss_weights [B, S] -> sum of their products, scalar."""

    def __init__(self, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.weigh, self.sum = ops.Mul(), ops.ReduceSum()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, losses, loss_weights):
        return self.sum(self.weigh(losses, ops.reshape(loss_weights, losses.shape)))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        tokens = strategies.logits(parallel)[0]
        self.weigh.shard(((tokens,), (tokens,)))
        self.sum.shard(((tokens,),))


class AuxiliaryLoss(nn.Cell):
    """A router's loss per sequence [B] and loss_weights [B, S] -> factor * sum_b(aux_b * sum_s weights[b, s]), scalar.

    So every sequence counts by its share of the step's valid tokens, whichever device holds it.
    """

    def __init__(self, factor: float, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.factor = factor
        self.share, self.weigh, self.sum, self.scale = ops.ReduceSum(), ops.Mul(), ops.ReduceSum(), ops.Mul()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, aux, loss_weights):
        return self.scale(self.sum(self.weigh(aux, self.share(loss_weights, 1))), self.factor)

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        dp = parallel.data_parallel
        self.share.shard(((dp, 1),))
        self.weigh.shard(((dp,), (dp,)))
        self.sum.shard(((dp,),))
