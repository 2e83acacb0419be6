"""`msparallel validate`: every rule, on one or more recipes."""

from __future__ import annotations

import json

import click


@click.command(epilog="""\b
Examples:
  $ msparallel validate quickstart
  $ msparallel validate recipes/*.yaml
  $ msparallel validate llama2_13b_dp4_tp4_pp2 parallel.model_parallel=3
  command line  parallel.model_parallel: 3
    40 attention heads cannot be split over 3 devices (40 % 3 = 1).
    Try: parallel.model_parallel=4
""")  # fmt: skip
@click.argument("words", metavar="RECIPE... [SECTION.KEY=VALUE...]", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(words: tuple[str, ...], as_json: bool) -> int:
    """Check recipes against every rule; all problems at once.

    Exit code 0 where all hold, 2 where one does not.
    """
    from msparallel.cli.recipe_arguments import split_overrides
    from msparallel.errors import Problem, RecipeError
    from msparallel.recipe.load import load_recipe

    recipes, overrides = split_overrides(words)
    if not recipes:
        raise click.UsageError("Name at least one recipe; everything given is an override.")
    problems: list[Problem] = []
    for name in recipes:
        try:
            recipe = load_recipe(name, overrides)
        except RecipeError as error:
            problems += error.problems
            continue
        if not as_json:
            from msparallel.cli.report import checked_lines

            click.echo("\n".join(checked_lines(recipe)))
    if as_json:
        ordered = RecipeError(problems).problems
        click.echo(json.dumps({"problems": [problem.to_json() for problem in ordered]}, indent=2))
    elif problems:
        raise RecipeError(problems)
    return 2 if problems else 0
