"""Fused attention, which only Ascend has, against the same written out in MindSpore's operators for the processor:
results, rows' largest scores and sums, and gradients by MindSpore's own differentiation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from simulate.kernel_cases import bits, f32
from simulate.test_kernels import arrays_of, compare, ms  # noqa: F401  the fixture

from msparallel.compile.graph import TensorType
from msparallel.simulate.kernels import KERNELS, Call, UnsupportedCall

LAYOUTS = {"BSH": 0, "BNSD": 1, "SBH": 2, "BSND": 3, "TND": 4, "TH": 5}
COMPRESSED = np.triu(np.ones((2048, 2048), np.uint8), 1)
EVERY = 2147483647
HEADS, WIDTH, SCALE = 4, 8, 0.3


class Given(NamedTuple):
    """Lengths of every sequence of queries and of keys, and what the operator takes beside them."""

    queries: tuple[int, ...] = (6, 6)
    keys: tuple[int, ...] = (6, 6)
    key_heads: int = 4
    layout: str = "BNSD"
    mode: int = 0
    mask: np.ndarray | None = None
    before: int = EVERY
    after: int = EVERY
    dtype: type = np.float32


def mask_of(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    """At random, but every query keeps its own key."""
    queries, keys = shape[-2:]
    return (bits(*shape) & ~np.eye(queries, keys, dtype=bool)).astype(dtype)


def causal(queries: int, keys: int) -> np.ndarray:
    return np.triu(np.ones((queries, keys), np.uint8), 1)


CASES = {
    **{f"{layout} full": Given(layout=layout) for layout in ("BSH", "BNSD", "SBH", "BSND")},
    **{
        f"{layout} causal, shared keys": Given(layout=layout, key_heads=2, mask=causal(6, 6))
        for layout in ("BSH", "BNSD", "SBH", "BSND")
    },
    "mask of each sample": Given(mask=mask_of(2, 1, 6, 6)),
    "mask of each head, shared keys": Given(key_heads=2, mask=mask_of(2, HEADS, 6, 6, dtype=bool)),
    "one mask for all samples": Given(key_heads=1, mask=mask_of(1, 1, 6, 6), mode=1),
    "a part of the queries": Given(queries=(3, 3), mask=mask_of(2, 1, 3, 6)),
    "band in a mask": Given(mask=causal(6, 6), before=2, after=0),
    "causal": Given(mode=2, mask=COMPRESSED),
    "causal, fewer queries": Given(queries=(4, 4), keys=(7, 7), key_heads=2, mode=2, mask=COMPRESSED),
    "causal from the end": Given(queries=(4, 4), keys=(7, 7), key_heads=2, mode=3, mask=COMPRESSED),
    "band": Given(mode=4, mask=COMPRESSED, before=3, after=1),
    "band from the end": Given(queries=(4, 4), keys=(7, 7), mode=4, mask=COMPRESSED, before=2, after=0),
    "packed": Given((5, 2, 9), (5, 2, 9), 2, "TND", 3, COMPRESSED, after=0),
    "packed, left": Given((5, 2), (5, 4), 2, "TND", 2, COMPRESSED, after=0),
    "packed, fewer queries": Given((3, 2, 6), (5, 4, 6), 1, "TH", 3, COMPRESSED, after=0),
    "packed, full": Given((5, 2), (3, 6), 4, "TND"),
    "float16": Given(queries=(64,), keys=(64,), key_heads=2, layout="BSH", mask=causal(64, 64), dtype=np.float16),
}


def left_out(given: Given, place: int) -> np.ndarray:
    """[heads or 1, S1, S2], where a query leaves a key out; read off MindSpore's description of the sparse modes."""
    queries, keys = given.queries[place], given.keys[place]
    row, column = np.arange(queries)[:, None], np.arange(keys)
    result = np.zeros((1, queries, keys), bool)
    if given.mode in (0, 1) and given.mask is not None:
        mask = given.mask if given.mask.ndim == 4 else given.mask[None, None]
        result = result | (mask[place % len(mask)] != 0)
        if given.mode == 0:
            result = result | (column > row + given.after) | (column < row - given.before)
    if given.mode == 2:
        result = result | (column > row)
    if given.mode == 3:
        result = result | (column > row + keys - queries)
    if given.mode == 4:
        end = row + keys - queries
        result = result | (column > end + given.after) | (column < end - given.before)
    return result


def plain(ms, query, key, value, mask: np.ndarray) -> tuple[Any, Any, Any]:  # noqa: F811
    """One sequence: queries [N, S1, D], keys and values [N2, S2, D] -> largest scores, sums, mixed values."""
    share = query.shape[0] // key.shape[0]
    key, value = (ms.ops.repeat_interleave(item, share, 0) for item in (key, value))
    scores = ms.ops.bmm(query, key.swapaxes(1, 2)) * SCALE
    scores = ms.ops.where(ms.Tensor(np.broadcast_to(mask, scores.shape)), ms.Tensor(-1e30, ms.float32), scores)
    top = scores.max(-1, keepdims=True)
    sums = ms.ops.exp(scores - top).sum(-1, keepdims=True)
    return top, sums, ms.ops.bmm(ms.ops.softmax(scores, -1), value)


def laid_out(parts: list[np.ndarray], layout: str) -> np.ndarray:
    """[N, S, D] of every sequence in a layout."""
    if layout in ("TND", "TH"):
        whole = np.concatenate(parts, 1).transpose(1, 0, 2)
    else:
        order = {"BSH": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3), "SBH": (2, 0, 1, 3), "BSND": (0, 2, 1, 3)}
        whole = np.stack(parts).transpose(order[layout])
    return whole.reshape(*whole.shape[:-2], -1) if layout.endswith("H") else whole


