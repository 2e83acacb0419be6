"""A recipe with everything resolved: the one value that context, blocks, data, trainer and planner read.

In: a Recipe that passed every rule. Out: an immutable Plan; nothing in it is still `auto` or None-because-derived.

>>> from msparallel.recipe.load import load_recipe
>>> plan = resolve(load_recipe("llama2_7b_dp2_tp2_pp2"))
>>> str(plan.mesh), plan.micro_batch_num, plan.layer_stages[15:17]
('pp2 x dp2 x tp2 (8)', 8, (0, 1))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msparallel.hardware import Hardware
from msparallel.mesh import Mesh
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig
from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe

CONTEXT_PARALLEL_ALGO = {"all_gather": "colossalai_cp", "ulysses": "ulysses_cp"}
"""Recipe's name -> field of OpParallelConfig (MindFormers' names)."""
DEFAULT_SEARCH_MODE = "recursive_programming"
"""What auto_parallel uses where the recipe names none; MindSpore's default too."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Attributes:
    mesh: degrees, in rank order.
    nodes, devices_per_node: machines.
    stage_layers: layers of each group, in the order a sample passes them (stages x virtual_stages numbers).
    global_batch_size, micro_batch_size, micro_batch_num: sequences of a step, of one replica at a time, and how many
        times; 0 in a recipe that does not train.
    shards: True where MindSpore's auto-parallel engine cuts the graph (semi_auto_parallel, auto_parallel).
    """

    recipe: Recipe
    shape: ModelShape
    mesh: Mesh
    nodes: int
    devices_per_node: int
    hardware: Hardware
    stage_layers: tuple[int, ...]
    global_batch_size: int
    micro_batch_size: int
    micro_batch_num: int
    attention: Literal["flash", "plain"]

    @property
    def world_size(self) -> int:
        return self.mesh.size

    @property
    def shards(self) -> bool:
        return self.recipe.parallel.mode in ("semi_auto_parallel", "auto_parallel")

    @property
    def configures_operators(self) -> bool:
        """Whether blocks give operators their strategies. recursive_programming finds them all by itself;
        sharding_propagation starts from those of the blocks, or of a file: MindSpore takes a file's strategy only for
        an operator that has none."""
        parallel = self.recipe.parallel
        if parallel.mode != "auto_parallel":
            return self.shards
        search_mode = parallel.search_mode or DEFAULT_SEARCH_MODE
        return self.shards and search_mode == "sharding_propagation" and not parallel.strategy_load_file

    @property
    def seq_length(self) -> int:
        if self.recipe.train is not None:
            return self.recipe.train.seq_length
        assert self.recipe.serve is not None
        return self.recipe.serve.max_length

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """Group of each layer; group g runs on stage g % pipeline_stages, as its segment g // pipeline_stages."""
        return tuple(group for group, layers in enumerate(self.stage_layers) for _ in range(layers))

    @property
    def layer_stages(self) -> tuple[int, ...]:
        """Pipeline stage of each layer."""
        return tuple(group % self.mesh.pp for group in self.layer_groups)

    @property
    def accumulation_steps(self) -> int:
        """Gradient accumulation steps: micro-batches of a step where no pipeline takes them."""
        return 1 if self.mesh.pp > 1 else self.micro_batch_num

    @property
    def op_parallel(self) -> OpParallelConfig:
        """What the blocks of one stage read."""
        parallel = self.recipe.parallel
        return OpParallelConfig(
            data_parallel=self.mesh.dp,
            model_parallel=self.mesh.tp,
            context_parallel=self.mesh.cp,
            use_seq_parallel=parallel.sequence_parallel,
            context_parallel_algo=CONTEXT_PARALLEL_ALGO[parallel.context_parallel_algo or "all_gather"],
            expert_parallel=parallel.expert_parallel,
            vocab_parallel=parallel.vocab_parallel,
            recompute=parallel.recompute,
            sharded=self.configures_operators,
        )


def resolve(recipe: Recipe) -> Plan:
    """Plan of a recipe that passed every rule. Raises RecipeError where one does not hold."""
    from msparallel.recipe.rules import check  # rules read derive, as this module does

    check(recipe)
    grid, machine, shape = derive.mesh(recipe), derive.hardware(recipe), derive.shape(recipe)
    cluster, groups = derive.nodes_and_devices(recipe), derive.stage_layers(recipe)
    batch = derive.batch(recipe) if recipe.train is not None else (0, 0, 0)
    assert grid and machine and shape and cluster and groups and batch, "rules hold, so every value follows"
    return Plan(
        recipe=recipe,
        shape=shape,
        mesh=grid,
        nodes=cluster[0],
        devices_per_node=cluster[1],
        hardware=machine,
        stage_layers=groups,
        global_batch_size=batch[0],
        micro_batch_size=batch[1],
        micro_batch_num=batch[2],
        attention=derive.attention(recipe),
    )
