"""The mixture-of-experts feed-forward layer: every token goes to its top-k experts, each a SwiGLU.

In: x [T, H] with T = B * S (B sequences of S tokens). Out: y [T, H] and the load-balancing loss, float32 [B].
E experts of width F, k chosen per token. Weights are Hugging Face's for Qwen3-MoE with the experts stacked:
`gate.weight` [E, H], `experts.gate_proj` and `experts.up_proj` [E, F, H], `experts.down_proj` [E, H, F].

An expert has C slots for the tokens of one sequence: C = ceil(factor * S * k / E), filled in token order; a choice
that finds its expert full is dropped. Slots belong to a sequence and a sequence to one data-parallel rank, so what is
dropped is the same under every strategy. A factor of 0 is dropless: C = S, which no expert can exceed. Shapes are
static either way, so dropless costs E / k times the arithmetic of the chosen experts; with many experts state a factor.

A stage's dp x cp x tp devices share the work as `ExpertAxes` says: experts are cut over `expert_parallel` of them,
sequences and slots over all others, so weights repeat on dp * cp * tp / expert_parallel devices. Tokens meet experts of
other data-parallel ranks by an AllToAll (in MindSpore only with `enable_alltoall`; without, by AllGather and a slice).

>>> moe = MixtureOfExperts(shape, OpParallelConfig(sharded=False), ms.float32)  # doctest: +SKIP
>>> y, aux = moe(x, batch, seq)  # doctest: +SKIP
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer
from mindspore.ops.auto_generate import SiLU
from mindspore.parallel import Layout

from msparallel.model.expert_axes import ExpertAxes, expert_axes
from msparallel.model.routing import BalanceLoss, Router, Slots, expert_slots
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class Experts(nn.Cell):
    """Rows of every expert [E, R, H] -> [E, R, H]: down(silu(gate(x)) * up(x)), a batched product over experts."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, axes: ExpertAxes, compute_dtype: ms.Type) -> None:
        super().__init__()
        experts, h, f = shape.num_experts, shape.hidden_size, shape.expert_ffn_size
        self.gate_proj = Parameter(initializer("zeros", (experts, f, h), ms.float32), name="gate_proj")
        self.up_proj = Parameter(initializer("zeros", (experts, f, h), ms.float32), name="up_proj")
        self.down_proj = Parameter(initializer("zeros", (experts, h, f), ms.float32), name="down_proj")
        self.dtype = compute_dtype
        self.cast, self.silu, self.mul = ops.Cast(), SiLU(), ops.Mul()
        self.matmul = ops.BatchMatMul(transpose_b=True)
        if parallel.sharded:
            self.shard(axes)

    def construct(self, rows):
        gate = self.silu(self.matmul(rows, self.cast(self.gate_proj, self.dtype)))
        up = self.matmul(rows, self.cast(self.up_proj, self.dtype))
        return self.matmul(self.mul(gate, up), self.cast(self.down_proj, self.dtype))

    def shard(self, axes: ExpertAxes) -> None:
        """The table of strategies: experts over expert_parallel, rows over the other axes."""
        layout = Layout((axes.outer, axes.share, axes.experts), ("outer", "share", "experts"))
        rows = layout("experts", ("share", "outer"), "None")
        weight = layout("experts", "None", "None")
        self.cast.shard((weight,))
        self.matmul.shard((rows, weight))
        self.silu.shard((rows,))
        self.mul.shard((rows, rows))


