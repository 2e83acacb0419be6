"""Sequences against a hand-worked example and against a plain re-computation token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.data.packing import PackedSequences, split_documents
from msparallel.data.token_stream import TokenStream

pytestmark = pytest.mark.pure


def stream_of(lengths: list[int], hashes: list[int] | None = None) -> TokenStream:
    """Token n of the stream is n, so that a token says where it came from."""
    return TokenStream(
        tokens=np.arange(sum(lengths), dtype=np.uint16),
        lengths=np.array(lengths, dtype=np.int64),
        hashes=np.array(range(len(lengths)) if hashes is None else hashes, dtype=np.uint64),
    )


def test_document_borders_by_hand():
    # Documents of 3, 2 and 6 tokens: 0 1 2 | 3 4 | 5 6 7 8 9 10; sequences of 4 tokens and a last label.
    sequences = PackedSequences(stream_of([3, 2, 6]), np.arange(3), 4)
    assert len(sequences) == 2
    batch = sequences.batch([0, 1])
    assert batch.input_ids.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch.labels.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert batch.loss_mask.tolist() == [[1, 1, 0, 1], [0, 1, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0], [0, 0, 1, 2]]
    assert batch.segment_ids.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
    assert batch.valid_tokens == 6
    assert [array.dtype for array in vars(batch).values()] == [np.int32, np.int32, np.float32, np.int32, np.int32]
    assert all(array.flags.c_contiguous and type(array) is np.ndarray for array in vars(batch).values())


def test_documents_of_a_split_are_read_in_the_order_given():
    sequences = PackedSequences(stream_of([3, 2, 6]), np.array([2, 0]), 4)
    batch = sequences.batch([1, 0])
    assert batch.input_ids.tolist() == [[9, 10, 0, 1], [5, 6, 7, 8]]
    assert batch.labels[0].tolist() == [10, 0, 1, 2]
    assert batch.loss_mask[0].tolist() == [1, 0, 1, 1]
    assert (sequences.num_tokens, sequences.num_documents) == (9, 2)


@pytest.mark.parametrize(("tokens", "count"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_number_of_sequences(tokens, count):
    lengths = [tokens] if tokens else []
    assert len(PackedSequences(stream_of(lengths), np.arange(len(lengths)), 4)) == count


def test_numbers_outside_are_refused():
    sequences = PackedSequences(stream_of([9]), np.arange(1), 4)
    for numbers in ([2], [-1], [0, 5]):
        with pytest.raises(IndexError):
            sequences.batch(numbers)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 9), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_batch_equals_token_by_token(lengths, seq_length, random):
    chosen = random.sample(range(len(lengths)), random.randint(1, len(lengths)))
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    run = [(starts[i] + j, i) for i in chosen for j in range(lengths[i])]  # (token, document)
    sequences = PackedSequences(stream_of(lengths), np.array(chosen), seq_length)
    assert len(sequences) == max(0, (len(run) - 1) // seq_length)
    batch = sequences.batch(range(len(sequences)))
    for i in range(len(sequences)):
        position, segment = -1, 0
        for j in range(seq_length):
            (token, document), (label, label_document) = run[i * seq_length + j], run[i * seq_length + j + 1]
            new = j > 0 and document != run[i * seq_length + j - 1][1]
            position, segment = (0, segment + 1) if new else (position + 1, segment)
            got = tuple(array[i, j] for array in vars(batch).values())
            assert got == (token, label, float(document == label_document), position, segment)


def test_split_takes_smallest_hashes_until_the_fraction_is_reached():
    stream = stream_of([10, 20, 30, 40], hashes=[7, 1, 9, 3])
    for fraction, expected in [(0.01, [1]), (0.2, [1]), (0.21, [1, 3]), (0.6, [1, 3]), (0.61, [1, 3, 0]), (0, [])]:
        train, evaluation = split_documents(stream, fraction)
        assert evaluation.tolist() == expected  # in the order of the hashes
        assert train.tolist() == [i for i in range(4) if i not in expected]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), min_size=1, max_size=30),
    st.floats(0.001, 0.99),
)
@settings(max_examples=100, deadline=None)
def test_split_parts_are_complete_and_equal_texts_stay_together(documents, fraction):
    stream = stream_of([length for length, _ in documents], [text for _, text in documents])
    train, evaluation = split_documents(stream, fraction)
    assert sorted([*train, *evaluation]) == list(range(len(documents)))
    assert not set(stream.hashes[train]) & set(stream.hashes[evaluation])
    assert stream.lengths[evaluation].sum() >= fraction * stream.lengths.sum()
