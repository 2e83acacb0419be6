"""Memory of a device that serves a model, and what would still fit, on paper.

In: a Plan of a recipe with a `serve` section. Out: a ServingMemory: weights, keys and values of every request, the
workspace of the longest prompt; the longest context and the largest batch.

>>> found = serving_memory(resolve(load_recipe("qwen3_8b_serve_tp2")))
>>> round(found.weights_bytes / 2**30, 2), found.cache_bytes / 2**30, found.fits
(7.63, 4.5, True)

With l layers, k heads of keys and values of width d, t of tensor parallel, n requests of at most s tokens, e bytes a
number (2: weights and cache are in 16 bits):

    weights      e P / t for matrices and tables that t cuts, e P for norms
    cache        2 l max(k / t, 1) d e for each token; a request's place is kept for all of its s tokens
    workspace    of one prompt of s tokens at a time: the residual stream three times, and the wider of queries, keys,
                 values and result, or gate, up and product; logits of the last position of each request in e and in
                 4 bytes

Keys and values of Qwen3 8B: 2 x 36 x 8 x 128 x 2 = 147,456 bytes a token, so that 8 requests of 2048 tokens take
2.25 GiB. 10 % are added for fragments, as in training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msparallel.model.shape import ModelShape
from msparallel.plan import Plan
from msparallel.planner.estimate import limit_bytes
from msparallel.planner.memory import UNCERTAIN_SHARE
from msparallel.planner.shards import parameters

ITEM_BYTES = 2
"""Of a weight and of a number in the cache."""
LOGIT_BYTES = 4
STREAMS = 3
"""The residual stream, what the norm makes of it, and the sum of both branches."""


@dataclass(frozen=True, kw_only=True)
class ServingMemory:
    """One device's.

    Attributes:
        token_cache_bytes: keys and values of one token.
        cache_bytes: of all requests at their full length.
        longest_context: tokens that every one of `batch` requests could have; 0: none fits.
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
        return round(self.total_bytes + UNCERTAIN_SHARE * (self.cache_bytes + self.workspace_bytes))

    @property
    def fits(self) -> bool:
        return self.high_bytes <= self.limit_bytes


def serving_memory(plan: Plan) -> ServingMemory:
    """Of a recipe that serves, for `max_concurrency` requests of `max_length` tokens."""
    serve, shape, tp = plan.recipe.serve, plan.shape, plan.mesh.tp
    assert serve is not None, "a recipe that does not serve has no requests"
    batch, length = serve.max_concurrency, serve.max_length
    limit = limit_bytes(plan.hardware, plan.devices_per_node)
    weights, token = serving_weights_bytes(plan), token_cache_bytes(shape, tp)
    prompt, answer = _prompt_token_bytes(shape, tp), _answer_bytes(shape, tp)
    # What is left for tokens, fragments taken off, is shared by the cache and the prompt's workspace.
    room = max(0.0, limit - weights) / (1 + UNCERTAIN_SHARE)
    return ServingMemory(
        batch=batch,
        length=length,
        weights_bytes=weights,
        token_cache_bytes=token,
        cache_bytes=batch * length * token,
        workspace_bytes=length * prompt + batch * answer,
        limit_bytes=limit,
        longest_context=max(0, math.floor((room - batch * answer) / (batch * token + prompt))),
        largest_batch=max(0, math.floor((room - length * prompt) / (length * token + answer))),
    )


def serving_weights_bytes(plan: Plan) -> int:
    """Weights on a device: cut over tp like a training recipe's, whole over everything else."""
    total = 0
    for _, whole, cut, _ in parameters(plan):
        degree = plan.mesh.tp if "tp" in cut else plan.recipe.parallel.expert_parallel if "ep" in cut else 1
        total += math.prod(whole) // degree * ITEM_BYTES
    return total


def token_cache_bytes(shape: ModelShape, tp: int = 1) -> int:
    """Keys and values of one token on a device; heads are repeated where there are fewer than devices."""
    heads = max(shape.num_kv_heads // tp, 1)
    return 2 * shape.num_layers * heads * shape.head_dim * ITEM_BYTES


def _prompt_token_bytes(shape: ModelShape, tp: int) -> int:
    """Workspace of one token of a prompt."""
    heads = shape.num_heads // tp + max(shape.num_kv_heads // tp, 1)
    attention = 2 * heads * shape.head_dim
    if shape.num_experts:
        feed_forward = shape.experts_per_token * (2 * shape.hidden_size + 3 * shape.expert_ffn_size)
    else:
        feed_forward = shape.ffn_matrices * shape.ffn_size // tp
    return (STREAMS * shape.hidden_size + max(attention, feed_forward)) * ITEM_BYTES


def _answer_bytes(shape: ModelShape, tp: int) -> int:
    """Logits of one request's next token."""
    return shape.padded_vocab_size // tp * (ITEM_BYTES + LOGIT_BYTES)
