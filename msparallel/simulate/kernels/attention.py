"""Fused attention as Ascend's FlashAttentionScore defines it, and its gradient.

In: queries, keys and values in one of MindSpore's layouts (B batch, S sequence, N heads, D width of a head, H = N * D,
T tokens of all sequences). Keys and values may have fewer heads, each serving as many queries' heads. Out: the largest
score and the sum of exponentials of every row, an output that nothing reads, and the mixed values. Everything is
computed in float32 and rounded once; the score matrix of one sequence is held whole.

Refused: dropout, a position shift (real_shift, pse), prefix, padding masks, and rows whose keys are all left out, where
devices differ.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msparallel.compile.graph import TensorType
from msparallel.simulate.kernels.arguments import (
    float_tensor,
    given,
    integer,
    integers,
    number,
    only,
    optional_tensor,
    same_dtype,
    unsupported,
)
from msparallel.simulate.kernels.call import Call, Kernel
from msparallel.simulate.kernels.normalization import wide

LAYOUTS = {0: "BSH", 1: "BNSD", 2: "SBH", 3: "BSND", 4: "TND", 5: "TH"}
"""MindSpore's numbers of layouts, as operators take them."""
DEFAULT_MASK, ALL_MASK, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND = range(5)
"""MindSpore's sparse modes."""
COMPRESSED = (2048, 2048)
"""Shape of the mask that stands for a causal one of any length."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """What forward and gradient have in common.

    Attributes:
        heads: of queries.
        before, after: tokens that a band reaches back and forward.
        query_ends, key_ends: where sequences end, of layouts whose tokens stand in one row.
    """

    call: Call
    heads: int
    scale: float
    before: int
    after: int
    layout: str
    mode: int
    mask: np.ndarray | None
    query_ends: tuple[int, ...]
    key_ends: tuple[int, ...]

    def sequences(self, x: np.ndarray, head_width: int, ends: tuple[int, ...]) -> list[np.ndarray]:
        """[heads, S, D] of every sequence, in the dtype that is computed in."""
        if self.layout.endswith("H"):
            x = x.reshape(*x.shape[:-1], -1, head_width)
        x = wide(x)
        if self.layout in ("TND", "TH"):
            if not ends or ends[-1] != len(x) or list(ends) != sorted(ends):
                raise unsupported(self.call, f"sequences end at {ends}, and tokens at {len(x)}")
            return [part.transpose(1, 0, 2) for part in np.split(x, ends[:-1])]
        order = {"BSH": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3), "SBH": (1, 2, 0, 3), "BSND": (0, 2, 1, 3)}
        return list(x.transpose(order[self.layout]))

    def joined(self, parts: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
        """[key heads, queries a key head, S, D] of every sequence, in the layout, shape and dtype of a tensor."""
        whole = [part.reshape(-1, *part.shape[2:]) for part in parts]
        if self.layout in ("TND", "TH"):
            result = np.concatenate(whole, 1).transpose(1, 0, 2)
        else:
            order = {"BSH": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3), "SBH": (2, 0, 1, 3), "BSND": (0, 2, 1, 3)}
            result = np.stack(whole).transpose(order[self.layout])
        return result.reshape(like.shape).astype(like.dtype, copy=False)

    def rows(self, parts: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """[key heads, queries a key head, S, 1] of every sequence as MindSpore keeps numbers of rows: [B, N, S, 8], or
        [T, N, 8], all eight alike."""
        whole = [part.reshape(-1, *part.shape[2:]) for part in parts]
        packed = self.layout in ("TND", "TH")
        result = np.concatenate(whole, 1).transpose(1, 0, 2) if packed else np.stack(whole)
        return np.broadcast_to(result.astype(np.float32, copy=False), shape)

    def of_rows(self, x: np.ndarray) -> list[np.ndarray]:
        """[heads, S, 1] of every sequence from what `rows` gave."""
        if self.layout in ("TND", "TH"):
            return [part.transpose(1, 0, 2) for part in np.split(x[..., :1], self.query_ends[:-1])]
        return list(x[..., :1])

    def grouped(self, x: np.ndarray, key_heads: int) -> np.ndarray:
        """[heads, S, D] -> [key heads, queries a key head, S, D]."""
        if len(x) % key_heads:
            raise unsupported(self.call, f"{len(x)} query heads cannot share {key_heads} key heads evenly")
        return x.reshape(key_heads, -1, *x.shape[1:])

    def scores(self, place: int, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        """[key heads, queries a key head, S1, S2] of a sequence; minus infinity where a key is left out."""
        result = np.matmul(query * query.dtype.type(self.scale), np.swapaxes(key, -1, -2))
        left_out = self.left_out(place, result.shape)
        if left_out is None:
            return result
        lonely = left_out.all(-1).reshape(-1, len(query[0, 0])).any(0)
        if lonely.any():
            raise unsupported(
                self.call, f"{np.count_nonzero(lonely)} of {lonely.size} queries of sequence {place} have no key"
            )
        return np.where(left_out, result.dtype.type(-np.inf), result)

    def left_out(self, place: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """Which keys each query leaves out, broadcast over [key heads, queries a key head, S1, S2]."""
        queries, keys = shape[-2:]
        # The distance of a key from the query's own place; from mode 3 on places are counted from the ends.
        shift = keys - queries if self.mode in (RIGHT_DOWN_CAUSAL, BAND) else 0
        distance = np.arange(keys) - np.arange(queries)[:, None] - shift
        if self.mode in (DEFAULT_MASK, ALL_MASK):
            if self.mask is None:
                return None
            mask = self.full_mask(place, shape)
            outside = (distance > self.after) | (distance < -self.before)
            if self.mode == ALL_MASK or not outside.any():
                return mask
            if queries != keys:
                raise unsupported(
                    self.call,
                    f"sparse mode 0 with {self.before} tokens before and {self.after} after, {queries} queries and "
                    f"{keys} keys: which key is a query's own is not defined. Give the band as a mask",
                )
            return mask | outside
        self.check_compressed()
        if self.mode == BAND:
            return (distance > self.after) | (distance < -self.before)
        return distance > 0

    def full_mask(self, place: int, shape: tuple[int, ...]) -> np.ndarray:
        """The part of the mask that a sequence has."""
        mask = self.mask
        if self.layout in ("TND", "TH"):
            raise unsupported(
                self.call, f"sparse mode {self.mode} with a mask in layout {self.layout}; use mode 2 or 3"
            )
        if mask.ndim == 4:
            mask = mask[place if len(mask) > 1 else 0]
            mask = self.grouped(mask, shape[0]) if len(mask) > 1 else mask
        if mask.shape[-2:] != shape[-2:]:
            raise unsupported(self.call, f"mask {self.mask.shape} for {shape[-2]} queries and {shape[-1]} keys")
        return mask != 0

    def check_compressed(self) -> None:
        """Modes 2 to 4 say themselves what is left out; their mask must be the one MindSpore asks for."""
        if self.mask is None or self.mask.shape != COMPRESSED or not np.array_equal(self.mask != 0, _compressed()):
            raise unsupported(
                self.call, f"sparse mode {self.mode} takes a mask {COMPRESSED} that is 1 above its diagonal and 0 else"
            )


@functools.cache
def _compressed() -> np.ndarray:
    return ~np.tri(*COMPRESSED, dtype=bool)


def flash_attention(call: Call) -> tuple[np.ndarray, ...]:
    """(query, key, value, real shift, drop mask, padding mask, mask, prefix, ends of query sequences, ends of key
    sequences, heads, keep probability, scale, tokens before, tokens after, inner precision, layout, sparse mode).

    The mask is 1 where a key is left out. Tokens before and after bound a band in mode 0 (with a mask) and in mode 4.
    """
    query, key, value = (float_tensor(call, place) for place in range(3))
    same_dtype(call, query, key, value)
    attention = _attention(call, query, unused=(3, 4, 5, 7), mask=6, ends=8, settings=10)
    tops, totals, mixed = [], [], []
    for place, (q, k, v) in enumerate(_parts(attention, query, key, value)):
        scores = attention.scores(place, q, k)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        tops.append(top)
        totals.append(total)
        mixed.append(np.matmul(weights / total, v))
    types = _types(call)
    return (
        attention.rows(tops, types[0].shape),
        attention.rows(totals, types[1].shape),
        np.zeros(types[2].shape, query.dtype),
        attention.joined(mixed, query),
    )


def flash_attention_grad(call: Call) -> tuple[np.ndarray, ...]:
    """(query, key, value, dy, shift, drop mask, padding mask, mask, largest scores, sums, unread, forward result,
    prefix, then as forward from the ends) -> gradients of query, key, value, and of a shift, which is not there."""
    query, key, value, dy, mixed = (float_tensor(call, place) for place in (0, 1, 2, 3, 11))
    same_dtype(call, query, key, value, dy, mixed)
    attention = _attention(call, query, unused=(4, 5, 6, 12), mask=7, ends=13, settings=15)
    tops, totals = (attention.of_rows(float_tensor(call, place)) for place in (8, 9))
    d_query, d_key, d_value = [], [], []
    parts = zip(_parts(attention, query, key, value), _parts(attention, dy, key, value), strict=True)
    outputs = _parts(attention, mixed, key, value)
    for place, (((q, k, v), (dy_part, _, _)), (y, _, _)) in enumerate(zip(parts, outputs, strict=True)):
        top, total = (attention.grouped(rows[place], len(k)) for rows in (tops, totals))
        weights = np.exp(attention.scores(place, q, k) - top) / total
        d_scores = np.matmul(dy_part, np.swapaxes(v, -1, -2)) - (dy_part * y).sum(-1, keepdims=True)
        d_scores *= weights * weights.dtype.type(attention.scale)
        d_query.append(np.matmul(d_scores, k))
        d_key.append(np.matmul(np.swapaxes(d_scores, -1, -2), q).sum(1, keepdims=True))
        d_value.append(np.matmul(np.swapaxes(weights, -1, -2), dy_part).sum(1, keepdims=True))
    return (
        attention.joined(d_query, query),
        attention.joined(d_key, key),
        attention.joined(d_value, value),
        np.zeros(_types(call)[3].shape, query.dtype),
    )


def _parts(
    attention: _Attention, query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of every sequence queries [key heads, queries a key head, S1, D], keys and values [key heads, 1, S2, D]."""
    width = query.shape[-1] // attention.heads if attention.layout.endswith("H") else query.shape[-1]
    queries = attention.sequences(query, width, attention.query_ends)
    keys, values = (attention.sequences(x, width, attention.key_ends) for x in (key, value))
    if not len(queries) == len(keys) == len(values):
        raise unsupported(attention.call, f"{len(queries)} sequences of queries, {len(keys)} of keys")
    if len(queries[0]) != attention.heads:
        raise unsupported(attention.call, f"head_num {attention.heads}, but queries have {len(queries[0])} heads")
    return [
        (attention.grouped(q, len(k)), k[:, None], v[:, None]) for q, k, v in zip(queries, keys, values, strict=True)
    ]


