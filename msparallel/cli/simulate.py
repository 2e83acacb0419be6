"""`msparallel simulate`: every rank's graph executed here and compared with one device; or a step's timeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from msparallel.errors import RunError, printable

if TYPE_CHECKING:
    from msparallel.simulate.timed import Timed


@click.command(epilog="""\b
Examples:
  $ msparallel simulate llama2_7b_dp2_tp2_pp2
  $ msparallel simulate llama2_7b_dp2_tp2_pp2 --steps 5 parallel.sequence_parallel=true
  $ msparallel simulate qwen3_8b_cp4_tp2 parallel.context_parallel_algo=ulysses --json
  $ msparallel simulate llama2_13b_dp4_tp4_pp2 --timeline --trace step.json
  $ msparallel simulate llama2_7b_dp2_tp2_pp2 --report report.html
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Training steps to execute.")
@click.option("--full", is_flag=True, help="Keep the model's sizes, and read the recipe's own text.")
@click.option(
    "--timeline",
    "only_time",
    is_flag=True,
    help="Execute nothing: say how long a step of RECIPE as it is takes on its hardware, and why.",
)
@click.option("--trace", metavar="FILE.json", help="Also write the step's timeline for https://ui.perfetto.dev.")
@click.option("--report", metavar="FILE.html", help="Also write a page to look at, one self-contained HTML file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(
    ctx: click.Context, recipe_name: str, overrides: tuple[str, ...], steps: int, full: bool, only_time: bool,
    trace: str | None, report: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Execute RECIPE's training steps on a virtual cluster and compare with a single process.

    The model is made small unless --full is given: its strategy stays, its sizes become the smallest that the degrees
    divide. Exit code 1 where the cluster computes something else, or would hang.
    """
    from msparallel.cli import simulate_text
    from msparallel.cli.dryrun_text import mindspore_version
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.report.page import SIMULATION, check_target, write_page
    from msparallel.report.simulation_data import simulation_data, timed_data
    from msparallel.simulate.simulate import simulate
    from msparallel.simulate.timed import time_recipe

    if report is not None:
        check_target(report, SIMULATION)
    if only_time and full:
        raise click.UsageError("--timeline executes nothing and keeps the model's sizes; --full goes without it.")
    plan = resolve(load_recipe(recipe_name, overrides))
    if only_time:
        timed = time_recipe(plan)
        told = json.dumps(timed.to_json(), indent=2) if as_json else simulate_text.timed_text(timed)
    else:
        found = simulate(plan, steps=steps, full=full)
        timed = found.timed
        told = json.dumps(found.to_json(), indent=2) if as_json else simulate_text.simulation_text(found)
    click.echo(told)
    if trace is not None and timed is not None:
        _write_trace(trace, timed)
        click.echo(f"\nTrace: {printable(trace)} (open it at https://ui.perfetto.dev)", err=as_json)
    if report is not None:
        engine = mindspore_version()
        document = timed_data(timed, engine) if only_time else simulation_data(found, engine)
        write_page(report, SIMULATION, document)
        click.echo(f"\nReport: {printable(report)}", err=as_json)
    ctx.exit(0 if only_time or found.same else 1)


def _write_trace(path: str, timed: Timed) -> None:
    from msparallel.simulate.trace import write_trace

    try:
        write_trace(path, timed.timeline, list(timed.memory.values()))
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise RunError(f"--trace {path}: cannot be written: {error}.") from None
