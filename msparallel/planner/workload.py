"""What a plan is made of: one model, one batch, one strategy, and the habits of the software that runs them.

In: a Plan of a recipe, or numbers that were published about a run of other software. Out: a Workload, which
`memory`, `step_time` and `search` read. Nothing in it is MindSpore's.

>>> work = workload_of(resolve(load_recipe("llama2_13b_dp4_tp4_pp2")))
>>> str(work.mesh), work.stage_layers, work.micro_batch_num, work.stack.name
('pp2 x dp4 x tp4 (32)', (20, 20), 16, 'msparallel')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msparallel.hardware import Dtype
from msparallel.mesh import Mesh
from msparallel.model.shape import ModelShape
from msparallel.plan import Plan
from msparallel.planner.shards import DEFAULT_THRESHOLD_KIB
from msparallel.planner.stack import MSPARALLEL, Stack

ShardLevel = Literal["none", "level1", "level2", "level3"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Attributes:
    devices_per_node: of the job; rank = node x devices_per_node + device.
    stage_layers: layers of each group, in the order a sample passes them; group g lives on stage g % pp.
    micro_batch_size, micro_batch_num: sequences of one replica at a time, and how many times a step.
    dtype: of matrix products, and of what they keep for the backward pass.
    expert_parallel: how many ranks of a stage share the experts out.
    recomputed_layers: of each stage, in order, how many layers are recomputed; None: all of them.
    optimizer_shard_size: ranks that share the state out; 0: all that hold copies.
    overlap_gradients: whether gradients are reduced while the backward pass goes on.
    overlap_tensor: whether tensor-parallel messages are fused into the products that make or take them.
    stack: how the software that runs it keeps weights, gradients and moments.
    layer_table_bytes, table_bytes: masks and biases of attention that every layer, or every device, keeps from step to
        step; of other software's runs.
    """

    shape: ModelShape
    mesh: Mesh
    devices_per_node: int
    stage_layers: tuple[int, ...]
    micro_batch_size: int
    micro_batch_num: int
    seq_length: int
    dtype: Dtype
    stack: Stack
    expert_parallel: int = 1
    sequence_parallel: bool = False
    vocab_parallel: bool = False
    context_parallel_algo: Literal["ring", "ulysses", "all_gather"] = "all_gather"
    attention: Literal["flash", "plain"] = "flash"
    recompute: Literal["none", "selective", "full"] = "none"
    recomputed_layers: tuple[int, ...] | None = None
    optimizer_shard: ShardLevel = "none"
    optimizer_shard_size: int = 0
    optimizer_shard_threshold_kib: int = DEFAULT_THRESHOLD_KIB
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    overlap_gradients: bool = False
    overlap_tensor: bool = False
    layer_table_bytes: int = 0
    table_bytes: int = 0

    @property
    def virtual_stages(self) -> int:
        """Groups of layers on each stage."""
        return len(self.stage_layers) // self.mesh.pp

    @property
    def global_batch_size(self) -> int:
        """Sequences of a step."""
        return self.mesh.dp * self.micro_batch_size * self.micro_batch_num

    def layers_of_stage(self, stage: int) -> int:
        """How many layers live on a stage."""
        return sum(self.stage_layers[stage :: self.mesh.pp])


def workload_of(plan: Plan) -> Workload:
    """Of a recipe that trains."""
    parallel, train = plan.recipe.parallel, plan.recipe.train
    assert train is not None, "a recipe that does not train has no step to plan"
    level = parallel.optimizer_shard
    return Workload(
        shape=plan.shape,
        mesh=plan.mesh,
        devices_per_node=plan.devices_per_node,
        stage_layers=plan.stage_layers,
        micro_batch_size=plan.micro_batch_size,
        micro_batch_num=plan.micro_batch_num,
        seq_length=plan.seq_length,
        dtype=train.dtype,
        stack=MSPARALLEL,
        expert_parallel=parallel.expert_parallel,
        sequence_parallel=parallel.sequence_parallel,
        vocab_parallel=parallel.vocab_parallel,
        context_parallel_algo=parallel.context_parallel_algo or "all_gather",
        attention=plan.attention,
        recompute=parallel.recompute,
        optimizer_shard={False: "none", True: "level1"}[level] if isinstance(level, bool) else level,
        optimizer_shard_size=parallel.optimizer_shard_size or 0,
        optimizer_shard_threshold_kib=(
            DEFAULT_THRESHOLD_KIB
            if parallel.optimizer_shard_threshold_kib is None
            else parallel.optimizer_shard_threshold_kib
        ),
        schedule="gpipe" if parallel.pipeline_schedule == "gpipe" else "1f1b",
        overlap_gradients=bool(parallel.overlap_gradients),
    )
