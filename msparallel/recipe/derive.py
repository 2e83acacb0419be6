"""What follows from a recipe's values: computed once, here, never typed by the user.

In: a Recipe that may still break rules. Out: derived values, or None where they do not follow (a rule then says why).
Rules and Plan read the same functions, so that a message and the run cannot disagree.

>>> equal_shares(6, 4)
(2, 2, 1, 1)
"""

from __future__ import annotations

import math
from dataclasses import fields

from msparallel.hardware import Hardware, hardware_names, load_hardware
from msparallel.mesh import Mesh
from msparallel.model.presets import PRESETS
from msparallel.model.shape import ModelShape
from msparallel.recipe.recipe import Recipe

DEGREES = {"pipeline_stages": "pp", "data_parallel": "dp", "context_parallel": "cp", "model_parallel": "tp"}
"""Recipe key of each axis, in rank order."""
REQUIRED_SHAPE = ("num_layers", "hidden_size", "num_heads", "ffn_size", "vocab_size")
"""Numbers that a model without a preset must state."""


def hardware(recipe: Recipe) -> Hardware | None:
    """Profile of `cluster.hardware`, None for an unknown name."""
    name = recipe.cluster.hardware
    return load_hardware(name) if name in hardware_names() else None


def shape(recipe: Recipe) -> ModelShape | None:
    """Preset with the recipe's own numbers over it; None while a needed number is missing."""
    names = [field.name for field in fields(ModelShape)]
    stated = {name: getattr(recipe.model, name) for name in names if getattr(recipe.model, name) is not None}
    base: dict[str, object] = {}
    if recipe.model.preset is not None:
        preset = PRESETS.get(recipe.model.preset)
        if preset is None:
            return None
        base = {name: getattr(preset, name) for name in names}
        if preset.num_kv_heads == preset.num_heads:
            del base["num_kv_heads"]  # follows num_heads
        if preset.head_dim * preset.num_heads == preset.hidden_size:
            del base["head_dim"]  # follows hidden_size / num_heads
    values = {**base, **stated}
    if any(name not in values for name in REQUIRED_SHAPE if not (name == "ffn_size" and values.get("num_experts"))):
        return None
    values.setdefault("ffn_size", values.get("expert_ffn_size", 0))
    return ModelShape(**values)  # type: ignore[arg-type]


def stated_devices(recipe: Recipe) -> int | None:
    """nodes x devices_per_node where the recipe says so."""
    cluster = recipe.cluster
    if cluster.devices_per_node is None:
        return None
    return (cluster.nodes or 1) * cluster.devices_per_node


def mesh(recipe: Recipe) -> Mesh | None:
    """Degrees with `auto` resolved from the stated devices; None while that is impossible."""
    degrees = {axis: getattr(recipe.parallel, key) for key, axis in DEGREES.items()}
    automatic = [axis for axis, degree in degrees.items() if degree == "auto"]
    if automatic:
        devices = stated_devices(recipe)
        others = math.prod(degree for degree in degrees.values() if degree != "auto")
        if len(automatic) > 1 or devices is None or devices % others:
            return None
        degrees[automatic[0]] = devices // others
    return Mesh(**degrees)


def nodes_and_devices(recipe: Recipe) -> tuple[int, int] | None:
    """(nodes, devices per node); what is not stated follows from the degrees, full nodes first."""
    nodes, per_node = recipe.cluster.nodes, recipe.cluster.devices_per_node
    if per_node is not None:
        return nodes or 1, per_node
    grid, machine = mesh(recipe), hardware(recipe)
    if grid is None or machine is None:
        return None
    if nodes is None:
        nodes = 1 if grid.size <= machine.devices_per_node else -(-grid.size // machine.devices_per_node)
    return (nodes, grid.size // nodes) if grid.size % nodes == 0 else None


def batch(recipe: Recipe) -> tuple[int, int, int] | None:
    """(global_batch_size, micro_batch_size, micro_batch_num); None while two of the three are not stated or the
    arithmetic does not come out."""
    grid = mesh(recipe)
    if recipe.train is None or grid is None:
        return None
    total, micro, count = recipe.train.global_batch_size, recipe.train.micro_batch_size, recipe.parallel.micro_batch_num
    if total is not None and micro is not None:
        derived, rest = divmod(total, grid.dp * micro)
        return (total, micro, derived) if not rest and count in (None, derived) else None
    if count is None or (total is None and micro is None):
        return None
    if micro is not None:
        return grid.dp * micro * count, micro, count
    derived, rest = divmod(total, grid.dp * count)
    return (total, derived, count) if not rest else None


def equal_shares(items: int, parts: int) -> tuple[int, ...]:
    """Items for each part, as equal as they get, the larger shares first."""
    return tuple(items // parts + (i < items % parts) for i in range(parts))


def stage_layers(recipe: Recipe) -> tuple[int, ...] | None:
    """Layers of every group in the order in which a sample passes them: stages x virtual_stages numbers."""
    grid, model = mesh(recipe), shape(recipe)
    if recipe.parallel.stage_layers is not None:
        return tuple(recipe.parallel.stage_layers)
    if grid is None or model is None:
        return None
    groups = grid.pp * recipe.parallel.virtual_stages
    return equal_shares(model.num_layers, groups) if model.num_layers % groups == 0 else None


def attention(recipe: Recipe) -> str:
    """`flash` or `plain`: what `auto` means on this recipe's hardware."""
    machine = hardware(recipe)
    if recipe.model.attention == "auto":
        return "flash" if machine is not None and machine.target == "Ascend" else "plain"
    return recipe.model.attention