class MixtureOfExperts(nn.Cell):
    """x [T, H] -> y [T, H] and the load-balancing loss of `BalanceLoss`, float32 [B].

    Args:
        shape: sizes; `num_experts`, `experts_per_token`, `expert_ffn_size`, `expert_capacity_factor` are read.
        parallel: degrees; sequences are cut over data_parallel, experts over expert_parallel.
        compute_dtype: dtype of the experts' products and of y; the router computes in float32.

    Raises:
        UserError: degrees that do not fit (`expert_axes`), or, in construct, sequences (`expert_slots`).
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type) -> None:
        super().__init__()
        self.num_experts, self.k, self.factor = shape.num_experts, shape.experts_per_token, shape.expert_capacity_factor
        self.axes = expert_axes(parallel, shape.num_experts)
        self.dtype = compute_dtype
        self.gate = Router(shape, parallel)
        self.balance = BalanceLoss(shape, parallel)
        self.slots = Slots(shape, parallel, self.axes)
        self.experts = Experts(shape, parallel, self.axes, compute_dtype)
        # An operator of its own: ops.reshape() is one function for the whole graph, and the collectives that MindSpore
        # puts beside it would carry the name of whichever cell called it first.
        self.reshape = ops.Reshape()
        self.cast, self.dispatch, self.to_experts = ops.Cast(), ops.Gather(1), ops.Transpose()
        self.from_experts, self.combine, self.own, self.cast_weight = (
            ops.Transpose(),
            ops.Gather(2),
            ops.Mul(),
            ops.Cast(),
        )
        self.weighted_sum, self.tokens_first, self.sum_owners = ops.BatchMatMul(), ops.Transpose(), ops.ReduceSum()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x, batch, seq):
        hidden, k, experts, axes = x.shape[1], self.k, self.num_experts, self.axes
        exchange, share, within, owners = axes.exchange, axes.share, axes.within, axes.owners
        local = experts // axes.experts
        capacity, part = expert_slots(self.factor, seq, k, experts, share)

        probabilities, weights, chosen = self.gate(x)
        chosen = self.reshape(chosen, (batch, seq, k))
        chose, token_of_row, row_of_choice, owned = self.slots(chosen, capacity, part)
        aux = self.balance(self.reshape(probabilities, (batch, seq, experts)), chose)

        # [B, S, H] -> every owner's rows [B, owners, rows, H] -> every expert's rows [E, rows, H]
        rows = self.dispatch(self.reshape(self.cast(x, self.dtype), (batch, seq, hidden)), token_of_row, 1)
        rows = self.reshape(rows, (batch, share, within, exchange, local, part, hidden))
        rows = self.reshape(self.to_experts(rows, (3, 2, 4, 1, 0, 5, 6)), (experts, share * batch * part, hidden))

        # and back; an owner sums the choices it served, then the owners are summed: [B, owners, S, k, H] -> [T, H]
        rows = self.reshape(self.experts(rows), (exchange, within, local, share, batch, part, hidden))
        rows = self.reshape(self.from_experts(rows, (4, 3, 1, 0, 2, 5, 6)), (batch, owners, -1, hidden))
        weights = self.own(owned, self.reshape(weights, (batch, 1, seq, k)))
        weights = self.reshape(self.cast_weight(weights, self.dtype), (batch, owners, seq, 1, k))
        y = self.weighted_sum(weights, self.combine(rows, row_of_choice, 2))
        if owners > 1:
            y = self.reshape(self.tokens_first(y, (0, 2, 1, 3, 4)), (batch * seq, owners, hidden))
            return self.sum_owners(y, 1), aux
        return self.reshape(y, (batch * seq, hidden)), aux

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies.

        Between dispatch and to_experts sequences turn from cut to whole over `exchange`, and experts from whole to
        cut: an AllToAll. Between from_experts and combine it goes back.
        """
        dp, tokens, axes = parallel.data_parallel, parallel.token_parallel, self.axes
        layout = Layout((axes.outer, axes.exchange, axes.share, axes.within), ("outer", "exchange", "share", "within"))
        owned, choices = (dp, axes.owners, 1, 1), (dp, axes.owners, 1, 1, 1)
        self.cast.shard(((tokens, 1),))
        self.dispatch.shard(((dp, 1, 1), (dp, axes.owners, 1)))
        self.to_experts.shard((layout("outer", "share", "within", "exchange", "None", "None", "None"),))
        self.from_experts.shard((layout("exchange", "within", "None", "share", "outer", "None", "None"),))
        self.own.shard((owned, (dp, 1, 1, 1)))
        self.cast_weight.shard((owned,))
        self.combine.shard((owned, owned))
        self.weighted_sum.shard((choices, choices))
        self.tokens_first.shard((choices,))
        # Where tokens are cut over all owners, each sums its own tokens; else all sum all (AllReduce).
        self.sum_owners.shard(((tokens, 1, 1) if tokens == dp * axes.owners else (dp, axes.owners, 1),))
