"""Which slice of which parameter each rank holds, on paper, and the bytes of weights, moments and gradients.

In: a Plan and a rank. Out: a Shard for every parameter of the rank's stage, by Hugging Face's name; their totals.
MindSpore's engine gives the same answer when it compiles the recipe (`msparallel.train.slices` reads it there); this
module gives it in milliseconds, and `tests/planner` holds the two equal.

>>> plan = resolve(load_recipe("llama2_7b_dp2_tp2_pp2", ["parallel.optimizer_shard=true"]))
>>> shards = predict_shards(plan, rank=5)  # stage 1, dp 0, tp 1
>>> shards["lm_head.weight"].part
Slice(shape=(32000, 4096), bounds=((16000, 24000), (0, 4096)), cut_by=(('tp', 'optimizer_shard'), ()))
>>> state_bytes(plan, rank=5).weights_bytes / 2**30
3.1381988525390625
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from msparallel.errors import RecipeError
from msparallel.model.shape import ModelShape
from msparallel.plan import Plan
from msparallel.recipe.rules.mode import feasible_group
from msparallel.slice import Slice

ITEM_BYTES = 4
"""Weights, moments and gradients are float32 whatever `train.dtype` says; that one is of the products."""
MOMENTS = 2
"""AdamW keeps two a weight."""
DEFAULT_THRESHOLD_KIB = 64

CutBy = tuple[str | None, ...]
"""For each dim the axis that cuts it: `tp`, `ep` or None."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One parameter on one rank.

    Attributes:
        part: the whole shape, this rank's bounds, and what cuts each dim: "tp", "ep", "optimizer_shard".
        gathered_bytes: of the slice before the optimizer shard cut it; the forward pass gathers this much.
    """

    part: Slice
    gathered_bytes: int

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of what this rank holds."""
        return tuple(stop - start for start, stop in self.part.bounds)

    @property
    def local_bytes(self) -> int:
        return math.prod(self.local_shape) * ITEM_BYTES

    @property
    def optimizer_shard(self) -> bool:
        """Whether the optimizer shard cuts it."""
        return "optimizer_shard" in self.part.cut_by[0]


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """What a rank holds from step to step, and the gradients that stand beside it.

    Attributes:
        weights_bytes: float32 weights.
        optimizer_bytes: AdamW's two moments, cut like the weights.
        gradients_bytes: with more than one micro-batch or a pipeline the sums that stay for the whole step, otherwise
            the gradients as they wait for the global norm.
    """

    weights_bytes: int
    optimizer_bytes: int
    gradients_bytes: int


def predict_shards(plan: Plan, rank: int) -> dict[str, Shard]:
    """Every parameter of the rank's stage, in the model's order.

    Where the engine does not cut (stand_alone, data_parallel, hybrid_parallel) each rank holds everything whole.
    Otherwise, for a parameter on a stage of R = dp x cp x tp ranks, of which this one is the r-th:

    1. The blocks' strategies (`shard` in msparallel/model) cut one dim over an axis of degree d, whose ranks lie side
       by side: a matrix that makes features is cut along its rows over tp, one that consumes them along its columns,
       tables along the vocabulary over tp with `vocab_parallel`, experts over expert_parallel. The rank has piece r % d
       and is copy r // d of C = R / d. Context parallel and sequence parallel cut activations only.
    2. The optimizer shard cuts dim 0 once more, over s copies; the rank has piece (r // d) % s. What tp does not cut
       is thus cut over tp too. s is `optimizer_shard_size`, or all C copies where it is left out, larger or 1. The
       shard leaves a parameter as it is where there is one copy, where s does not divide C, where dim 0 is no multiple
       of s (times d if d cuts dim 0 too), where the s ranks lie on servers as no group of MindSpore's can, or where
       the bytes of the whole parameter, all slices together, are below the threshold; at the threshold it cuts.

    Source of 2: MindSpore's `OptParamMgrImpl::SplitParam` (threshold), `TensorLayout::GenerateOptShardSliceShape`
    (divisibility) and `OperatorInfo::CreateGroupForOptShard` (groups), in mindspore/ccsrc/frontend/parallel, and
    `set_optimizer_weight_shard_size` in mindspore/parallel (a size of 1); the rest was read off compiled recipes.

    Raises:
        IndexError: the plan has no such rank.
        RecipeError: in auto_parallel MindSpore's search chooses the strategies.
    """
    if plan.recipe.parallel.mode == "auto_parallel":
        message = (
            "MindSpore's search decides how each weight is cut, while it compiles; no plan knows it before. "
            "semi_auto_parallel takes the blocks' own strategies."
        )
        suggestion = "parallel.mode=semi_auto_parallel parallel.search_mode=null"
        raise RecipeError([plan.recipe.problem("shards_follow_strategies", "parallel.mode", message, suggestion)])
    stage = plan.mesh.coordinates(rank)["pp"]
    return {
        name: _shard(plan, rank, shape, cut)
        for name, shape, cut, place in parameters(plan)
        if not plan.shards or place == stage
    }


