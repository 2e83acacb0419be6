"""What follows from a recipe's values: computed once, here, never typed by the user.

In: a Recipe that may still break rules. Out: derived values, or None where they do not follow (a rule then says why).
Rules and Plan read the same functions, so that a message and the run cannot disagree.

>>> equal_shares(6, 4)
(2, 2, 1, 1)
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from typing import Any

from msparallel.hardware import Hardware, hardware_names, load_hardware
from msparallel.mesh import Mesh
from msparallel.model.presets import PRESETS
from msparallel.model.shape import ModelShape
from msparallel.recipe.recipe import Recipe

DEGREES = {"pipeline_stages": "pp", "data_parallel": "dp", "context_parallel": "cp", "model_parallel": "tp"}
"""Recipe key of each axis, in rank order."""
_SHAPE_FIELDS = {field.name: field for field in fields(ModelShape)}
REQUIRED_SHAPE = ("num_layers", "hidden_size", "num_heads", "ffn_size", "vocab_size")
"""Numbers that a model without a preset must state."""


def hardware(recipe: Recipe) -> Hardware | None:
    """Profile of `cluster.hardware`, None for an unknown name."""
    name = recipe.cluster.hardware
    return load_hardware(name) if name in hardware_names() else None


def number(recipe: Recipe, name: str) -> Any:
    """One field of the model's shape: stated, or the preset's, or what follows from others; None where it does not
    follow. Rules read single numbers, so that a broken one silences only the rules that need it."""
    stated = getattr(recipe.model, name)
    if stated is not None:
        return stated
    preset = None
    if recipe.model.preset is not None:
        preset = PRESETS.get(recipe.model.preset)
        if preset is None:
            return None
    if preset is not None:
        own = {
            "num_kv_heads": preset.num_kv_heads != preset.num_heads,  # otherwise it follows num_heads
            "head_dim": preset.head_dim * preset.num_heads != preset.hidden_size,  # otherwise it follows both
        }
        if own.get(name, True):
            return getattr(preset, name)
    if name == "num_kv_heads":
        return number(recipe, "num_heads")
    if name == "head_dim":
        hidden, heads = number(recipe, "hidden_size"), number(recipe, "num_heads")
        return hidden // heads if hidden and heads else None
    if name == "ffn_size" and number(recipe, "num_experts"):
        return number(recipe, "expert_ffn_size")
    default = _SHAPE_FIELDS[name].default
    return None if default is MISSING else default


def shape(recipe: Recipe) -> ModelShape | None:
    """Preset with the recipe's own numbers over it; None while a needed number is missing."""
    values = {name: number(recipe, name) for name in _SHAPE_FIELDS}
    return None if None in values.values() else ModelShape(**values)


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


def degree(recipe: Recipe, axis: str) -> int | None:
    """Degree of one axis. Reads the other degrees only where this one is `auto`."""
    key = next(key for key, name in DEGREES.items() if name == axis)
    stated = getattr(recipe.parallel, key)
    if stated != "auto":
        return stated
    grid = mesh(recipe)
    return None if grid is None else getattr(grid, axis)


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
    replicas = degree(recipe, "dp")
    if recipe.train is None or replicas is None:
        return None
    total, micro, count = recipe.train.global_batch_size, recipe.train.micro_batch_size, recipe.parallel.micro_batch_num
    if total is not None and micro is not None:
        derived, rest = divmod(total, replicas * micro)
        return (total, micro, derived) if not rest and count in (None, derived) else None
    if count is None or (total is None and micro is None):
        return None
    if micro is not None:
        return replicas * micro * count, micro, count
    derived, rest = divmod(total, replicas * count)
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
