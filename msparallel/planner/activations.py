"""Bytes that a layer keeps from its forward pass until its backward pass, tensor by tensor, on paper.

In: a Workload. Out: the tensors of one layer, of one micro-batch, on one rank; how many micro-batches are under way.

>>> work = workload_of(resolve(load_recipe("llama2_7b_dp2_tp2_pp2", ["parallel.recompute=none"])))
>>> kept = layer_tensors(work)
>>> kept[0].name, round(sum(tensor.bytes for tensor in kept) / 2**20)
('layer input', 448)

A micro-batch has T = b s / cp tokens on a rank, Z = T / tp of them where sequence parallel cuts them; h is the width of
the residual stream, q = heads x head_dim / tp, k = kv_heads x head_dim / tp, f the feed-forward width / tp, e the bytes
of a number. Megatron's fused blocks, with RMSNorm, SwiGLU, fused attention and without dropout, keep

    2 Z h e (what norms read) + 2 Z h e (what they write) + T (q + 2 k) e + T q e (attention's result) + 3 T f e

plus statistics in float32; with h = q = k and f = 4 h that is Korthikanti et al.'s (arXiv:2205.05198) 34 s b h, without
dropout and with GELU. Their 5 a s^2 b of plain attention, dropout and its mask included, is here too. Blocks of this
project keep more: norms read float32, and gate and its activation are two tensors.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from msparallel.model.shape import ModelShape
from msparallel.planner.cut import ITEM_BYTES, routed_rows
from msparallel.planner.stack import Stack
from msparallel.planner.workload import Workload

FUSED_SOFTMAX_BYTES = 64
"""For each token and head: the maximum and the sum of Ascend's FlashAttentionScore, float32 [.., 8] both."""
PLAIN_SCORE_BYTES = 5
"""For each pair of positions and head, in 16 bits: softmax's result 2, dropout's mask 1, its result 2 (Korthikanti)."""


class Kept(NamedTuple):
    """One tensor. `part`: input (kept under full recomputation too), core (not under selective), or other."""

    name: str
    bytes: float
    part: Literal["input", "core", "other"] = "other"


class Sizes(NamedTuple):
    """All that a layer's tensors depend on."""

    shape: ModelShape
    stack: Stack
    item: int
    tokens: int
    stream_tokens: int
    seq: int
    tp: int
    cp: int
    ep: int
    algo: str
    attention: str


