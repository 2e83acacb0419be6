"""One optimizer step where every rank holds the whole model: stand_alone, data_parallel, hybrid_parallel.

In: this rank's micro-batches. Out: the loss summed over all of them and all ranks, and the updated parameters.
The loss of a micro-batch is a sum of token losses already divided by the number of tokens of the whole step, so losses
and gradients add up over micro-batches and ranks; nothing is averaged.

>>> step = LocalStep(model, optimizer, clip_norm=1.0, accumulation_steps=2)
>>> step([first_micro_batch, second_micro_batch])
StepResult(loss=8.31, grad_norm=1.9, overflow=False)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
from mindspore import Tensor, nn, ops

from msparallel.train.gradient import LossScale
from msparallel.train.optimizer import AdamW
from msparallel.train.update import Update

BUCKET_BYTES = 32 * 2**20
"""Gradients are added over ranks in pieces of about this size: few messages, and little memory for the copies."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Attributes:
    loss: over all tokens of the step.
    grad_norm: global norm before clipping.
    overflow: float16 only: gradients were not finite and the step was skipped.
    """

    loss: float
    grad_norm: float
    overflow: bool


def buckets(sizes: Sequence[int], limit_bytes: int = BUCKET_BYTES) -> tuple[tuple[int, int], ...]:
    """Split float32 tensors of these sizes, in order, into runs (start, stop) of at most about `limit_bytes`."""
    result, start, filled = [], 0, 0
    for index, size in enumerate(sizes):
        if filled and filled + 4 * size > limit_bytes:
            result.append((start, index))
            start, filled = index, 0
        filled += 4 * size
    return (*result, (start, len(sizes))) if sizes else ()


class AddOverRanks(nn.Cell):
    """Sum of the loss and of every gradient over the world, float32, a bucket at a time."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        super().__init__()
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.sizes = tuple(math.prod(shape) for shape in self.shapes)
        self.buckets = buckets(self.sizes)
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM)
        self.concat = ops.Concat()

    def construct(self, loss, gradients):
        result = ()
        for start, stop in self.buckets:
            flat = (loss.reshape((1,)),) if start == 0 else ()
            for index in range(start, stop):
                flat = flat + (gradients[index].reshape((-1,)),)
            total = self.all_reduce(self.concat(flat))
            offset = 0
            if start == 0:
                loss, offset = total[0:1].reshape(()), 1
            for index in range(start, stop):
                piece = total[offset : offset + self.sizes[index]]
                result = result + (piece.reshape(self.shapes[index]),)
                offset = offset + self.sizes[index]
        return loss, result


class _Backward(nn.Cell):
    """Loss and gradients of one micro-batch; the gradients are of loss x loss scale."""

    def __init__(self, network: nn.Cell, weights: ms.ParameterTuple, loss_scale: LossScale | None):
        super().__init__(auto_prefix=False)
        self.network, self.weights, self.scaler = network, weights, loss_scale
        self.gradient = ops.GradOperation(get_by_list=True, sens_param=True)

    def construct(self, *inputs):
        loss = self.network(*inputs)
        sens = ops.ones_like(loss) if self.scaler is None else self.scaler.value
        return loss, self.gradient(self.network, self.weights)(*inputs, sens)


class _UpdateOfAllRanks(nn.Cell):
    """Sum over ranks, then the update."""

    def __init__(self, update: Update, shapes: Sequence[tuple[int, ...]], add_over_ranks: bool):
        super().__init__(auto_prefix=False)
        self.update, self.adds = update, add_over_ranks
        if add_over_ranks:
            self.add = AddOverRanks(shapes)

    def construct(self, loss, gradients):
        if self.adds:
            loss, gradients = self.add(loss, gradients)
        return self.update(loss, gradients)


class _WholeStep(nn.Cell):
    """Forward, backward and update in one graph: a step of one micro-batch."""

    def __init__(self, backward: _Backward, update: _UpdateOfAllRanks):
        super().__init__(auto_prefix=False)
        self.backward, self.update = backward, update

    def construct(self, *inputs):
        loss, gradients = self.backward(*inputs)
        return self.update(loss, gradients)


