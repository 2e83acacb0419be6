"""What a checked recipe comes to, as lines of text.

In: a Recipe, or its Plan. Out: numbered lines of what was checked; the grid of devices; the resolved recipe as YAML.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import yaml

from msparallel.cli.ls import readable_count
from msparallel.errors import printable
from msparallel.mesh import Mesh
from msparallel.plan import DEFAULT_SEARCH_MODE, Plan, resolve
from msparallel.recipe.derive import DEGREES
from msparallel.recipe.override import section_values, yaml_float
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules import RULES
from msparallel.recipe.rules.finding import arithmetic
from msparallel.recipe.rules.shape import MOE_KEYS
from msparallel.recipe.schema import SECTIONS


def checked_lines(recipe: Recipe) -> list[str]:
    """What holds, one line a subject."""
    plan = resolve(recipe)
    keys = sum(len(values) for values in section_values(recipe).values())
    lines = [
        f"text      {keys} keys in {len(section_values(recipe))} sections, each known and of its type",
        f"devices   {devices_text(plan)}",
        f"model     {model_text(plan)}",
        f"layers    {layers_text(plan)}",
    ]
    if recipe.train is not None:
        lines.append(f"batch     {batch_text(plan)}")
    lines += [f"note      {note}" for note in recipe.notes]
    lines.append(f"rules     {len(RULES)} hold")
    return [f"{printable(recipe.path)}:", *(f"{number:>3}. {line}" for number, line in enumerate(lines, 1))]


def devices_text(plan: Plan) -> str:
    """Arithmetic of degrees and machines."""
    machines = f"{plan.nodes} node{'s' * (plan.nodes > 1)} x {plan.devices_per_node}"
    degrees = "one device" if plan.world_size == 1 else arithmetic(plan.mesh)
    return f"{degrees}, on {machines} ({plan.hardware.chip})"


def model_text(plan: Plan) -> str:
    """Size and attention."""
    shape = plan.shape
    split = f", {plan.mesh.tp} parts of {shape.num_heads // plan.mesh.tp} heads" if plan.mesh.tp > 1 else ""
    return (
        f"{readable_count(shape.parameters())} parameters, hidden {shape.hidden_size}, {shape.num_heads} heads "
        f"({shape.num_kv_heads} kv){split}, vocabulary {shape.padded_vocab_size}, {plan.attention} attention"
    )


def layers_text(plan: Plan) -> str:
    """Layers of each stage."""
    if len(plan.stage_layers) == 1:
        return f"{plan.shape.num_layers} on every device"
    virtual = plan.recipe.parallel.virtual_stages
    groups = f" in {virtual} groups" if virtual > 1 else ""
    stages = [sum(plan.stage_layers[stage :: plan.mesh.pp]) for stage in range(plan.mesh.pp)]
    return f"{plan.shape.num_layers} over {plan.mesh.pp} stages{groups}: {', '.join(map(str, stages))}"


def batch_text(plan: Plan) -> str:
    """Arithmetic of the batch."""
    assert plan.recipe.train is not None
    tokens = plan.global_batch_size * plan.recipe.train.seq_length
    kind = "micro-batches" if plan.mesh.pp > 1 else "accumulation steps"
    return (f"global_batch_size {plan.global_batch_size} = data_parallel {plan.mesh.dp} x micro_batch_size "
            f"{plan.micro_batch_size} x {plan.micro_batch_num} {kind}; {tokens} tokens a step")  # fmt: skip


def grid_lines(mesh: Mesh, most_rows: int = 16) -> list[str]:
    """Ranks by axis: a block a stage, a row for each place on dp and cp, tp along the row."""
    lines: list[str] = []
    width = len(str(mesh.size - 1))
    count = mesh.pp * mesh.dp * mesh.cp
    for row in range(min(count, most_rows)):
        pp, dp, cp = row // (mesh.dp * mesh.cp), row // mesh.cp % mesh.dp, row % mesh.cp
        ranks = [mesh.rank(pp=pp, dp=dp, cp=cp, tp=tp) for tp in range(mesh.tp)]
        place = "  ".join(f"{axis}{at}" for axis, at in (("pp", pp), ("dp", dp), ("cp", cp)) if getattr(mesh, axis) > 1)
        shown = ranks if len(ranks) <= 16 else ranks[:15]
        told = " ".join(f"{rank:>{width}}" for rank in shown) + (f" ... {ranks[-1]}" if len(ranks) > len(shown) else "")
        lines.append(f"{place}  rank {told}" if place else f"rank {told}")
    if count > most_rows:
        lines.append(f"... {count - most_rows} more rows, to rank {mesh.size - 1}")
    return lines


def resolved_sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Every value that the run uses, by section: stated, from the preset, default and derived. Loads again as a recipe;
    values without effect are left out, as rules ask."""
    recipe, parallel = plan.recipe, plan.recipe.parallel
    result = {
        name: _values(recipe, name) for name in SECTIONS if recipe.keys_stated(name) or name in ("model", "parallel")
    }
    result["model"] |= {
        name: value for name, value in asdict(plan.shape).items() if name in SECTIONS["model"].model_fields
    }
    result["model"]["attention"] = plan.attention
    result["parallel"] |= {key: getattr(plan.mesh, axis) for key, axis in DEGREES.items()}
    if len(plan.stage_layers) > 1:
        result["parallel"] |= {
            "stage_layers": list(plan.stage_layers),
            "pipeline_schedule": parallel.pipeline_schedule or "1f1b",
        }
    if plan.mesh.cp > 1:
        result["parallel"]["context_parallel_algo"] = parallel.context_parallel_algo or "all_gather"
    if parallel.mode == "auto_parallel":
        result["parallel"]["search_mode"] = parallel.search_mode or DEFAULT_SEARCH_MODE
    if recipe.train is not None:
        result |= {name: _values(recipe, name) for name in ("optimizer", "data")}
        result["train"] |= {"global_batch_size": plan.global_batch_size, "micro_batch_size": plan.micro_batch_size}
        result["parallel"]["micro_batch_num"] = plan.micro_batch_num
        if recipe.train.dtype == "float16":
            result["train"]["loss_scale"] = recipe.train.loss_scale or "dynamic"
    result["cluster"] = {"nodes": plan.nodes, "devices_per_node": plan.devices_per_node, "hardware": plan.hardware.name}
    idle = {"model": set(), "train": set()}
    if not plan.shape.num_experts:
        idle["model"].update(MOE_KEYS)
    if plan.shape.position == "learned":
        idle["model"].add("rope_theta")
    if recipe.train is not None and not recipe.train.sample_tokens:
        idle["train"].add("sample_prompt")
    return {
        section: {
            key: result[section][key]
            for key in cls.model_fields
            if key in result[section] and key not in idle.get(section, ())
        }
        for section, cls in SECTIONS.items()
        if section in result
    }


def _values(recipe: Recipe, section: str) -> dict[str, Any]:
    """Stated and default values of a section; None (derived, or off) is left out."""
    values = getattr(recipe, section)
    return {key: value for key in SECTIONS[section].model_fields if (value := getattr(values, key)) is not None}


def recipe_yaml(plan: Plan) -> str:
    """The resolved recipe as YAML; what the user did not write carries a comment."""
    stated = section_values(plan.recipe)
    called = " ".join([plan.recipe.path, *plan.recipe.overrides])
    lines = ["# " + printable(called).replace("\n", "\\n")]
    for section, keys in resolved_sections(plan).items():
        lines += ["", f"{section}:"]
        for key, value in keys.items():
            text = f"  {key}: {_scalar(value)}"
            lines.append(text if key in stated.get(section, {}) else f"{text:<40} # not stated")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """One value as YAML reads it back."""
    if isinstance(value, float):
        return yaml_float(value)
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
