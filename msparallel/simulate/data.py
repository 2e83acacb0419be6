"""The sequences of a simulated step.

In: a Plan. Out: global batches by step. A shrunk model has no tokenizer of its vocabulary, so its tokens are drawn from
the recipe's seed: documents of different lengths in every sequence, and labels at their borders that do not count, so
that ranks and micro-batches hold different numbers of valid tokens. A model with its own vocabulary reads the recipe's
own text.

>>> random_batches(plan)(0).input_ids.shape
(8, 16)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from msparallel.data.batch import Batch
from msparallel.plan import Plan

Batches = Callable[[int], Batch]
"""Global batch of a step, counted from 0."""
BORDER_SHARE = 0.1
"""Share of tokens behind which a new document begins."""


def random_batches(plan: Plan) -> Batches:
    """Batches of drawn tokens; a step's batch is a pure function of seed and step."""
    train = plan.recipe.train
    assert train is not None, "only recipes with a train section are simulated"
    rows, length, vocab = plan.global_batch_size, plan.seq_length, plan.shape.vocab_size

    def batch(step: int) -> Batch:
        random = np.random.Generator(np.random.Philox(key=np.array([train.seed, step], np.uint64)))
        tokens = random.integers(0, vocab, (rows, length + 1), dtype=np.int32)
        borders = random.random((rows, length)) < BORDER_SHARE
        borders[:, 0] = False
        segments = np.cumsum(borders, axis=1, dtype=np.int32)
        places = np.arange(length, dtype=np.int32)
        starts = np.maximum.accumulate(np.where(borders, places, 0), axis=1)
        counts = np.ones((rows, length), np.float32)
        counts[:, :-1][borders[:, 1:]] = 0
        return Batch(
            input_ids=np.ascontiguousarray(tokens[:, :-1]),
            labels=np.ascontiguousarray(tokens[:, 1:]),
            loss_mask=counts,
            position_ids=(places - starts).astype(np.int32),
            segment_ids=segments,
        )

    return batch


def recipe_batches(plan: Plan) -> Batches:
    """Batches of the recipe's own text. Raises UserError for data that cannot be opened."""
    from msparallel.train.prepare import prepare

    return prepare(plan, None).loader.global_batch
