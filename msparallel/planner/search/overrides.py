"""A strategy that a search found, as lines of the recipe.

In: the Plan of a recipe, and a Workload. Out: what to change in the recipe so that it is that Workload, as `key=value`;
None takes a key away.

>>> overrides_of(plan, found.candidates[0].work)
{'parallel.data_parallel': 4, 'parallel.model_parallel': 2, 'parallel.recompute': 'none'}
"""

from __future__ import annotations

from typing import Any

from msparallel.hardware import Hardware, load_hardware
from msparallel.plan import Plan
from msparallel.planner.search.rules import engine_cuts
from msparallel.planner.search.space import Space
from msparallel.planner.workload import Workload
from msparallel.recipe import derive
from msparallel.recipe.override import format_override, with_values
from msparallel.recipe.recipe import Recipe

DEFAULTS = {
    "parallel.optimizer_shard": "level1",  # what `true` means
    "parallel.context_parallel_algo": "all_gather",
    "parallel.pipeline_schedule": "1f1b",
}
"""What a key means where it is left out or only switched on."""


LEAST_CONTEXT_TOKENS = 8192
"""Context parallel is looked at where each rank keeps so many tokens of a sequence, and where the recipe has it.
MindSpeed's own search leaves it out below that on the 910B (auto_settings, stage_1_prune); published runs with 512 and
1024 tokens a rank were 1.6 and 2.4 times slower than these formulas say."""


def space_of(plan: Plan, *, devices: int | None = None, global_batch_size: int | None = None) -> Space:
    """The space of a recipe's own devices and batch, or of others.

    Args:
        devices: whole nodes of the recipe's hardware, or part of one.
    """
    hardware = plan.hardware
    count = plan.world_size if devices is None else devices
    per_node = plan.devices_per_node if devices is None else min(count, hardware.devices_per_node)
    return Space(
        devices=count,
        devices_per_node=per_node,
        global_batch_size=global_batch_size or plan.global_batch_size,
        engine=engine_cuts(hardware, count),
        vocab_parallel=plan.recipe.parallel.vocab_parallel,
        most_micro_batch=max(16, plan.micro_batch_size),
        most_context_parallel=max(1, plan.mesh.cp, plan.seq_length // LEAST_CONTEXT_TOKENS),
    )


def settings_of(work: Workload, *, engine: bool) -> dict[str, Any]:
    """Everything of the recipe that a search decides, as values of its keys."""
    mesh, shape = work.mesh, work.shape
    groups = len(work.stage_layers)
    equal = shape.num_layers % groups == 0 and set(work.stage_layers) == {shape.num_layers // groups}
    return {
        "parallel.mode": "semi_auto_parallel" if engine else "stand_alone" if mesh.size == 1 else "data_parallel",
        "parallel.data_parallel": mesh.dp,
        "parallel.model_parallel": mesh.tp,
        "parallel.pipeline_stages": mesh.pp,
        "parallel.context_parallel": mesh.cp,
        "parallel.context_parallel_algo": work.context_parallel_algo if mesh.cp > 1 else None,
        "parallel.expert_parallel": work.expert_parallel,
        "parallel.sequence_parallel": work.sequence_parallel,
        "parallel.vocab_parallel": work.vocab_parallel,
        "parallel.virtual_stages": work.virtual_stages,
        "parallel.stage_layers": None if equal else list(work.stage_layers),
        "parallel.pipeline_schedule": "1f1b" if mesh.pp > 1 else None,
        "parallel.optimizer_shard": False if work.optimizer_shard == "none" else work.optimizer_shard,
        "parallel.optimizer_shard_size": None,
        "parallel.recompute": work.recompute,
        "parallel.micro_batch_num": None,
        "train.global_batch_size": work.global_batch_size,
        "train.micro_batch_size": work.micro_batch_size,
    }


def overrides_of(plan: Plan, work: Workload) -> dict[str, Any]:
    """What differs from the recipe; the recipe with it passes every rule and is that Workload."""
    recipe, mesh = plan.recipe, work.mesh
    engine = engine_cuts(plan.hardware, mesh.size)
    wanted = settings_of(work, engine=engine)
    if not engine or mesh.dp * mesh.cp == 1:
        wanted |= {"parallel.comm_fusion": "none", "parallel.overlap_gradients": False}
    if work.optimizer_shard == "none":
        wanted["parallel.optimizer_shard_threshold_kib"] = None
    wanted |= {"parallel.search_mode": None, "parallel.strategy_load_file": None}
    if not engine:
        wanted["parallel.strategy_save_file"] = None
    changes = {key: value for key, value in wanted.items() if not _same(key, recipe.value(key), value)}
    if mesh.size == plan.mesh.size:  # what `auto` takes follows from the other degrees
        automatic = [key for key in changes if recipe.value(key) == "auto"]
        changes = {key: value for key, value in changes.items() if key not in automatic}
    # On a machine that no recipe can name, whole nodes are typed as those of the machine that the recipe names.
    own = recipe_hardware(recipe).devices_per_node
    per_node = work.devices_per_node if work.devices_per_node <= own else min(own, mesh.size)
    machines = (mesh.size // per_node, per_node)
    if derive.nodes_and_devices(with_values(recipe, changes)) != machines:
        changes |= {"cluster.nodes": machines[0], "cluster.devices_per_node": machines[1]}
    return changes


def recipe_hardware(recipe: Recipe) -> Hardware:
    """The machine that a recipe names, whatever it is planned for."""
    return load_hardware(recipe.cluster.hardware)


def typed_overrides(plan: Plan, work: Workload) -> list[str]:
    """What to type after the recipe's name: the overrides that stand already, and those that the strategy needs."""
    changes = overrides_of(plan, work)
    kept = [text for text in plan.recipe.overrides if text.partition("=")[0].strip() not in changes]
    return [*kept, *(format_override(key, value) for key, value in changes.items())]


def _same(key: str, stated: Any, wanted: Any) -> bool:
    if key in DEFAULTS and wanted == DEFAULTS[key] and stated in (None, True):
        return True
    return type(stated) is type(wanted) and stated == wanted