def _attention(
    call: Call, query: np.ndarray, unused: tuple[int, ...], mask: int, ends: int, settings: int
) -> _Attention:
    """Read the inputs at their places."""
    for place in unused:
        if given(call, place) is not None:
            raise unsupported(call, f"input {place} is given; a shift, dropout, padding and a prefix are not computed")
    heads, scale = integer(call, settings), float(number(call, settings + 2))
    only(call, "keep_prob", float(number(call, settings + 1)), 1.0)
    only(call, "sparse_mode", integer(call, settings + 7), *range(5))
    only(call, "input_layout", integer(call, settings + 6), *LAYOUTS)
    packed = given(call, ends) is not None
    query_ends, key_ends = (integers(call, place) if packed else () for place in (ends, ends + 1))
    return _Attention(
        call,
        heads,
        scale,
        before=integer(call, settings + 3),
        after=integer(call, settings + 4),
        layout=LAYOUTS[integer(call, settings + 6)],
        mode=integer(call, settings + 7),
        mask=optional_tensor(call, mask),
        query_ends=query_ends,
        key_ends=key_ends,
    )


def _types(call: Call) -> tuple[TensorType, ...]:
    types = call.type
    if not isinstance(types, tuple) or len(types) != 4 or not all(isinstance(item, TensorType) for item in types):
        raise unsupported(call, f"gives 4 tensors, not {types}")
    return types  # type: ignore[return-value]


KERNELS: dict[str, Kernel] = {"FlashAttentionScore": flash_attention, "FlashAttentionScoreGrad": flash_attention_grad}
