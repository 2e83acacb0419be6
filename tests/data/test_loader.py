"""Batches by step: the same from anywhere, however the work is cut."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.data.batch import Batch, micro_batches, shard
from msparallel.data.loader import TrainLoader, eval_batches
from msparallel.data.packing import PackedSequences
from msparallel.data.token_stream import TokenStream
from msparallel.errors import UserError

pytestmark = pytest.mark.pure
LENGTHS = np.array([5, 1, 30, 12, 7, 60, 3, 40, 44])  # 202 tokens
STREAM = TokenStream(tokens=np.arange(202, dtype=np.uint16), lengths=LENGTHS, hashes=np.arange(9, dtype=np.uint64))
SEQUENCES = PackedSequences(STREAM, np.arange(9), 8)  # 25 sequences; the first token of sequence i is 8 i


def loader(batch_size: int = 4, seed: int = 1, fingerprint: str = "corpus=a tokenizer=b") -> TrainLoader:
    return TrainLoader(SEQUENCES, global_batch_size=batch_size, seed=seed, fingerprint=fingerprint)


def equal(one: Batch, other: Batch) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def joined(parts: list[Batch]) -> Batch:
    return Batch(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})


@given(st.integers(0, 200), st.integers(1, 25), st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_a_step_needs_no_earlier_step(step, batch_size, seed):
    walked = loader(batch_size, seed)
    for earlier in range(max(0, step - 5), step):
        walked.global_batch(earlier)
    assert equal(walked.global_batch(step), loader(batch_size, seed).global_batch(step))


def test_order_is_pinned():
    """A change here breaks every checkpoint that continues: raise token_stream.FORMAT with it."""
    first = [loader(5).global_batch(step).input_ids[:, 0].tolist() for step in range(6)]
    assert sorted(sum(first[:5], [])) == list(range(0, 200, 8))
    assert first[0] == [24, 40, 192, 16, 184]
    assert first[5] == [112, 80, 176, 0, 120]


def test_every_epoch_sees_every_sequence_once_in_another_order():
    steps = [loader(5).global_batch(step).input_ids[:, 0] for step in range(15)]
    epochs = [np.concatenate(steps[i : i + 5]) for i in (0, 5, 10)]
    assert all(sorted(epoch) == list(range(0, 200, 8)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1]) and not np.array_equal(epochs[1], epochs[2])
    assert not np.array_equal(epochs[0], np.sort(epochs[0]))


def test_batches_cross_epochs_without_loss():
    """The row of samples does not depend on the batch size."""
    rows = [np.concatenate([loader(size).global_batch(s).input_ids for s in range(75 // size)]) for size in (3, 5, 15)]
    assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[1], rows[2])


def test_seeds_differ():
    assert not equal(loader(seed=1).global_batch(0), loader(seed=2).global_batch(0))


@given(st.integers(0, 300), st.integers(1, 25))
def test_resume_continues_where_it_stopped(step, batch_size):
    state = json.loads(json.dumps(loader(batch_size).state(step)))
    assert loader(batch_size).restore(state) == step
    assert equal(
        loader(batch_size).global_batch(step), loader(batch_size).global_batch(loader(batch_size).restore(state))
    )


def test_resume_with_another_batch_size():
    state = loader(4).state(6)  # 24 sequences
    assert loader(8).restore(state) == 3
    assert loader(8).global_batch(3).input_ids[:4].tolist() == loader(4).global_batch(6).input_ids.tolist()
    with pytest.raises(UserError, match=r"24 % 16 = 8.*\n.*must divide 24, as 12 does,.*multiple of data_parallel"):
        loader(16).restore(state)


def test_resume_on_other_data_says_what_changed():
    state = loader(fingerprint="corpus=a tokenizer=b seq_length=8").state(3)
    with pytest.raises(UserError) as caught:
        loader(fingerprint="corpus=a tokenizer=b seq_length=16").restore(state)
    assert "seq_length: 8 in the checkpoint, 16 now" in str(caught.value)
    assert "corpus:" not in str(caught.value)
    with pytest.raises(UserError, match="Try: train.seed=1"):
        loader(fingerprint=state["fingerprint"], seed=2).restore(state)
    with pytest.raises(UserError, match="it has no position, seed"):
        loader().restore({"epoch": 1, "fingerprint": "x"})


def test_batch_larger_than_an_epoch_names_what_works():
    with pytest.raises(UserError) as caught:
        loader(26)
    assert "202 tokens: 25 sequences of 8" in str(caught.value)
    assert "at most 25 here, and is a multiple of data_parallel x micro_batch_size" in str(caught.value)
    assert "Try: train.seq_length=7" in str(caught.value)
    loader(25)
    TrainLoader(PackedSequences(STREAM, np.arange(9), 7), global_batch_size=26, seed=1, fingerprint="")


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 4))
def test_strategies_share_one_global_batch(accumulation, data_parallel, micro_rows):
    batch = loader(accumulation * data_parallel * micro_rows).global_batch(2)
    parts = [
        shard(micro, data_parallel=data_parallel, dp_rank=rank)
        for micro in micro_batches(batch, accumulation)
        for rank in range(data_parallel)
    ]
    assert {part.size for part in parts} == {micro_rows}
    assert equal(joined(parts), batch)
    assert sum(part.valid_tokens for part in parts) == batch.valid_tokens


@given(st.sampled_from([(a, d, 24 // a // d) for a in (1, 2, 3, 4, 6) for d in (1, 2, 4) if 24 % (a * d) == 0]))
def test_factorizations_of_one_batch(shape):
    accumulation, data_parallel, micro_rows = shape
    batch = loader(24).global_batch(7)
    ordered = batch.input_ids.reshape(accumulation, data_parallel, micro_rows, -1)
    for step, micro in enumerate(micro_batches(batch, accumulation)):
        for rank in range(data_parallel):
            part = shard(micro, data_parallel=data_parallel, dp_rank=rank)
            assert np.array_equal(part.input_ids, ordered[step, rank])


def test_cuts_that_do_not_divide_are_refused():
    batch = loader(6).global_batch(0)
    for wrong in (lambda: micro_batches(batch, 4), lambda: micro_batches(batch, 0)):
        with pytest.raises(ValueError, match="6 rows do not divide"):
            wrong()
    with pytest.raises(ValueError, match="6 rows do not divide into 4"):
        shard(batch, data_parallel=4, dp_rank=0)
    with pytest.raises(ValueError, match=r"dp_rank 2 is outside 0\.\.1"):
        shard(batch, data_parallel=2, dp_rank=2)


def test_eval_batches_are_fixed_and_filled_up():
    batches = list(eval_batches(SEQUENCES, batch_size=4, max_sequences=10))
    assert [batch.size for batch in batches] == [4, 4, 4]
    assert joined(batches).input_ids[:10].tolist() == SEQUENCES.batch(range(10)).input_ids.tolist()
    assert joined(batches).valid_tokens == SEQUENCES.batch(range(10)).valid_tokens
    assert not batches[2].loss_mask[2:].any()
    again = list(eval_batches(SEQUENCES, batch_size=4, max_sequences=10))
    assert all(equal(a, b) for a, b in zip(batches, again, strict=True))
    # How the sequences are cut into batches does not change what counts; more than there are means all of them.
    for size in (1, 7, 40):
        every = list(eval_batches(SEQUENCES, batch_size=size, max_sequences=1000))
        assert {batch.size for batch in every} == {size}
        assert sum(b.valid_tokens for b in every) == SEQUENCES.batch(range(25)).valid_tokens