class _Accumulate(nn.Cell):
    """Forward and backward of one micro-batch; gradients are added to `sums`."""

    def __init__(self, backward: _Backward, sums: ms.ParameterTuple):
        super().__init__(auto_prefix=False)
        self.backward, self.sums = backward, sums
        self.map = ops.HyperMap()

    def construct(self, *inputs):
        loss, gradients = self.backward(*inputs)
        return ops.depend(loss, self.map(ops.assign_add, self.sums, gradients))


class _UpdateFromSums(nn.Cell):
    """The update from accumulated gradients, which are then cleared."""

    def __init__(self, update: _UpdateOfAllRanks, sums: ms.ParameterTuple):
        super().__init__(auto_prefix=False)
        self.update, self.sums = update, sums
        self.map = ops.HyperMap()

    def construct(self, loss):
        loss, norm, overflow = self.update(loss, self.sums)
        sums = self.map(ops.depend, self.sums, (loss,) * len(self.sums))
        return ops.depend(loss, self.map(_clear, sums)), norm, overflow


def _clear(total):
    # The operator that would not be folded into a constant (ZerosLikeExt) has no kernel on the processor.
    return ops.assign(total, ops.zeros_like(total))


class LocalStep:
    """Trains a model that every rank holds whole.

    One micro-batch a step is one graph. More are two: one graph adds the gradients of a micro-batch to sums, the other
    updates from the sums; so compile time does not grow with their number.

    Args:
        network: Cell from the tensors of a micro-batch to its loss, float32 of shape ().
        clip_norm: largest global norm of the gradient, 0 for none.
        accumulation_steps: micro-batches of a step.
        loss_scale: LossScale for float16, otherwise None.
        add_over_ranks: whether other ranks train the same model on other samples.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: AdamW,
        *,
        clip_norm: float,
        accumulation_steps: int = 1,
        loss_scale: LossScale | None = None,
        add_over_ranks: bool = False,
    ):
        network.set_train()
        self._accumulation_steps = accumulation_steps
        backward = _Backward(network, optimizer.parameters, loss_scale)
        update = _UpdateOfAllRanks(
            Update(optimizer, clip_norm=clip_norm, loss_scale=loss_scale),
            [parameter.shape for parameter in optimizer.parameters],
            add_over_ranks,
        )
        if accumulation_steps == 1:
            self._whole = _WholeStep(backward, update)
        else:
            sums = optimizer.parameters.clone(prefix="gradient_sum", init="zeros")
            self._accumulate = _Accumulate(backward, sums)
            self._update = _UpdateFromSums(update, sums)

    def graphs(self) -> list[tuple[nn.Cell, str, int]]:
        """What a step runs: cell, whether it takes a micro-batch ("batch") or the sum of losses ("loss"), how often."""
        if self._accumulation_steps == 1:
            return [(self._whole, "batch", 1)]
        return [(self._accumulate, "batch", self._accumulation_steps), (self._update, "loss", 1)]

    def __call__(self, micro_batches: Sequence[tuple[Tensor, ...]]) -> StepResult:
        """Run one optimizer step. `micro_batches`: accumulation_steps tuples of the network's inputs."""
        if len(micro_batches) != self._accumulation_steps:
            raise ValueError(f"{len(micro_batches)} micro-batches for a step of {self._accumulation_steps}")
        if self._accumulation_steps == 1:
            loss, norm, overflow = self._whole(*micro_batches[0])
        else:
            losses = [self._accumulate(*inputs) for inputs in micro_batches]
            loss, norm, overflow = self._update(sum(losses[1:], losses[0]))
        return StepResult(
            loss=float(loss.asnumpy()), grad_norm=float(norm.asnumpy()[0]), overflow=bool(overflow.asnumpy())
        )