def sizes_of(work: Workload) -> Sizes:
    """The part of a workload that one layer's tensors depend on."""
    mesh = work.mesh
    tokens = work.micro_batch_size * work.seq_length // mesh.cp
    stream = -(-tokens // mesh.tp) if work.sequence_parallel else tokens
    return Sizes(
        work.shape, work.stack, ITEM_BYTES[work.dtype], tokens, stream, work.seq_length, mesh.tp, mesh.cp,
        work.expert_parallel, work.context_parallel_algo, work.attention,
    )  # fmt: skip


def layer_tensors(work: Workload) -> tuple[Kept, ...]:
    """Of one layer and one micro-batch, nothing recomputed."""
    return tensors_of(sizes_of(work))


@lru_cache(maxsize=65536)
def tensors_of(sizes: Sizes) -> tuple[Kept, ...]:
    """The same from what it depends on."""
    return (*_attention(sizes), *(_experts(sizes) if sizes.shape.num_experts else _feed_forward(sizes)))


@lru_cache(maxsize=65536)
def kept_bytes(sizes: Sizes, recompute: str) -> float:
    """Of one layer and micro-batch; `recompute` as in Workload."""
    tensors = tensors_of(sizes)
    if recompute == "full":
        return sizes.stream_tokens * sizes.shape.hidden_size * sizes.item
    return sum(tensor.bytes for tensor in tensors if recompute == "none" or tensor.part != "core")


def groups_in_flight(work: Workload, stage: int) -> int:
    """Most micro-batches whose backward pass has not run, times groups of layers, on a stage.

    1F1B: min(m, p - i); GPipe: all m (Narayanan et al., arXiv:2104.04473). Interleaved over v groups a stage, as
    Megatron-LM warms up: 2 (p - i - 1) + (v - 1) p + 1, of m v.
    """
    stages, micro, virtual = work.mesh.pp, work.micro_batch_num, work.virtual_stages
    if stages == 1:
        return virtual
    if work.schedule == "gpipe":
        return micro * virtual
    if virtual == 1:
        return min(micro, stages - stage)
    return min(micro * virtual, 2 * (stages - stage - 1) + (virtual - 1) * stages + 1)


def _attention(sizes: Sizes) -> tuple[Kept, ...]:
    shape, stack, item, tokens = sizes.shape, sizes.stack, sizes.item, sizes.tokens
    stream = sizes.stream_tokens * shape.hidden_size
    heads = shape.num_heads / sizes.tp
    query = heads * shape.head_dim
    key = max(shape.num_kv_heads / sizes.tp, 1) * shape.head_dim
    copied = stack.transformer_engine and sizes.cp > 1
    gathered = sizes.cp if sizes.algo == "all_gather" else 1
    core = [
        Kept("queries", tokens * query * item),
        Kept("keys and values", gathered * 2 * tokens * key * item),
    ]
    if sizes.attention == "flash":
        core.append(Kept("softmax statistics", tokens * heads * FUSED_SOFTMAX_BYTES, "core"))
    else:
        score = PLAIN_SCORE_BYTES * item / 2 if stack.fused_blocks else item + 4
        core.append(Kept("attention weights", tokens * sizes.seq * heads * score, "core"))
    if copied:
        core.append(Kept("queries, keys and values before their exchange", tokens * (query + 2 * key) * item))
    found = [*_norm(sizes, "layer input", "attention input"), *core]
    if shape.qk_norm:
        found.append(Kept("queries and keys before their norm", tokens * (query + key) * _norm_item(sizes)))
    found.append(Kept("attention result", tokens * query * item))
    if not stack.fused_blocks and sizes.attention == "flash":
        found.append(Kept("attention result by heads", tokens * query * item, "core"))
    reads, writes = _norm(sizes, "residual", "feed-forward input")
    # Our router keeps a float32 copy of it, and what experts are sent is looked up again.
    kept = (reads, writes) if stack.fused_blocks or not shape.num_experts else (reads,)
    return (*found, *kept, *_statistics(sizes, stream))


def _norm_item(sizes: Sizes) -> int:
    return sizes.item if sizes.stack.fused_blocks else 4


def _norm(sizes: Sizes, reads: str, writes: str) -> tuple[Kept, Kept]:
    """What a norm reads, and what it writes for the product behind it: whole where that gathers it and keeps it."""
    h = sizes.shape.hidden_size
    tokens = sizes.tokens if sizes.stack.keeps_gathered else sizes.stream_tokens
    return (
        Kept(reads, sizes.stream_tokens * h * _norm_item(sizes), "input" if reads == "layer input" else "other"),
        Kept(writes, tokens * h * sizes.item),
    )


def _statistics(sizes: Sizes, stream: float) -> tuple[Kept, ...]:
    each = 2 if sizes.shape.norm == "layer" else 1
    return (Kept("norm statistics", 2 * each * 4 * stream / sizes.shape.hidden_size),)


def _feed_forward(sizes: Sizes) -> tuple[Kept, ...]:
    shape = sizes.shape
    wide = sizes.tokens * shape.ffn_size / sizes.tp * sizes.item
    if shape.activation == "gelu":
        return Kept("up", wide), Kept("activation", wide)
    gates = () if sizes.stack.fused_blocks else (Kept("activated gate", wide),)
    return Kept("gate and up", 2 * wide), *gates, Kept("product", wide)


def _experts(sizes: Sizes) -> tuple[Kept, ...]:
    """Rows are tokens at an expert; balanced, since the router's loss makes them so."""
    shape, item, h = sizes.shape, sizes.item, sizes.shape.hidden_size
    rows = expert_rows(sizes)
    width = shape.expert_ffn_size / (sizes.tp if sizes.stack.experts_cut_by_tp else 1)
    gates = 2 if sizes.stack.fused_blocks else 3
    return (
        Kept("router", (h + 2 * shape.num_experts) * sizes.stream_tokens * 4),
        Kept("rows of each token's experts", sizes.stream_tokens * shape.experts_per_token * h * item),
        Kept("rows of experts", rows * h * item),
        Kept("gates and ups of experts", gates * rows * width * item),
        Kept("products of experts", rows * width * item),
    )


def expert_rows(sizes: Sizes) -> float:
    """Rows that the experts of a rank compute for a micro-batch."""
    # A rank of tp has all experts' narrow parts and all tokens, or its own experts' rows of its share of tokens.
    mine = sizes.tokens if sizes.stack.experts_cut_by_tp else sizes.tokens / sizes.tp
    return routed_rows(sizes.shape, sizes.stack, mine, sizes.seq)
