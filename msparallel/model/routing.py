"""Which token goes to which expert, and where it sits there.

In: x [T, H], or the experts that tokens chose. Out: weights, places as integers, the load-balancing loss.
T = B * S: B sequences of S tokens; E experts, k of them chosen per token.

>>> probabilities, weights, chosen = Router(shape, parallel)(x)  # doctest: +SKIP
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.ops import constexpr

from msparallel.errors import UserError
from msparallel.model import strategies
from msparallel.model.expert_axes import ExpertAxes, expert_capacity
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class Router(nn.Cell):
    """x [T, H] -> float32 probabilities [T, E], float32 weights [T, k], the chosen experts, int32 [T, k]."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.weight = Parameter(initializer("zeros", (shape.num_experts, shape.hidden_size), ms.float32), name="weight")
        self.k, self.normalize = shape.experts_per_token, shape.normalize_expert_weights
        self.cast, self.matmul, self.softmax = ops.Cast(), ops.MatMul(transpose_b=True), ops.Softmax(-1)
        self.top_k, self.sum, self.div = ops.TopK(), ops.ReduceSum(True), ops.RealDiv()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x):
        probabilities = self.softmax(self.matmul(self.cast(x, ms.float32), self.weight))
        weights, chosen = self.top_k(probabilities, self.k)
        if self.normalize:
            weights = self.div(weights, self.sum(weights, -1))
        # Without the stop, MindSpore would reduce a gradient of integers between devices.
        return probabilities, weights, ops.stop_gradient(chosen)

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies: every device routes its own tokens."""
        stream = strategies.residual(parallel)
        self.matmul.shard(strategies.replicated(parallel))
        for unary in (self.cast, self.softmax, self.top_k, self.sum):
            unary.shard((stream,))
        self.div.shard((stream, stream))


class BalanceLoss(nn.Cell):
    """Probabilities and choices, both float32 [B, S, E] -> float32 [B].

    The loss of a sequence is E / k * sum_e f_e * P_e, where f_e is the fraction of its tokens that chose expert e
    (before any is dropped) and P_e the mean router probability of e: 1 where the load is even, E / k at most. This is
    the sequence-wise balance loss of DeepSeek-V3 (arXiv 2412.19437, equations 17 to 20) over softmax probabilities.
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig) -> None:
        super().__init__()
        self.factor = shape.num_experts / shape.experts_per_token
        self.fraction, self.mean = ops.ReduceMean(), ops.ReduceMean()
        self.mul, self.sum, self.scale = ops.Mul(), ops.ReduceSum(), ops.Mul()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, probabilities, chose):
        per_expert = self.mul(self.fraction(chose, 1), self.mean(probabilities, 1))
        return self.scale(self.sum(per_expert, 1), self.factor)

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        dp = parallel.data_parallel
        self.fraction.shard(((dp, 1, 1),))
        self.mean.shard(((dp, parallel.token_parallel // dp, 1),))
        self.mul.shard(((dp, 1), (dp, 1)))
        self.sum.shard(((dp, 1),))
        self.scale.shard(((dp,), ()))


@constexpr
def expert_slots(factor: float, seq: int, experts_per_token: int, num_experts: int, share: int) -> tuple[int, int]:
    """The capacity of an expert, and its slots on one device of the axis `share`, of which a few may stay free.

    Raises:
        UserError: sequences that `share` does not divide.
    """
    if seq % share:
        raise UserError(
            f"seq_length: {seq}\n  {share} devices (context_parallel x model_parallel / expert_parallel) share the "
            f"slots of an expert, and must divide seq_length. Use {seq - seq % share or share}."
        )
    capacity = expert_capacity(factor, seq, experts_per_token, num_experts)
    return capacity, -(-capacity // share)


class Slots(nn.Cell):
    """Chosen experts, int32 [B, S, k] -> who sits where. Tokens queue up for their experts in order.

    A device of share x within owns `part` slots of each of its experts, as the rows of a table.

    Returns:
        chose: float32 [B, S, E], 1 where the token chose the expert.
        token_of_row: int32 [B, owners, rows]. A row nobody claims names some token; nothing reads its result.
        row_of_choice: int32 [B, owners, S, k], a row in the table of the choice's owner.
        owned: float32 [B, owners, S, k], 1 at the choice's owner; 0 everywhere for a choice that is dropped.
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, axes: ExpertAxes) -> None:
        super().__init__()
        self.num_experts, self.axes = shape.num_experts, axes
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        self.reshape = ops.Reshape()
        self.choose, self.merge, self.running = ops.OneHot(), ops.ReduceSum(), ops.CumSum()
        self.count_down, self.order, self.by_expert, self.first = ops.Sub(), ops.Mul(), ops.Transpose(), ops.TopK()
        self.by_owner = ops.Transpose()
        self.look_up, self.cast, self.from_zero = ops.GatherD(), ops.Cast(), ops.Sub()
        self.floor_div, self.floor_mod, self.mul, self.add = ops.FloorDiv(), ops.FloorMod(), ops.Mul(), ops.Add()
        self.one_hot, self.owner_first = ops.OneHot(), ops.Transpose()
        self.less, self.cast_kept, self.drop, self.cast_owned = ops.Less(), ops.Cast(), ops.Mul(), ops.Cast()
        self.own_row = ops.Mul()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, chosen, capacity, part):
        batch, seq, k = chosen.shape
        exchange, share, within, owners = self.axes.exchange, self.axes.share, self.axes.within, self.axes.owners
        local = self.num_experts // self.axes.experts
        chose = self.merge(self.choose(chosen, self.num_experts, self.on, self.off), 2)
        running = self.running(chose, 1)

        # The first to come has the highest priority, S; who did not choose the expert has 0.
        priority = self.by_expert(self.order(chose, self.count_down(seq + 1.0, running)), (0, 2, 1))
        _, token_of_slot = self.first(priority, share * part)
        token_of_slot = self.reshape(token_of_slot, (batch, exchange, within, local, share, part))
        token_of_row = self.reshape(self.by_owner(token_of_slot, (0, 4, 2, 1, 3, 5)), (batch, owners, -1))

        slot = self.from_zero(self.cast(self.look_up(running, 2, chosen), ms.int32), 1)
        row, owner = self.place(chosen, slot, local, part)
        kept = self.reshape(self.cast_kept(self.less(slot, capacity), ms.float32), (batch, 1, seq, k))
        owned = self.drop(self.owner_first(self.one_hot(owner, owners, self.on, self.off), (0, 3, 1, 2)), kept)
        row_of_choice = self.own_row(self.cast_owned(owned, ms.int32), self.reshape(row, (batch, 1, seq, k)))
        return chose, token_of_row, row_of_choice, owned

    def place(self, expert, slot, local, part):
        """Expert and slot of a choice -> row in its owner's table, and the owner; all int32 [B, S, k]."""
        block, within = self.floor_div(expert, local), self.axes.within
        local_expert = self.add(self.mul(self.floor_div(block, within), local), self.floor_mod(expert, local))
        row = self.add(self.mul(local_expert, part), self.floor_mod(slot, part))
        return row, self.add(self.mul(self.floor_div(slot, part), within), self.floor_mod(block, within))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies: sequences stay whole, because their tokens queue up."""
        dp, owners = parallel.data_parallel, self.axes.owners
        whole, whole4, owned = (dp, 1, 1), (dp, 1, 1, 1), (dp, owners, 1, 1)
        self.choose.shard((whole4, (), ()))
        self.merge.shard((whole4,))
        for unary in (self.running, self.by_expert, self.first, self.cast, self.cast_kept):
            unary.shard((whole,))
        self.count_down.shard(((), whole))
        for binary in (self.order, self.look_up, self.add):
            binary.shard((whole, whole))
        for scaled in (self.from_zero, self.floor_div, self.floor_mod, self.mul, self.less):
            scaled.shard((whole, ()))
        self.by_owner.shard(((dp, 1, 1, 1, 1, 1),))
        self.one_hot.shard((whole4, (), ()))
        self.owner_first.shard((whole4,))
        self.drop.shard((owned, whole4))
        self.cast_owned.shard((owned,))
        self.own_row.shard((owned, whole4))
