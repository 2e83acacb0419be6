"""Blocks of a cache, and what Ascend's graphs are fed: no rows are shared, fillers touch the spare block only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.model.cache_blocks import Blocks
from msparallel.serve.buckets import Buckets, paged_buckets
from msparallel.serve.paged_batches import PagedBatches
from msparallel.serve.paged_inputs import INPUTS, decode_inputs, input_shapes, prefill_inputs
from msparallel.serve.row import Row

pytestmark = pytest.mark.pure
BLOCKS = st.builds(
    Blocks, slots=st.integers(1, 5), length=st.integers(1, 100), block_size=st.sampled_from([16, 32, 128])
)


@given(BLOCKS)
@settings(max_examples=100, deadline=None)
def test_blocks_of_slots_cover_all_but_the_spare_one_once(blocks):
    tables = [block for slot in range(blocks.slots) for block in blocks.table(slot)]
    assert sorted(tables) == list(range(blocks.count - 1)) and set(blocks.spare_table) == {blocks.count - 1}
    assert blocks.length <= blocks.window < blocks.length + blocks.block_size
    rows = {blocks.row(slot, position) for slot in range(blocks.slots) for position in range(blocks.window)}
    assert rows == set(range(blocks.spare_row)) and blocks.tokens == blocks.spare_row + blocks.block_size


@given(BLOCKS, st.data())
@settings(max_examples=200, deadline=None)
def test_a_piece_of_a_prompt_stands_in_its_slot_and_its_fillers_in_the_spare_block(blocks, data):
    chunk = data.draw(st.integers(1, blocks.length))
    start = data.draw(st.integers(0, blocks.length - 1))
    count = data.draw(st.integers(1, min(chunk, blocks.length - start)))
    slot = data.draw(st.integers(0, blocks.slots - 1))
    fed = prefill_inputs(blocks, slot=slot, start=start, tokens=list(range(1, count + 1)), chunk=chunk)
    assert tuple(array.shape for array in fed) == input_shapes(blocks, 1, chunk)
    assert all(array.dtype == np.int32 for array in fed)
    named = dict(zip(INPUTS, fed, strict=True))
    ids, positions, written = named["input_ids"][0], named["positions"][0], named["slot_mapping"]
    assert ids[:count].tolist() == list(range(1, count + 1)) and named["last"].tolist() == [count - 1]
    assert positions[:count].tolist() == list(range(start, start + count))
    assert written[:count].tolist() == [blocks.row(slot, start + place) for place in range(count)]
    # A filler sees what the last real token sees, is written where nobody reads, and the kernel's lengths are possible.
    assert set(positions[count:]) <= {start + count - 1} and set(written[count:]) <= {blocks.spare_row}
    (seen,), (new,) = named["batch_valid_length"], named["q_seq_lens"]
    assert new == chunk <= seen <= blocks.window and seen >= start + count
    assert named["block_tables"].tolist() == [list(blocks.table(slot))]


@given(BLOCKS, st.data())
@settings(max_examples=200, deadline=None)
def test_a_step_of_decoding_has_each_request_in_its_slot_and_fillers_in_the_spare_block(blocks, data):
    slots = data.draw(st.lists(st.integers(0, blocks.slots - 1), min_size=1, unique=True))
    batch = [Row(slot, data.draw(st.integers(0, blocks.length - 1)), 7) for slot in slots]
    rows = data.draw(st.integers(len(batch), blocks.slots + 3))
    fed = decode_inputs(blocks, batch, rows)
    assert tuple(array.shape for array in fed) == input_shapes(blocks, rows, 1)
    named = dict(zip(INPUTS, fed, strict=True))
    assert named["slot_mapping"][: len(batch)].tolist() == [blocks.row(row.slot, row.position) for row in batch]
    assert named["batch_valid_length"][: len(batch)].tolist() == [row.position + 1 for row in batch]
    assert set(named["slot_mapping"][len(batch) :]) <= {blocks.spare_row}
    assert {tuple(table) for table in named["block_tables"][len(batch) :].tolist()} <= {blocks.spare_table}
    assert set(named["batch_valid_length"][len(batch) :]) <= {1} and set(named["q_seq_lens"]) == {1}


@pytest.mark.parametrize(
    ("slots", "length", "rows", "chunks"),
    [(16, 4096, (1, 4, 16), (128, 512)), (1, 100, (1,), (100,)), (5, 300, (1, 4, 5), (128, 300))],
)
def test_sizes(slots, length, rows, chunks):
    assert paged_buckets(slots, length) == Buckets(rows, chunks)


def test_batches_take_the_smallest_shape_that_is_enough_and_give_real_rows_and_ids_only():
    blocks, shapes = Blocks(slots=4, length=40, block_size=16), []

    def run(fed):
        shapes.append(fed[0].shape)
        return np.arange(len(fed[0]) * 12, dtype=np.float32).reshape(-1, 12)

    batches = PagedBatches(blocks, Buckets((1, 4), (8, 16)), 10, run)
    assert batches.prefill(slot=2, start=0, tokens=[1] * 8).shape == (10,)
    assert batches.prefill(slot=2, start=8, tokens=[1] * 9).shape == (10,)
    assert batches.decode([Row(0, 3, 1)]).shape == (1, 10)
    assert batches.decode([Row(0, 3, 1), Row(3, 9, 1)]).tolist() == [list(range(10)), list(range(12, 22))]
    assert shapes == [(1, 8), (1, 16), (1, 1), (4, 1)]
