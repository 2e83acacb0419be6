"""Memory of a device that serves a model, and what would still fit, on paper.

In: a Plan of a recipe with a `serve` section. Out: a ServingMemory: weights, keys and values of every request, the
workspace of the larger graph; the longest context and the largest batch.

>>> found = serving_memory(resolve(load_recipe("qwen3_8b_serve_tp2")))
>>> round(found.weights_bytes / 2**30, 2), round(found.cache_bytes / 2**30, 2), found.fits
(7.63, 4.51, True)

With l layers, k heads of keys and values of width d, t of tensor parallel, n requests of at most s tokens, e bytes a
number (2: weights and cache are in 16 bits), blocks of b tokens:

    weights      e P / t for matrices, tables and biases that t cuts, e P for those that stay whole; norms and the
                 router of experts compute in float32, 4 bytes, and are whole
    cache        2 l (k / t) d e for each token; a request's room is kept for all of its s tokens, in whole blocks, and
                 one block is spare: b (n ceil(s / b) + 1) tokens
    workspace    the larger of two, since one graph runs at a time. A piece of a prompt of c tokens: the mask [c, s],
                 the angles of positions, the residual stream, and the most of a norm in float32, queries as they are
                 turned beside keys and values, and gate, up and product. A token step of n rows: logits of the whole
                 vocabulary, gathered in e and read in 4 bytes

Keys and values of Qwen3 8B: 2 x 36 x 8 x 128 x 2 = 147,456 bytes a token, so that 8 requests of 2048 tokens take
2.25 GiB. 10 % are added for fragments, as in training.

Weights and cache are what MindSpore's engine gives each rank, to the byte; the workspace is what is alive at the peak
of the compiled graphs, within 15 % (both: tests/serve/test_compile.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from msparallel.model.cache_blocks import Blocks
from msparallel.model.shape import ModelShape
from msparallel.plan import Plan
from msparallel.planner.estimate import limit_bytes
from msparallel.planner.memory import UNCERTAIN_SHARE
from msparallel.planner.shards import parameters
from msparallel.serve.buckets import paged_buckets

ITEM_BYTES = 2
"""Of a weight and of a number in the cache."""
FLOAT32_BYTES = 4
"""Of a logit, and of a norm's weight."""
ROTATED_BYTES = 14
"""For each number of a query while it is turned by its position: in 16 bits, and three times in float32 (the value,
its exchanged halves, a product). Counted in compiled graphs."""


@dataclass(frozen=True, kw_only=True)
class ServingMemory:
    """One device's.

    Attributes:
        token_cache_bytes: keys and values of one token.
        cache_bytes: of all requests at their full length, and of the spare block.
        longest_context: tokens that every one of `batch` requests could have, at most the model's positions; 0: none
            fits.
        largest_batch: requests of `length` tokens that could be served at once; 0: none fits.
    """

    batch: int
    length: int
    weights_bytes: int
    token_cache_bytes: int
    cache_bytes: int
    workspace_bytes: int
    limit_bytes: int
    longest_context: int
    largest_batch: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.workspace_bytes

    @property
    def high_bytes(self) -> int:
        """With fragments; `fits` asks for it."""
        return _high(self.weights_bytes, self.cache_bytes, self.workspace_bytes)

    @property
    def fits(self) -> bool:
        return self.high_bytes <= self.limit_bytes


