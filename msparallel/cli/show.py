"""`msparallel show`: the resolved recipe, or MindSpore's own calls."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command(epilog="""\b
Examples:
  $ msparallel show gpt_tiny_dp2_cpu parallel.data_parallel=1
  $ msparallel show llama2_7b_dp2_tp2_pp2 --context --rank 5
  mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel", ...)
  $ msparallel show llama2_7b_dp2_tp2_pp2 --context --json
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--context", is_flag=True, help="The literal MindSpore calls instead of the recipe.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Whose calls.")
@click.option("--api", type=click.Choice(["context", "autoparallel"]), default="context", show_default=True,
              help="set_auto_parallel_context, or the newer AutoParallel.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(recipe_name: str, overrides: tuple[str, ...], context: bool, rank: int, api: str, as_json: bool) -> None:
    """Print RECIPE with everything resolved: presets, defaults, derived numbers, the grid of devices."""
    from msparallel.cli import report
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe

    plan = resolve(load_recipe(recipe_name, overrides))
    if rank >= plan.world_size:
        raise click.UsageError(f"--rank {rank}: {plan.mesh} has ranks 0 to {plan.world_size - 1}.")
    if as_json:
        click.echo(json.dumps(_document(plan, rank, context, api), indent=2))
        return
    if context:
        from msparallel.context import autoparallel_text, context_calls

        click.echo(context_calls(plan, rank) if api == "context" else autoparallel_text(plan, rank))
        return
    click.echo(report.recipe_yaml(plan))
    lines = [*plan.recipe.notes, f"devices: {report.devices_text(plan)}", f"model: {report.model_text(plan)}",
             f"layers: {report.layers_text(plan)}"]  # fmt: skip
    if plan.recipe.train is not None:
        lines.append(f"batch: {report.batch_text(plan)}")
    lines += [f"mesh: {plan.mesh}", *report.grid_lines(plan.mesh)]
    click.echo("\n".join(f"# {line}" for line in lines))


def _document(plan: Any, rank: int, context: bool, api: str) -> dict[str, Any]:
    from msparallel.cli import report

    document: dict[str, Any] = {
        "name": plan.recipe.name,
        "path": plan.recipe.path,
        "overrides": list(plan.recipe.overrides),
        "notes": list(plan.recipe.notes),
        "recipe": report.resolved_sections(plan),
        "derived": {
            "mesh": plan.mesh.degrees,
            "world_size": plan.world_size,
            "stage_layers": list(plan.stage_layers),
            "layer_stages": list(plan.layer_stages),
            "accumulation_steps": plan.accumulation_steps,
            "parameters": plan.shape.parameters(),
            "padded_vocab_size": plan.shape.padded_vocab_size,
        },
    }
    if context:
        from msparallel.context import autoparallel_calls, context_kwargs

        document["rank"] = rank
        document["context"] = context_kwargs(plan, rank) if api == "context" else autoparallel_calls(plan)
    return document
