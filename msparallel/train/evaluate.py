"""Evaluation loss of the held-out split, and the text sample.

In: a model, this rank's part of the evaluation, a tokenizer. Out: mean cross entropy in nats a token (without a mixture
of experts' auxiliary loss), and a continuation of a prompt.

>>> Evaluation(model, feed.evaluation())()
8.32
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from msparallel.data.tokenizer import Tokenizer
from msparallel.model.transformer import TrainingModel
from msparallel.train.feed import Inputs


class CrossEntropyOnly(nn.Cell):
    """A TrainingModel's loss without the auxiliary loss, which is no measure of the text."""

    def __init__(self, model: TrainingModel):
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, input_ids, labels, loss_weights, position_ids, segment_ids):
        loss, _ = self.model.text_loss(input_ids, labels, loss_weights, position_ids, segment_ids)
        return loss


class _SumOverRanks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, value):
        return self.all_reduce(value)


class Evaluation:
    """The evaluation of a run: the same sequences each time.

    Args:
        inputs: this rank's part.
        add_over_ranks: whether other ranks have other parts.
    """

    def __init__(self, model: TrainingModel, inputs: Sequence[Inputs], *, add_over_ranks: bool = False):
        self._inputs = inputs
        self._loss = CrossEntropyOnly(model).set_train(False)
        self._add = _SumOverRanks() if add_over_ranks else None

    def __call__(self) -> float:
        """Mean cross entropy."""
        total = sum(float(self._loss(*inputs).asnumpy()) for inputs in self._inputs)
        if self._add is None:
            return total
        return float(self._add(Tensor([total], ms.float32)).asnumpy()[0])


class _NextLogits(nn.Cell):
    """Logits [V] behind one position of one sequence [1, S]."""

    def __init__(self, model: TrainingModel):
        super().__init__(auto_prefix=False)
        self.transformer = model.transformer

    def construct(self, input_ids, position_ids, segment_ids, position):
        logits, _ = self.transformer(input_ids, position_ids, segment_ids)
        return ops.gather(logits, position, 0)


def sample_text(
    model: TrainingModel,
    tokenizer: Tokenizer,
    *,
    prompt: str,
    tokens: int,
    seq_length: int,
    vocab_size: int,
    seed: int,
    temperature: float = 0.8,
) -> str:
    """Continue a prompt by up to `tokens` tokens; ends early at the end-of-text token. Returns prompt and continuation.

    Every token is a forward pass of the whole sequence: meant for a first look, `generate` is the fast way.

    Args:
        vocab_size: ids from here on are padding and never drawn.
        seed, temperature: of the draw; temperature 0 takes the likeliest token.
    """
    ids = tokenizer.encode([prompt])[0][-(seq_length - 1) :] or [tokenizer.eos_id]
    start = len(ids)
    random = np.random.Generator(np.random.PCG64(seed))
    forward = _NextLogits(model).set_train(False)
    positions = Tensor(np.arange(seq_length, dtype=np.int32)[None])
    segment = Tensor(np.zeros((1, seq_length), np.int32))
    while len(ids) < min(seq_length, start + tokens):
        row = np.zeros((1, seq_length), np.int32)
        row[0, : len(ids)] = ids
        logits = forward(Tensor(row), positions, segment, Tensor(len(ids) - 1, ms.int32)).asnumpy()[:vocab_size]
        if temperature:
            weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
            token = int(np.searchsorted(np.cumsum(weights), random.random() * weights.sum()))
        else:
            token = int(logits.argmax())
        if token == tokenizer.eos_id:
            break
        ids.append(min(token, vocab_size - 1))
    return prompt + tokenizer.decode(ids[start:])
