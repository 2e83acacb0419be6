"""What one rank feeds its model in a step, as arrays.

In: a Plan, a rank, the step's global batch. Out: tuples of TrainingModel's inputs [rows, S]. Loss weights are 1 over
the number of valid tokens of the whole step (or evaluation), so that the losses of ranks and micro-batches add up.

>>> rank_inputs(plan, 0, batch)  # one tuple a micro-batch; where the engine cuts, one with the rows of all
"""

from __future__ import annotations

import numpy as np

from msparallel.data.batch import Batch, micro_batches, shard
from msparallel.plan import Plan

Arrays = tuple[np.ndarray, ...]


def rank_inputs(plan: Plan, rank: int, batch: Batch) -> list[Arrays]:
    """Inputs of one optimizer step. `batch`: the rows of all ranks and micro-batches."""
    mine = [shard_of(plan, rank, part) for part in micro_batches(batch, plan.micro_batch_num)]
    return [model_inputs(part, batch.valid_tokens) for part in ([_joined(mine)] if plan.shards else mine)]


def shard_of(plan: Plan, rank: int, batch: Batch) -> Batch:
    """A rank's rows of one micro-batch of all replicas."""
    return shard(batch, data_parallel=plan.mesh.dp, dp_rank=plan.mesh.coordinates(rank)["dp"])


def model_inputs(batch: Batch, valid_tokens: int) -> Arrays:
    """TrainingModel's inputs. `valid_tokens`: of all batches whose losses are added."""
    weights = batch.loss_mask / np.float32(valid_tokens)
    return batch.input_ids, batch.labels, weights, batch.position_ids, batch.segment_ids


def _joined(parts: list[Batch]) -> Batch:
    return Batch(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})