def rows(parts: list[np.ndarray], packed: bool) -> np.ndarray:
    whole = np.concatenate(parts, 1).transpose(1, 0, 2) if packed else np.stack(parts)
    return np.repeat(whole, 8, -1)


def type_of(value: np.ndarray) -> TensorType:
    return TensorType(str(value.dtype).capitalize(), value.shape)


def settings(given: Given) -> tuple[Any, ...]:
    """Inputs from the ends of the sequences on."""
    packed = given.layout in ("TND", "TH")
    ends = [tuple(np.cumsum(lengths).tolist()) if packed else None for lengths in (given.queries, given.keys)]
    return (*ends, HEADS, 1.0, SCALE, given.before, given.after, 0, LAYOUTS[given.layout], given.mode)


@pytest.mark.cpu
@pytest.mark.parametrize("name", CASES)
def test_like_the_written_out_form(ms, name):  # noqa: F811
    given = CASES[name]
    packed = given.layout in ("TND", "TH")
    shapes = [(HEADS, given.queries), (given.key_heads, given.keys), (given.key_heads, given.keys)]
    parts = [[f32(heads, n, WIDTH).astype(given.dtype) for n in lengths] for heads, lengths in shapes]
    outside = [f32(HEADS, n, WIDTH).astype(given.dtype) for n in given.queries]
    forward: list[Any] = []
    gradients: list[Any] = []
    for place, inputs in enumerate(zip(*parts, strict=True)):
        tensors = [ms.Tensor(item.astype(np.float32)) for item in inputs]
        mask, weights = left_out(given, place), ms.Tensor(outside[place].astype(np.float32))
        forward.append(arrays_of(plain(ms, *tensors, mask)))
        total = ms.grad(lambda q, k, v, m=mask, w=weights: (plain(ms, q, k, v, m)[2] * w).sum(), (0, 1, 2))
        gradients.append(arrays_of(total(*tensors)))

    query, key, value = (laid_out(list(part), given.layout) for part in parts)
    tops, sums, mixed = zip(*forward, strict=True)
    expected = (
        rows(list(tops), packed),
        rows(list(sums), packed),
        np.zeros(1, given.dtype),
        laid_out(list(mixed), given.layout).astype(given.dtype),
    )
    inputs = (query, key, value, None, None, None, given.mask, None, *settings(given))
    result = KERNELS["FlashAttentionScore"](Call("FlashAttentionScore", inputs, {}, tuple(map(type_of, expected))))
    compare(result, expected)

    expected_gradients = (
        *(laid_out(list(part), given.layout).astype(given.dtype) for part in zip(*gradients, strict=True)),
        np.zeros(0, given.dtype),
    )
    dy = laid_out(outside, given.layout)
    inputs = (query, key, value, dy, None, None, None, given.mask, *result, None, *settings(given))
    types = tuple(map(type_of, expected_gradients))
    compare(KERNELS["FlashAttentionScoreGrad"](Call("FlashAttentionScoreGrad", inputs, {}, types)), expected_gradients)


PLAIN = Given()


def refused(given: Given = PLAIN, **places: Any) -> Call:
    """A call with inputs replaced by place, as `at_3=value`."""
    q, k = (
        [f32(heads, n, WIDTH) for n in lengths]
        for heads, lengths in ((HEADS, given.queries), (given.key_heads, given.keys))
    )
    query, key = laid_out(q, given.layout), laid_out(k, given.layout)
    inputs = [query, key, key, None, None, None, given.mask, None, *settings(given)]
    for name, value in places.items():
        inputs[int(name.removeprefix("at_"))] = value
    rows_type = TensorType("Float32", (2, HEADS, 6, 8))
    types = (rows_type, rows_type, TensorType("Float32", (1,)), type_of(query))
    return Call("FlashAttentionScore", tuple(inputs), {}, types)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("call", "told"),
    [
        (refused(at_3=f32(2, 4, 6, 6)), "input 3 is given"),
        (refused(at_4=np.zeros((2, 4, 6, 1), np.uint8)), "input 4 is given"),
        (refused(at_5=f32(1)), "input 5 is given"),
        (refused(at_7=(1, 1)), "input 7 is given"),
        (refused(at_11=0.9), "keep_prob is 0.9"),
        (refused(at_10=2), "head_num 2, but queries have 4"),
        (refused(at_17=5), "sparse_mode is 5"),
        (refused(at_16=6), "input_layout is 6"),
        (refused(Given(mode=2)), "sparse mode 2 takes a mask"),
        (refused(Given(mode=2, mask=causal(6, 6))), "sparse mode 2 takes a mask"),
        (refused(Given(mode=3, mask=1 - COMPRESSED)), "sparse mode 3 takes a mask"),
        (refused(Given(mask=causal(5, 6))), r"mask \(5, 6\) for 6 queries and 6 keys"),
        (refused(Given(mask=np.ones((6, 6), np.uint8))), "6 of 6 queries of sequence 0 have no key"),
        (refused(Given(queries=(7, 7), mode=3, mask=COMPRESSED)), "1 of 7 queries of sequence 0 have no key"),
        (refused(Given(queries=(3, 3), mask=causal(3, 6), before=1)), "Give the band as a mask"),
        (refused(Given(key_heads=3)), "4 query heads cannot share 3"),
        (refused(Given((5, 1), (5, 1), layout="TND"), at_8=(5, 7)), "sequences end at"),
        (refused(Given((5, 1), (5, 1), layout="TND", mask=causal(6, 6))), "with a mask in layout TND"),
        (refused(Given((5, 1), (5, 1), layout="TND"), at_9=(6,)), "2 sequences of queries, 1 of keys"),
    ],
)
def test_what_is_not_computed_is_refused(call, told):
    with pytest.raises(UnsupportedCall, match=told):
        KERNELS[call.op](call)