def state_bytes(plan: Plan, rank: int) -> StateBytes:
    """Totals of one rank; a recipe that does not train has weights only.

    Gradients that are summed over micro-batches are as large as the gathered weights without optimizer shard and with
    `level1`, and cut like the weights with `level2` and `level3`. Where nothing is summed, each gradient is scattered
    over the replicas when it is made, on every level.

    Raises:
        IndexError, RecipeError: as predict_shards.
    """
    shards = predict_shards(plan, rank).values()
    weights = sum(shard.local_bytes for shard in shards)
    if plan.recipe.train is None:
        return StateBytes(weights_bytes=weights, optimizer_bytes=0, gradients_bytes=0)
    sums_are_whole = accumulates(plan) and plan.recipe.parallel.optimizer_shard not in ("level2", "level3")
    gradients = sum(shard.gathered_bytes for shard in shards) if sums_are_whole else weights
    return StateBytes(weights_bytes=weights, optimizer_bytes=MOMENTS * weights, gradients_bytes=gradients)


def accumulates(plan: Plan) -> bool:
    """Whether gradients of several micro-batches are summed in memory of their own."""
    return plan.micro_batch_num > 1 or plan.mesh.pp > 1


def parameters(plan: Plan) -> Iterator[tuple[str, tuple[int, ...], CutBy, int]]:
    """(name, whole shape, axis that cuts each dim, stage) of every parameter of the model."""
    shape, stages = plan.shape, plan.layer_stages
    table = (shape.padded_vocab_size, shape.hidden_size)
    vocab: CutBy = ("tp" if plan.recipe.parallel.vocab_parallel else None, None)
    yield "model.embed_tokens.weight", table, vocab, stages[0]
    if shape.position == "learned":
        whole = (shape.max_positions, shape.hidden_size)
        yield "model.embed_positions.weight", whole, (None, None), stages[0]
    for layer, stage in enumerate(stages):
        for name, whole, cut in layer_parameters(shape):
            yield f"model.layers.{layer}.{name}", whole, cut, stage
    for name, whole, cut in norm_parameters(shape, "norm"):
        yield f"model.{name}", whole, cut, stages[-1]
    if not shape.tie_embeddings:
        yield "lm_head.weight", table, vocab, stages[-1]


def layer_parameters(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...], CutBy]]:
    """(name within the layer, whole shape, axis that cuts each dim); all layers are alike."""
    h, f, bias = shape.hidden_size, shape.ffn_size, shape.attention_bias
    heads, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield from norm_parameters(shape, "input_layernorm")
    for name, width in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
        yield from _column(f"self_attn.{name}", width, h, bias=bias)
    yield from _row("self_attn.o_proj", h, heads, bias=shape.output_bias)
    if shape.qk_norm:
        yield "self_attn.q_norm.weight", (shape.head_dim,), (None,)
        yield "self_attn.k_norm.weight", (shape.head_dim,), (None,)
    yield from norm_parameters(shape, "post_attention_layernorm")
    if shape.num_experts:
        experts, width = shape.num_experts, shape.expert_ffn_size
        yield "mlp.gate.weight", (experts, h), (None, None)
        for name, whole in (("gate", (width, h)), ("up", (width, h)), ("down", (h, width))):
            yield f"mlp.experts.{name}_proj", (experts, *whole), ("ep", None, None)
        return
    yield from _column("mlp.up_proj", f, h, bias=shape.ffn_bias)
    if shape.activation == "swiglu":
        yield from _column("mlp.gate_proj", f, h, bias=shape.ffn_bias)
    yield from _row("mlp.down_proj", h, f, bias=shape.ffn_bias)


