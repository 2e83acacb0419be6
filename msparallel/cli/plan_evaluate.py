"""`msparallel plan-evaluate`: the planner's estimates against published measurements."""

from __future__ import annotations

import json

import click


@click.command("plan-evaluate", epilog="""\b
Examples:
  $ msparallel plan-evaluate measured.csv
  $ msparallel plan-evaluate measured.csv --json
  $ msparallel plan-evaluate measured.csv --plot errors.png
""")  # fmt: skip
@click.argument("file", metavar="CASES.csv")
@click.option("--plot", metavar="FILE.png", help="Also draw estimate over measurement, one panel a metric.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(file: str, plot: str | None, as_json: bool) -> None:
    """Estimate the runs of CASES.csv and compare with what was measured.

    Each row is a run: model, batch, degrees, and a memory, a rate or a step time. Every row is compared, or listed
    with the rule that skips it: a row that is not trusted, a feature without formulas, hardware without a profile, a
    number that is missing.
    """
    from msparallel.cli.columns import terminal_width
    from msparallel.cli.plan_evaluate_text import evaluation_text
    from msparallel.planner.measured.evaluate import evaluate

    if plot is not None:
        from msparallel.report.scatter import check_picture, draw_scatter

        check_picture(plot)
    found = evaluate(file)
    if plot is not None:
        draw_scatter(plot, found)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    click.echo(evaluation_text(found, terminal_width()))
    if plot is not None:
        click.echo(f"Picture  {plot}")
