"""A cache of blocks, as Ascend's ReshapeAndCache writes it and PagedAttention reads it.

In: keys and values of new tokens, the cache [blocks, block_size, KV, D], the row of each token; queries, the blocks of
each request and how far it has come. Out: the caches as they are then; the mixed values. Scores and sums are in
float32 and rounded once.

Refused, where the kernel's result is not defined or not computed here: quantised caches, alibi, MLA, several new
tokens without a mask, a request that sees nothing. A row outside the cache, a block outside it or a length beyond the
blocks of a request raises IndexError: negative rows too, which a device leaves out by convention only.
"""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import (
    float_tensor,
    given,
    in_range,
    index_tensor,
    integer,
    number,
    only,
    optional_tensor,
    same_dtype,
    unsupported,
)
from msparallel.simulate.kernels.call import Call, Kernel
from msparallel.simulate.kernels.normalization import wide


def reshape_and_cache(call: Call) -> tuple[np.ndarray, ...]:
    """(key, value, key cache, value cache, rows): the key, and both caches with each token in its row. Of several
    tokens in one row the last stays; a device promises nothing of the order."""
    key, value, keys, values = (float_tensor(call, place) for place in range(4))
    rows = index_tensor(call, 4)
    same_dtype(call, key, value, keys, values)
    if keys.ndim != 4 or values.shape != keys.shape:
        raise unsupported(call, f"caches {keys.shape} and {values.shape}; both are [blocks, block_size, heads, width]")
    tokens, width = rows.size, keys.shape[2] * keys.shape[3]
    if rows.ndim != 1 or key.size != tokens * width or value.shape != key.shape:
        raise unsupported(call, f"{tokens} rows for keys {key.shape} and values {value.shape} of {width} numbers each")
    in_range(call, rows, keys.shape[0] * keys.shape[1], "row")
    written = []
    for cache, fresh in ((keys, key), (values, value)):
        flat = cache.reshape(-1, width).copy()
        flat[rows] = fresh.reshape(tokens, width)
        written.append(flat.reshape(cache.shape))
    return key, *written


def paged_attention(call: Call) -> np.ndarray:
    """(query, key cache, value cache, blocks of each request, tokens that it has, two scales of quantised caches, mask,
    new tokens of each, alibi, heads, scale, key heads, quantised how, masked how, width of MLA's values).

    The mask [tokens, window] is added to the scores; its columns are positions of the request.
    """
    query, keys, values = (float_tensor(call, place) for place in range(3))
    tables, lengths = index_tensor(call, 3), index_tensor(call, 4)
    same_dtype(call, query, keys, values)
    for place in (5, 6, 9):
        if given(call, place) is not None:
            raise unsupported(call, f"input {place} is given; quantised caches and alibi are not computed")
    for place, what in ((13, "kv_cache_quant_mode"), (14, "mask_mode"), (15, "mla_v_dim")):
        only(call, what, integer(call, place), 0)
    heads, scale, kv_heads = integer(call, 10), float(number(call, 11)), integer(call, 12)
    blocks, block_size, cached_heads, d = keys.shape
    if kv_heads != cached_heads or heads % kv_heads or query.shape[-1] != heads * d:
        raise unsupported(
            call, f"{heads} heads and {kv_heads} of keys for queries {query.shape} and a cache {keys.shape}"
        )
    in_range(call, tables, blocks, "block")
    window = tables.shape[1] * block_size
    in_range(call, lengths, window + 1, "length")
    new, mask = _new_tokens(call, query, lengths), optional_tensor(call, 7)
    if mask is None and (new > 1).any():
        raise unsupported(call, f"{new.max()} new tokens of a request and no mask")
    if mask is not None and mask.shape != (new.sum(), window):
        raise unsupported(call, f"mask {mask.shape} for {new.sum()} tokens and a window of {window}")
    if (lengths < 1).any():
        raise unsupported(call, "a request that sees no token")
    group = heads // kv_heads
    queries = wide(query).reshape(-1, kv_heads, group, d)
    mixed = np.empty_like(queries)
    start = 0
    for table, length, count in zip(tables, lengths, new, strict=True):
        tokens = slice(start, start + count)
        seen_keys, seen_values = (wide(cache[table].reshape(window, kv_heads, d)[:length]) for cache in (keys, values))
        scores = np.einsum("tkgd,lkd->tkgl", queries[tokens], seen_keys) * queries.dtype.type(scale)
        if mask is not None and count > 1:
            scores += wide(mask[tokens, :length])[:, None, None]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed[tokens] = np.einsum("tkgl,lkd->tkgd", weights, seen_values)
        start += count
    return mixed.reshape(query.shape).astype(query.dtype)


def _new_tokens(call: Call, query: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Of each request; one each where the operator is not told."""
    total = query.size // query.shape[-1]
    told = optional_tensor(call, 8)
    new = np.ones_like(lengths) if told is None else index_tensor(call, 8)
    if new.shape != lengths.shape or new.sum() != total or (new < 1).any():
        raise unsupported(call, f"new tokens {new.tolist()} of {lengths.size} requests, and {total} queries")
    return new


KERNELS: dict[str, Kernel] = {"ReshapeAndCache": reshape_and_cache, "PagedAttention": paged_attention}
