"""What one rank feeds its model: its rows of every step and of the evaluation, as tensors.

In: a Plan, a rank, the opened data. Out: tuples of TrainingModel's inputs [rows, S]. Loss weights are 1 over the number
of valid tokens of the whole step (or evaluation), so that the losses of ranks and micro-batches add up.

>>> Feed(plan, rank=0, data=data).step(0)  # one tuple a micro-batch; where the engine cuts, one with the rows of all
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor

from msparallel.data.batch import Batch, micro_batches, shard
from msparallel.data.dataset import Dataset
from msparallel.plan import Plan

Inputs = tuple[Tensor, ...]


class Feed:
    """The rows of one rank."""

    def __init__(self, plan: Plan, *, rank: int, data: Dataset):
        self._plan, self._data = plan, data
        self._dp_rank = plan.mesh.coordinates(rank)["dp"]
        self._loader = data.train_loader(global_batch_size=plan.global_batch_size)

    def step(self, step: int) -> list[Inputs]:
        """Inputs of the optimizer step with index `step`."""
        batch = self._loader.global_batch(step)
        mine = [self._shard(part) for part in micro_batches(batch, self._plan.micro_batch_num)]
        return [_inputs(part, batch.valid_tokens) for part in ([_joined(mine)] if self._plan.shards else mine)]

    def evaluation(self) -> list[Inputs]:
        """This rank's part of the evaluation; its sequences do not depend on the plan's degrees.

        Where every rank holds the whole model each takes every dp-th micro-batch; where the engine cuts, a micro-batch
        takes all ranks.
        """
        train, rows, dp = self._plan.recipe.train, self._plan.micro_batch_size, self._plan.mesh.dp
        assert train is not None, "only recipes with a train section are trained"
        size = rows * dp if self._plan.shards else rows
        batches = list(self._data.eval_batches(batch_size=size, max_sequences=train.eval_sequences))
        valid = sum(batch.valid_tokens for batch in batches)
        mine = [self._shard(batch) for batch in batches] if self._plan.shards else batches[self._dp_rank :: dp]
        return [_inputs(batch, valid) for batch in mine]

    def _shard(self, batch: Batch) -> Batch:
        return shard(batch, data_parallel=self._plan.mesh.dp, dp_rank=self._dp_rank)


def _inputs(batch: Batch, valid_tokens: int) -> Inputs:
    weights = batch.loss_mask / np.float32(valid_tokens)
    return tuple(map(Tensor, (batch.input_ids, batch.labels, weights, batch.position_ids, batch.segment_ids)))


def _joined(parts: list[Batch]) -> Batch:
    return Batch(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})
