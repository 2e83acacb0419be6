"""The batches of a simulated MindFormers step, column by column as its data sets give them.

In: what is to be drawn; a step's number. Out: int32 columns with the rows of all ranks and micro-batches. One document
fills a sequence.

>>> drawing = Drawing(seed=1, vocab_size=64, shapes={"input_ids": (8, 16), "labels": (8, 16), "loss_mask": (8, 16)})
>>> draw(drawing, step=0)["loss_mask"].sum(), draw(drawing, step=0, uneven=True)["loss_mask"].sum() < 128
(128, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from msparallel.errors import UserError

LEAST_SHARE, MOST_SHARE = 0.2, 1.0
"""Shares of a row's tokens that count, where rows are uneven."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Attributes:
    seed: of the tokens.
    vocab_size: tokens are below it.
    shapes: column -> shape, rows first, in the step's order.
    unused_token: one that stands for padding and is not drawn.
    """

    seed: int
    vocab_size: int
    shapes: Mapping[str, tuple[int, ...]]
    unused_token: int | None = None


def draw(drawing: Drawing, step: int, *, uneven: bool = False) -> dict[str, np.ndarray]:
    """The columns of a step; a pure function of seed and step.

    Args:
        uneven: rows count different numbers of tokens; the rest as without it. Empty where no column can say so.

    Raises:
        UserError: a column that is not known here.
    """
    if uneven and "loss_mask" not in drawing.shapes:
        return {}
    random = np.random.Generator(np.random.Philox(key=np.array([drawing.seed, step], np.uint64)))
    rows, length = drawing.shapes["input_ids"]
    known = np.setdiff1d(np.arange(drawing.vocab_size, dtype=np.int32), [drawing.unused_token])
    tokens = random.choice(known, (rows, length + 1))
    counts = np.ones((rows, length), np.int32)
    if uneven:
        shares = np.linspace(LEAST_SHARE, MOST_SHARE, rows)[:, None]
        counts = (random.random((rows, length)) < shares).astype(np.int32)
        counts[:, 0] = 1
    columns = {
        "input_ids": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "loss_mask": counts,
        "position_ids": np.broadcast_to(np.arange(length), (rows, length)),
        "attention_mask": np.broadcast_to(np.triu(np.ones((length, length)), 1), (rows, 1, length, length)),
        "actual_seq_len": np.full(drawing.shapes.get("actual_seq_len", ()), length),
    }
    if strange := [name for name in drawing.shapes if name not in columns]:
        raise UserError(
            f"train_dataset.input_columns: {strange[0]} is a column that simulate cannot draw; it knows "
            f"{', '.join(columns)}."
        )
    return {name: np.ascontiguousarray(columns[name], np.int32) for name in drawing.shapes}


def micro_batch_means(batch: Mapping[str, np.ndarray], micro_batches: int) -> dict[str, np.ndarray]:
    """The batch with loss weights (float32) that make one average over all rows the mean of micro-batches' averages.

    A micro-batch is consecutive rows: MindSpore's engine gathers the rows of all replicas before it cuts them.
    """
    counts = batch["loss_mask"].astype(np.float32).reshape(micro_batches, -1)
    weights = counts / counts.sum(axis=1, keepdims=True)
    return {**batch, "loss_mask": weights.reshape(batch["loss_mask"].shape)}