def norm_parameters(shape: ModelShape, name: str) -> Iterator[tuple[str, tuple[int, ...], CutBy]]:
    """The same of a norm over the residual stream."""
    yield f"{name}.weight", (shape.hidden_size,), (None,)
    if shape.norm == "layer":
        yield f"{name}.bias", (shape.hidden_size,), (None,)


def _column(name: str, rows: int, columns: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...], CutBy]]:
    yield f"{name}.weight", (rows, columns), ("tp", None)
    if bias:
        yield f"{name}.bias", (rows,), ("tp",)


def _row(name: str, rows: int, columns: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...], CutBy]]:
    yield f"{name}.weight", (rows, columns), (None, "tp")
    if bias:
        yield f"{name}.bias", (rows,), (None,)


def _shard(plan: Plan, rank: int, shape: tuple[int, ...], cut: CutBy) -> Shard:
    stage_ranks = plan.mesh.size // plan.mesh.pp
    degrees = {"tp": plan.mesh.tp, "ep": plan.recipe.parallel.expert_parallel} if plan.shards else {}
    dims = [(length, degrees.get(axis or "", 1), axis) for length, axis in zip(shape, cut, strict=True)]
    degree = math.prod(d for _, d, _ in dims)  # at most one dim is cut
    copy, piece = divmod(rank % stage_ranks, degree)
    bounds = [(0, n) if d == 1 else (piece * (n // d), (piece + 1) * (n // d)) for n, d, _ in dims]
    cut_by = [() if d == 1 else (str(axis),) for _, d, axis in dims]
    gathered = math.prod(stop - start for start, stop in bounds) * ITEM_BYTES
    pieces = _optimizer_pieces(plan, shape, rows_cut=dims[0][1], copies=stage_ranks // degree)
    nearest = rank - copy % pieces * degree
    if pieces > 1 and feasible_group([nearest + place * degree for place in range(pieces)]):
        rows = (bounds[0][1] - bounds[0][0]) // pieces
        start = bounds[0][0] + copy % pieces * rows
        bounds[0] = (start, start + rows)
        cut_by[0] = (*cut_by[0], "optimizer_shard")
    return Shard(part=Slice(shape=shape, bounds=tuple(bounds), cut_by=tuple(cut_by)), gathered_bytes=gathered)


def _optimizer_pieces(plan: Plan, shape: tuple[int, ...], *, rows_cut: int, copies: int) -> int:
    """Into how many pieces the optimizer shard cuts dim 0 of a slice that `copies` ranks hold; 1 leaves it."""
    parallel = plan.recipe.parallel
    if not plan.shards or not parallel.optimizer_shard:
        return 1
    threshold_kib = parallel.optimizer_shard_threshold_kib
    return optimizer_pieces(
        shape,
        rows_cut=rows_cut,
        copies=copies,
        size=parallel.optimizer_shard_size or 0,
        threshold_kib=DEFAULT_THRESHOLD_KIB if threshold_kib is None else threshold_kib,
    )


def optimizer_pieces(shape: tuple[int, ...], *, rows_cut: int, copies: int, size: int, threshold_kib: int) -> int:
    """The same for any numbers; `size` is the ranks that share the state out, 0 or 1 for all `copies`."""
    if math.prod(shape) * ITEM_BYTES < threshold_kib * 1024:
        return 1
    pieces = min(size, copies) if size > 1 else copies
    return pieces if copies % pieces == 0 and shape[0] % (rows_cut * pieces) == 0 else 1
