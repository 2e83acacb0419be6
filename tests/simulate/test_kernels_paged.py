"""The cache of blocks on the virtual cluster, against attention written out token by token."""

from __future__ import annotations

import numpy as np
import pytest

from msparallel.compile.graph import TensorType
from msparallel.simulate.kernels import KERNELS, RESULT_FIRST, WRITES, Call, UnsupportedCall

pytestmark = pytest.mark.pure
HEADS, KV, D, BLOCK, BLOCKS = 4, 2, 3, 4, 7
NOT_GIVEN = (None, None)


def numbers(*shape, seed=1, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def frozen(*values):
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return values


def write(key, value, keys, values, rows):
    rows = np.asarray(rows, np.int32)
    call = Call("ReshapeAndCache", frozen(key, value, keys, values, rows), {}, TensorType("Float32", key.shape))
    return KERNELS["ReshapeAndCache"](call)


def attend(query, keys, values, tables, lengths, mask=None, new=None, **changed):
    scalars = {"heads": HEADS, "scale": 0.5, "kv": KV, "quant": 0, "mask_mode": 0, "mla": 0} | changed
    tables, lengths = np.asarray(tables, np.int32), np.asarray(lengths, np.int32)
    new = None if new is None else np.asarray(new, np.int32)
    inputs = frozen(query, keys, values, tables, lengths, *NOT_GIVEN, mask, new, None, *scalars.values())
    return KERNELS["PagedAttention"](Call("PagedAttention", inputs, {}, TensorType("Float32", query.shape)))


def test_a_token_stands_in_its_row_and_nowhere_else():
    keys, values = numbers(BLOCKS, BLOCK, KV, D), numbers(BLOCKS, BLOCK, KV, D, seed=2)
    key, value = numbers(1, 3, KV * D, seed=3), numbers(1, 3, KV * D, seed=4)
    result, new_keys, new_values = write(key, value, keys, values, [5, 0, 27])
    assert result is key and "ReshapeAndCache" in RESULT_FIRST and WRITES["ReshapeAndCache"] == (2, 3)
    for before, after, fresh in ((keys, new_keys, key), (values, new_values, value)):
        expected = before.copy()
        expected[1, 1], expected[0, 0], expected[6, 3] = fresh.reshape(3, KV, D)
        np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("row", [-1, BLOCKS * BLOCK])
def test_a_row_outside_the_cache_is_refused(row):
    cache = numbers(BLOCKS, BLOCK, KV, D)
    with pytest.raises(IndexError, match=f"row {row} is outside"):
        write(numbers(1, 1, KV * D), numbers(1, 1, KV * D), cache, cache, [row])


def written_out(query, keys, values, sequences):
    """For each request its blocks, and for each new token the positions that it sees."""
    out, token = [], 0
    for table, seen_by in sequences:
        for seen in seen_by:
            for head in range(HEADS):
                rows = [(table[place // BLOCK], place % BLOCK, head // (HEADS // KV)) for place in seen]
                q = query.reshape(-1, HEADS, D)[token, head].astype(np.float64)
                scores = np.array([keys[row] @ q * 0.5 for row in rows])
                weights = np.exp(scores - scores.max())
                out.append(sum(w * values[row] for w, row in zip(weights / weights.sum(), rows, strict=True)))
            token += 1
    return np.array(out).reshape(query.shape)


def test_a_token_each_over_ragged_requests():
    keys, values = numbers(BLOCKS, BLOCK, KV, D), numbers(BLOCKS, BLOCK, KV, D, seed=2)
    query, tables, lengths = numbers(3, 1, HEADS * D, seed=3), [[4, 0], [2, 5], [6, 6]], [7, 4, 1]
    found = attend(query, keys, values, tables, lengths)
    sequences = [(table, [range(length)]) for table, length in zip(tables, lengths, strict=True)]
    np.testing.assert_allclose(found, written_out(query, keys, values, sequences), rtol=1e-5)


def test_a_piece_of_a_prompt_sees_what_its_mask_leaves():
    keys, values = numbers(BLOCKS, BLOCK, KV, D), numbers(BLOCKS, BLOCK, KV, D, seed=2)
    query, positions = numbers(1, 5, HEADS * D, seed=3), np.array([2, 3, 4, 4, 4])
    mask = np.where(np.arange(8) > positions[:, None], -10000, 0).astype(np.float32)
    found = attend(query, keys, values, [[3, 1]], [7], mask, [5])
    expected = written_out(query, keys, values, [([3, 1], [range(place + 1) for place in positions])])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_float16_is_computed_wide_and_rounded_once():
    keys, values = (numbers(BLOCKS, BLOCK, KV, D, seed=seed, dtype=np.float16) for seed in (1, 2))
    query = numbers(1, 1, HEADS * D, seed=3, dtype=np.float16)
    found = attend(query, keys, values, [[4, 0]], [8])
    expected = attend(*(x.astype(np.float32) for x in (query, keys, values)), [[4, 0]], [8])
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected.astype(np.float16))


MASK = np.zeros((2, 8), np.float32)


@pytest.mark.parametrize(
    ("error", "tells", "given"),
    [
        (IndexError, "block 7 is outside", {"tables": [[7, 0]]}),
        (IndexError, "length 9 is outside", {"lengths": [9]}),
        (UnsupportedCall, "sees no token", {"lengths": [0]}),
        (UnsupportedCall, "no mask", {"new": [2], "tokens": 2}),
        (UnsupportedCall, "new tokens", {"new": [1], "tokens": 2, "mask": MASK}),
        (UnsupportedCall, "mask", {"new": [2], "tokens": 2, "mask": MASK[:, :7]}),
        (UnsupportedCall, "heads", {"kv": 1}),
        (UnsupportedCall, "heads", {"heads": 8}),
        (UnsupportedCall, "kv_cache_quant_mode", {"quant": 1}),
        (UnsupportedCall, "mask_mode", {"mask_mode": 1}),
        (UnsupportedCall, "mla_v_dim", {"mla": 512}),
    ],
)
def test_what_the_kernel_does_not_define_is_refused(error, tells, given):
    cache = numbers(BLOCKS, BLOCK, KV, D)
    query = numbers(1, given.pop("tokens", 1), HEADS * D)
    arguments = {"tables": [[4, 0]], "lengths": [8]} | given
    with pytest.raises(error, match=tells):
        attend(query, cache, cache, **arguments)
