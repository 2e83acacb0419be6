"""One optimizer step that MindSpore's engine cuts: semi_auto_parallel and auto_parallel, with or without a pipeline.

In: this rank's rows of the whole step. Out: the loss, and this rank's slices updated. Everything is one graph: forward
and backward of all micro-batches, the sum over replicas (the engine's mirror operators), the global norm, clipping and
the optimizer.

What differs from MindSpore's own training cells, and why:
- Those divide accumulated gradients by the number of micro-batches (`nn.wrap.cell_wrapper._TrainGradAccuStepCell`).
  Here the loss of a micro-batch is already its share of the step's loss, so they are added and never divided.
- The global norm counts every value of the model once. `gradient.total_square` marks the sum of squares of each
  gradient; below the mark the engine divides by the number of ranks that hold the same slice, and before the root it
  adds over the stage and over the stages (`PARALLEL_GLOBALNORM` in MindSpore's parallel_postprocessor).
- With accumulation, gradients are read where MindSpore's pass leaves their sum: in the accumulation parameters, or with
  the optimizer shard in the gradient itself, which has been scattered over the replicas.

>>> step = ShardedStep(model, optimizer, clip_norm=1.0, micro_batch_num=8, pipeline=True)
>>> loss, norm, overflow = step(*inputs)  # inputs [micro_batch_num * micro_batch_size, S]
"""

from __future__ import annotations

from mindspore import nn, ops
from mindspore.ops.auto_generate import ZerosLikeExt
from mindspore.parallel.nn import GradAccumulation, Pipeline

from msparallel.train.gradient import LossScale
from msparallel.train.optimizer import AdamW
from msparallel.train.update import Update

# ops.zeros_like would be folded into the graph: a constant as large as the gradients, in memory all the time.
_zeros_like = ZerosLikeExt()
_clear = ops.MultitypeFuncGraph("clear_accumulated")


@_clear.register("Tensor", "Tensor")
def _clear_one(total, gradient):
    total = ops.depend(total, gradient)
    return ops.assign(total, _zeros_like(total, None))


class ShardedStep(nn.Cell):
    """Trains a model whose operators have strategies.

    Args:
        network: Cell from the tensors of a micro-batch to its loss, float32 of shape ().
        clip_norm: largest global norm of the gradient, 0 for none.
        micro_batch_num: micro-batches of a step.
        pipeline: whether they go through a pipeline; otherwise they are accumulated one after the other.
        optimizer_shard: whether weights and optimizer state are cut over the replicas.
        loss_scale: LossScale for float16, otherwise None.

    Inputs:
        the network's inputs, [micro_batch_num x rows of a micro-batch, ...].

    Outputs:
        (loss, norm, overflow): float32 (), float32 (1,), bool (). In a pipeline only the last stage knows the loss.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: AdamW,
        *,
        clip_norm: float,
        micro_batch_num: int = 1,
        pipeline: bool = False,
        optimizer_shard: bool = False,
        loss_scale: LossScale | None = None,
    ):
        super().__init__(auto_prefix=False)
        self.accumulates = micro_batch_num > 1 or pipeline
        if pipeline:
            network = Pipeline(network, micro_batch_num)
        elif self.accumulates:
            network = GradAccumulation(network, micro_batch_num)
        self.network = network.set_grad()
        self.weights, self.scaler = optimizer.parameters, loss_scale
        self.gradient = ops.GradOperation(get_by_list=True, sens_param=loss_scale is not None)
        self.update = Update(optimizer, clip_norm=clip_norm, loss_scale=loss_scale)
        self.map = ops.HyperMap()
        self.scattered = optimizer_shard
        if self.accumulates:
            # MindSpore's pass finds its accumulation parameters by this name.
            self.accumulated = self.weights.clone(prefix="accu_grads", init="zeros")

    def construct(self, *inputs):
        loss = self.network(*inputs)
        if self.scaler is None:
            gradients = self.gradient(self.network, self.weights)(*inputs)
        else:
            sens = ops.fill(ops.dtype(loss), ops.shape(loss), self.scaler.value)
            gradients = self.gradient(self.network, self.weights)(*inputs, sens)
        if not self.accumulates:
            return self.update(loss, gradients)
        accumulated = ops.depend(self.accumulated, gradients)
        loss, norm, overflow = self.update(loss, gradients if self.scattered else accumulated)
        accumulated = ops.depend(accumulated, loss)
        return ops.depend(loss, self.map(_clear, accumulated, gradients)), norm, overflow
