"""`msparallel simulate`: every rank's graph executed here, and compared with one device."""

from __future__ import annotations

import json

import click


@click.command(epilog="""\b
Examples:
  $ msparallel simulate llama2_7b_dp2_tp2_pp2
  $ msparallel simulate llama2_7b_dp2_tp2_pp2 --steps 5 parallel.sequence_parallel=true
  $ msparallel simulate qwen3_8b_cp4_tp2 parallel.context_parallel_algo=ulysses --json
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Training steps to execute.")
@click.option("--full", is_flag=True, help="Keep the model's sizes, and read the recipe's own text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(
    ctx: click.Context, recipe_name: str, overrides: tuple[str, ...], steps: int, full: bool, as_json: bool
) -> None:
    """Execute RECIPE's training steps on a virtual cluster and compare with a single process.

    The model is made small unless --full is given: its strategy stays, its sizes become the smallest that the degrees
    divide. Exit code 1 where the cluster computes something else, or would hang.
    """
    from msparallel.cli import simulate_text
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.simulate.simulate import simulate

    found = simulate(resolve(load_recipe(recipe_name, overrides)), steps=steps, full=full)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else simulate_text.simulation_text(found))
    ctx.exit(0 if found.same else 1)
