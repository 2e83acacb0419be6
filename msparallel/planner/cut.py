"""All that the time of one layer depends on, and where its experts lie.

In: a Workload. Out: a Cut, by which layers that are alike are computed once; rows and experts of a rank.

>>> cut_of(workload_of(resolve(load_recipe("llama2_13b_dp4_tp4_pp2")))).tokens
4096
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from msparallel.hardware import Dtype
from msparallel.model.expert_axes import expert_capacity
from msparallel.model.shape import ModelShape
from msparallel.planner.stack import Stack
from msparallel.planner.workload import Workload

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


class Cut(NamedTuple):
    """All that the time of a layer depends on. A tuple, since it is made and looked up thousands of times a second."""

    shape: ModelShape
    stack: Stack
    dtype: Dtype
    batch: int
    seq: int
    dp: int
    cp: int
    tp: int
    ep: int
    sequence_parallel: bool
    vocab_parallel: bool
    context_parallel_algo: str
    attention: str
    overlap_tensor: bool
    accumulates: bool

    @property
    def tokens(self) -> int:
        """Of a micro-batch on a rank, before sequence parallel cuts them."""
        return self.batch * self.seq // self.cp

    @property
    def stream_tokens(self) -> int:
        """Of them those that norms and residuals of this rank see."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens


def cut_of(work: Workload) -> Cut:
    """The part of a workload that a layer's time depends on."""
    mesh = work.mesh
    return Cut(
        work.shape, work.stack, work.dtype, work.micro_batch_size, work.seq_length,
        mesh.dp if work.expert_parallel > 1 else 1, mesh.cp, mesh.tp, work.expert_parallel,
        work.sequence_parallel, work.vocab_parallel, work.context_parallel_algo, work.attention, work.overlap_tensor,
        work.micro_batch_num > 1 or mesh.pp > 1,
    )  # fmt: skip


class Held(NamedTuple):
    """Experts on a rank, into how many parts tp cuts each, and ranks of dp that tokens are exchanged with."""

    count: int
    width_cut: int
    exchange: int


def expert_share(cut: Cut) -> Held:
    """Experts lie on ranks of tp and cp first, then on those of dp (`model/expert_axes.py`); software that cuts the
    width of each expert over tp as it does everything else has them on ranks of dp only."""
    count = max(cut.shape.num_experts // cut.ep, 1)
    if cut.stack.experts_cut_by_tp:
        return Held(count, cut.tp, cut.ep)
    inner = cut.cp * cut.tp
    return Held(count, 1, max(cut.ep // inner, 1))


def expert_rows(cut: Cut) -> int:
    """Rows that the experts of a rank compute for a micro-batch, taken to be spread evenly."""
    rows = sent_rows(cut)
    return rows if cut.stack.experts_cut_by_tp else -(-rows // cut.tp)


def sent_rows(cut: Cut) -> int:
    """Rows of a rank's tokens on their way to experts."""
    return math.ceil(routed_rows(cut.shape, cut.stack, cut.tokens, cut.seq))


def routed_rows(shape: ModelShape, stack: Stack, tokens: float, seq: int) -> float:
    """Rows of all experts for so many tokens, of sequences of `seq`: all slots where experts have a capacity."""
    if shape.expert_capacity_factor:
        capacity = expert_capacity(shape.expert_capacity_factor, seq, shape.experts_per_token, shape.num_experts)
        return tokens * capacity * shape.num_experts / seq
    return tokens * (shape.num_experts if stack.dropless_pads else shape.experts_per_token)


class LayerNumbers(NamedTuple):
    """In the matrices of a layer on a rank."""

    dense: float
    experts: float


@lru_cache(maxsize=65536)
def layer_numbers(cut: Cut) -> LayerNumbers:
    """The router counts as experts."""
    shape, h = cut.shape, cut.shape.hidden_size
    attention = 2.0 * h * (shape.num_heads + shape.num_kv_heads) * shape.head_dim / cut.tp
    if not shape.num_experts:
        return LayerNumbers(attention + shape.ffn_matrices * h * shape.ffn_size / cut.tp, 0.0)
    held = expert_share(cut)
    width = part(shape.expert_ffn_size, held.width_cut)
    return LayerNumbers(attention, shape.ffn_matrices * float(held.count) * h * width + h * shape.num_experts)


def token_numbers(shape: ModelShape) -> int:
    """In the matrices of a layer that a token is multiplied with: of its experts only, the router left out."""
    width = shape.experts_per_token * shape.expert_ffn_size if shape.num_experts else shape.ffn_size
    attention = 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    return shape.hidden_size * (attention + shape.ffn_matrices * width)


def part(length: int, pieces: int) -> int:
    """The longest of so many pieces."""
    return -(-length // pieces)
