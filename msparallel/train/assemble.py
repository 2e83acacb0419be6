"""Model, optimizer and step of a plan, put together; nothing is compiled yet.

In: a Plan whose context has been applied. Out: the parts, and the shape of what one rank feeds them.

>>> parts = assemble(plan)
>>> [(graph.cell, graph.executions) for graph in step_graphs(plan, parts)]
"""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from msparallel.model.transformer import TrainingModel, build_model
from msparallel.plan import Plan
from msparallel.train.gradient import LossScale
from msparallel.train.optimizer import AdamW
from msparallel.train.sharded_step import ShardedStep
from msparallel.train.step import LocalStep


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Attributes:
    loss_scale: None unless dtype is float16.
    step: a LocalStep where every rank holds the whole model, otherwise a ShardedStep.
    """

    model: TrainingModel
    optimizer: AdamW
    loss_scale: LossScale | None
    step: LocalStep | ShardedStep

    def state_parameters(self) -> list[ms.Parameter]:
        """The optimizer's state: moments, number of steps, loss scale."""
        scale = [self.loss_scale.value, self.loss_scale.good_steps] if self.loss_scale else []
        return [*self.optimizer.moments1, *self.optimizer.moments2, self.optimizer.global_step, *scale]


def assemble(plan: Plan, *, draw: bool = True) -> Parts:
    """Build the parts of a training recipe.

    Args:
        draw: whether the weights get their first values; not where the step is only compiled.
    """
    recipe, train = plan.recipe, plan.recipe.train
    assert train is not None, "only recipes with a train section are trained"
    model = build_model(
        plan.shape,
        plan.op_parallel,
        seq_length=train.seq_length,
        compute_dtype=getattr(ms, train.dtype),
        attention=plan.attention,
        layer_stages=plan.layer_stages if plan.mesh.pp > 1 else None,
        reused=plan.shards and plan.micro_batch_num > 1,
        seed=train.seed if draw else None,
    )
    optimizer = AdamW(model.trainable_params(), recipe.optimizer, train.steps)
    fixed = None if train.loss_scale in (None, "dynamic") else float(train.loss_scale)
    loss_scale = LossScale(fixed) if train.dtype == "float16" else None
    clip_norm = recipe.optimizer.clip_norm
    if plan.shards:
        step: LocalStep | ShardedStep = ShardedStep(
            model,
            optimizer,
            clip_norm=clip_norm,
            micro_batch_num=plan.micro_batch_num,
            pipeline=plan.mesh.pp > 1,
            optimizer_shard=bool(recipe.parallel.optimizer_shard),
            loss_scale=loss_scale,
        ).set_train()
    else:
        step = LocalStep(
            model,
            optimizer,
            clip_norm=clip_norm,
            accumulation_steps=plan.accumulation_steps,
            loss_scale=loss_scale,
            add_over_ranks=plan.world_size > 1,
        )
    return Parts(model=model, optimizer=optimizer, loss_scale=loss_scale, step=step)


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """One of the graphs that an optimizer step runs.

    Attributes:
        inputs: zeros of the shapes that it takes.
        executions: how often a step runs it.
    """

    cell: nn.Cell
    inputs: tuple[Tensor, ...]
    executions: int


def step_graphs(plan: Plan, parts: Parts) -> list[StepGraph]:
    """The graphs of one optimizer step, in order."""
    batch = placeholder_inputs(plan)
    if isinstance(parts.step, ShardedStep):
        return [StepGraph(cell=parts.step, inputs=batch, executions=1)]
    inputs = {"batch": batch, "loss": (Tensor(0.0, ms.float32),)}
    return [StepGraph(cell=cell, inputs=inputs[takes], executions=n) for cell, takes, n in parts.step.graphs()]


def placeholder_inputs(plan: Plan) -> tuple[Tensor, ...]:
    """Zeros of the shapes that one rank feeds: a micro-batch, or where the engine cuts, its rows of the whole step."""
    rows = plan.micro_batch_size * (plan.micro_batch_num if plan.shards else 1)
    dtypes = (np.int32, np.int32, np.float32, np.int32, np.int32)
    return tuple(Tensor(np.zeros((rows, plan.seq_length), dtype)) for dtype in dtypes)
