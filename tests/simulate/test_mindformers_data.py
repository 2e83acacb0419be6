"""Columns of a simulated MindFormers step."""

from __future__ import annotations

import numpy as np
import pytest

from msparallel.errors import UserError
from msparallel.simulate.mindformers_data import Drawing, draw, micro_batch_means

pytestmark = pytest.mark.pure
COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")
ALL = Drawing(seed=3, vocab_size=5, shapes=dict.fromkeys(COLUMNS, (8, 16)), unused_token=2)


def test_a_step_is_a_function_of_seed_and_number():
    batch = draw(ALL, 0)
    assert list(batch) == list(COLUMNS) and {v.dtype for v in batch.values()} == {np.dtype(np.int32)}
    assert all(np.array_equal(batch[name], draw(ALL, 0)[name]) for name in COLUMNS)
    assert not np.array_equal(batch["input_ids"], draw(ALL, 1)["input_ids"])
    assert np.array_equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
    assert set(np.unique(batch["input_ids"])) == {0, 1, 3, 4}
    assert batch["loss_mask"].all() and batch["position_ids"].tolist() == [list(range(16))] * 8


def test_uneven_rows_are_the_same_tokens_and_count_differently():
    even, uneven = draw(ALL, 0), draw(ALL, 0, uneven=True)
    assert np.array_equal(even["input_ids"], uneven["input_ids"])
    counts = uneven["loss_mask"].sum(axis=1)
    assert set(np.unique(uneven["loss_mask"])) == {0, 1} and counts.min() >= 1
    halves = counts[:4].sum(), counts[4:].sum(), counts[::2].sum(), counts[1::2].sum()
    assert halves[0] != halves[1] and halves[2] != halves[3]


def test_a_step_without_a_loss_mask_has_no_uneven_rows():
    shapes = {"input_ids": (2, 4), "labels": (2, 4)}
    assert draw(Drawing(seed=3, vocab_size=5, shapes=shapes), 0, uneven=True) == {}


def test_masks_leave_out_what_comes_later():
    shapes = {"input_ids": (2, 4), "attention_mask": (2, 1, 4, 4), "actual_seq_len": (2, 8)}
    batch = draw(Drawing(seed=3, vocab_size=5, shapes=shapes), 0)
    assert batch["attention_mask"][1, 0].tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert batch["actual_seq_len"].shape == (2, 8) and (batch["actual_seq_len"] == 4).all()


def test_a_column_that_is_not_known_is_refused():
    shapes = {"input_ids": (2, 4), "images": (2, 3)}
    with pytest.raises(UserError, match=r"input_columns: images is a column .* it knows input_ids, labels, loss_mask"):
        draw(Drawing(seed=3, vocab_size=5, shapes=shapes), 0)


def test_weights_of_micro_batches_make_one_average_their_mean():
    batch = draw(ALL, 0, uneven=True)
    losses = np.random.default_rng(0).random((8, 16))
    weights = micro_batch_means(batch, 4)["loss_mask"]
    halves = zip(np.split(losses, 4), np.split(batch["loss_mask"], 4), strict=True)
    expected = np.mean([(part * counts).sum() / counts.sum() for part, counts in halves])
    assert (weights * losses).sum() / weights.sum() == pytest.approx(expected, rel=1e-6)
