"""What a job needs of its nodes' memory and disk, on paper.

In: a Plan. Out: Needs, in bytes; sizes are the planner's.

>>> needs_of(resolve(load_recipe("gpt_tiny_dp2_cpu"))).checkpoint_bytes
7888896
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.plan import Plan
from msparallel.planner.memory import stage_memories
from msparallel.planner.state import stage_states
from msparallel.planner.workload import workload_of


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Attributes:
    checkpoint_bytes: of one; ranks that hold slices write theirs, otherwise one copy is written.
    checkpoints: that are on the disk at once: those that stay, and the one being written.
    memory_bytes: of a node's host for weights, gradients and optimizer state of its workers; 0 where devices hold
        them.
    """

    checkpoint_bytes: int
    checkpoints: int
    memory_bytes: int


def needs_of(plan: Plan) -> Needs:
    """Of a recipe that trains."""
    train = plan.recipe.train
    assert train is not None, "only recipes with a train section are trained"
    work = workload_of(plan)
    states = stage_states(work)
    written = [round(state.weights_bytes + state.optimizer_bytes) for state in states]
    per_stage = plan.world_size // len(states)
    on_host = plan.hardware.target == "CPU"
    return Needs(
        checkpoint_bytes=sum(written) * per_stage if plan.shards else written[0],
        checkpoints=train.keep_checkpoints + 1,
        memory_bytes=max(stage.state_bytes for stage in stage_memories(work)) * plan.devices_per_node * on_host,
    )