def serving_memory(plan: Plan) -> ServingMemory:
    """Of a recipe that serves, for `max_concurrency` requests of `max_length` tokens."""
    serve, shape, tp = plan.recipe.serve, plan.shape, plan.mesh.tp
    assert serve is not None, "a recipe that does not serve has no requests"
    batch, length = serve.max_concurrency, serve.max_length
    ep = plan.recipe.parallel.expert_parallel
    limit = limit_bytes(plan.hardware, plan.devices_per_node)
    weights, token = serving_weights_bytes(plan), token_cache_bytes(shape, tp)

    def fits(requests: int, tokens: int) -> bool:
        cache, workspace = requests_bytes(shape, tp, ep, requests, tokens)
        return _high(weights, cache, workspace) <= limit

    cache, workspace = requests_bytes(shape, tp, ep, batch, length)
    return ServingMemory(
        batch=batch,
        length=length,
        weights_bytes=weights,
        token_cache_bytes=token,
        cache_bytes=cache,
        workspace_bytes=workspace,
        limit_bytes=limit,
        longest_context=_largest(lambda tokens: fits(batch, tokens), min(limit // token, shape.max_positions) + 1),
        largest_batch=_largest(lambda requests: fits(requests, length), limit // token + 1),
    )


def _high(weights: int, cache: int, workspace: int) -> int:
    return round(weights + (1 + UNCERTAIN_SHARE) * (cache + workspace))


def _largest(fits: Callable[[int], bool], above: int) -> int:
    """The largest number below `above` that fits, where all smaller ones do; 0 where not even 1 does."""
    low = 0
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if fits(middle) else (low, middle)
    return low


def serving_weights_bytes(plan: Plan) -> int:
    """Weights on a device: cut over tp like a training recipe's, whole over everything else."""
    total = 0
    for name, whole, cut, _ in parameters(plan):
        degree = plan.mesh.tp if "tp" in cut else plan.recipe.parallel.expert_parallel if "ep" in cut else 1
        total += math.prod(whole) // degree * (FLOAT32_BYTES if _stays_wide(name) else ITEM_BYTES)
    return total


def _stays_wide(name: str) -> bool:
    """Norms, and the router of experts."""
    return name.rsplit(".", 2)[-2].endswith("norm") or name.endswith(".mlp.gate.weight")


def token_cache_bytes(shape: ModelShape, tp: int = 1) -> int:
    """Keys and values of one token on a device."""
    return 2 * shape.num_layers * (shape.num_kv_heads // tp) * shape.head_dim * ITEM_BYTES


def requests_bytes(shape: ModelShape, tp: int, ep: int, batch: int, length: int) -> tuple[int, int]:
    """(cache, workspace) of `batch` requests of `length` tokens on one of `tp` devices, which has 1 / `ep` of the
    experts."""
    blocks, sizes = Blocks(slots=batch, length=length), paged_buckets(batch, length)
    piece = sizes.chunks[-1] * _prompt_token_bytes(shape, tp, ep, blocks.window)
    return blocks.tokens * token_cache_bytes(shape, tp), max(piece, batch * _answer_bytes(shape))


def _prompt_token_bytes(shape: ModelShape, tp: int, ep: int, window: int) -> int:
    """Workspace of one token of a prompt: beside its row of the mask and its angles the most that one part has."""
    stream, mask = shape.hidden_size * ITEM_BYTES, window * ITEM_BYTES
    query, key = (heads // tp * shape.head_dim for heads in (shape.num_heads, shape.num_kv_heads))
    fresh = (query + 2 * key) * ITEM_BYTES
    rotary = shape.position == "rope"
    norm = stream + 2 * FLOAT32_BYTES * shape.hidden_size
    attention = ROTATED_BYTES * query + 2 * key * ITEM_BYTES if rotary else fresh + query * ITEM_BYTES
    if shape.num_experts:
        # Dropless: every expert of the device has a place for every token.
        h, f = shape.hidden_size, shape.expert_ffn_size
        feed_forward = shape.num_experts // ep * max(2 * h, h + 2 * f, 3 * f)
    else:
        feed_forward = shape.ffn_matrices * shape.ffn_size // tp
    parts = (norm, stream + attention, stream + feed_forward * ITEM_BYTES, stream + fresh + mask)
    return mask + (2 * shape.head_dim * FLOAT32_BYTES if rotary else 0) + max(parts)


def _answer_bytes(shape: ModelShape) -> int:
    """Logits of one request's next token; every device has them whole."""
    return shape.padded_vocab_size * (ITEM_BYTES + FLOAT32_BYTES)
