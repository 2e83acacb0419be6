"""What one rank feeds its model: its rows of every step and of the evaluation, as tensors.

In: a Plan, a rank, the opened data. Out: tuples of TrainingModel's inputs [rows, S], as `rank_inputs` has them.

>>> Feed(plan, rank=0, data=data).step(0)  # one tuple a micro-batch; where the engine cuts, one with the rows of all
"""

from __future__ import annotations

from mindspore import Tensor

from msparallel.data.dataset import Dataset
from msparallel.plan import Plan
from msparallel.train.rank_inputs import Arrays, model_inputs, rank_inputs, shard_of

Inputs = tuple[Tensor, ...]


class Feed:
    """The rows of one rank."""

    def __init__(self, plan: Plan, *, rank: int, data: Dataset):
        self._plan, self._rank, self._data = plan, rank, data
        self._loader = data.train_loader(global_batch_size=plan.global_batch_size)

    def step(self, step: int) -> list[Inputs]:
        """Inputs of the optimizer step with index `step`."""
        return _tensors(rank_inputs(self._plan, self._rank, self._loader.global_batch(step)))

    def evaluation(self) -> list[Inputs]:
        """This rank's part of the evaluation; its sequences do not depend on the plan's degrees.

        Where every rank holds the whole model each takes every dp-th micro-batch; where the engine cuts, a micro-batch
        takes all ranks.
        """
        plan, rank = self._plan, self._rank
        train, rows, dp = plan.recipe.train, plan.micro_batch_size, plan.mesh.dp
        assert train is not None, "only recipes with a train section are trained"
        size = rows * dp if plan.shards else rows
        batches = list(self._data.eval_batches(batch_size=size, max_sequences=train.eval_sequences))
        valid = sum(batch.valid_tokens for batch in batches)
        if plan.shards:
            mine = [shard_of(plan, rank, batch) for batch in batches]
        else:
            mine = batches[plan.mesh.coordinates(rank)["dp"] :: dp]
        return _tensors([model_inputs(batch, valid) for batch in mine])


def _tensors(inputs: list[Arrays]) -> list[Inputs]:
    return [tuple(map(Tensor, arrays)) for arrays in inputs]
