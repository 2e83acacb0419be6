"""`msparallel simulate`: every rank's graph executed here and compared with one device; or a step's timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from msparallel.errors import RunError, printable

if TYPE_CHECKING:
    from msparallel.plan import Plan
    from msparallel.simulate.timed import Timed


@click.command(epilog="""\b
Examples:
  $ msparallel simulate llama2_7b_dp2_tp2_pp2
  $ msparallel simulate llama2_7b_dp2_tp2_pp2 --steps 5 parallel.sequence_parallel=true
  $ msparallel simulate qwen3_8b_cp4_tp2 parallel.context_parallel_algo=ulysses --json
  $ msparallel simulate llama2_13b_dp4_tp4_pp2 --timeline --trace step.json
  $ msparallel simulate llama2_7b_dp2_tp2_pp2 --report report.html
  $ msparallel simulate qwen3_8b_serve_tp2 --tokens 16
  $ msparallel simulate pretrain_qwen3_32b_4k.yaml parallel_config.data_parallel=2
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Training steps to execute.")
@click.option(
    "--tokens", type=click.IntRange(min=1), help="Of a recipe that serves: tokens of each answer; 8 otherwise."
)
@click.option("--full", is_flag=True, help="Keep the model's sizes, and read the recipe's own text.")
@click.option(
    "--timeline",
    "only_time",
    is_flag=True,
    help="Execute nothing: say how long a step of RECIPE as it is takes on its hardware, and why.",
)
@click.option(
    "--model-config",
    metavar="FILE|PRESET",
    help="A Hugging Face config.json, or one of our presets, for a MindFormers YAML that names no numbers.",
)
@click.option("--trace", metavar="FILE.json", help="Also write the step's timeline for https://ui.perfetto.dev.")
@click.option("--report", metavar="FILE.html", help="Also write a page to look at, one self-contained HTML file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(
    ctx: click.Context, recipe_name: str, overrides: tuple[str, ...], steps: int, tokens: int | None, full: bool,
    only_time: bool, model_config: str | None, trace: str | None, report: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Execute RECIPE's training steps on a virtual cluster and compare with a single process.

    The model is made small unless --full is given: its strategy stays, its sizes become the smallest that the degrees
    divide. Exit code 1 where the cluster computes something else, or would hang.
    Of a recipe that only serves, requests of different lengths are answered, and compared token for token.
    RECIPE may be a MindFormers training YAML: MindFormers' own step is executed then, and overrides are its own keys.
    """
    from msparallel.cli import simulate_text
    from msparallel.cli.dryrun_text import mindspore_version
    from msparallel.interop.mindformers import is_mindformers
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.report.page import SIMULATION, check_target, write_page
    from msparallel.report.simulation_data import simulation_data, timed_data
    from msparallel.simulate.simulate import simulate
    from msparallel.simulate.timed import time_recipe

    if Path(recipe_name).is_file() and is_mindformers(recipe_name):
        if only_time or trace is not None or report is not None:
            raise click.UsageError(
                "--timeline, --trace and --report need a recipe's machine, which a MindFormers YAML does not name. "
                "`msparallel import` makes a recipe of it."
            )
        ctx.exit(_mindformers(recipe_name, overrides, model_config, steps, full, as_json))
    if model_config is not None:
        raise click.UsageError("--model-config is for MindFormers YAMLs; a recipe names its model itself.")
    if report is not None:
        check_target(report, SIMULATION)
    if only_time and full:
        raise click.UsageError("--timeline executes nothing and keeps the model's sizes; --full goes without it.")
    plan = resolve(load_recipe(recipe_name, overrides))
    if plan.recipe.train is None and not only_time:
        if trace is not None or report is not None or ctx.get_parameter_source("steps") != ParameterSource.DEFAULT:
            raise click.UsageError("--steps, --trace and --report are about training steps; a recipe that serves has "
                                   "--tokens.")  # fmt: skip
        ctx.exit(_serving(plan, tokens, full, as_json))
    if tokens is not None:
        raise click.UsageError("--tokens is for recipes that only serve; training has --steps.")
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


def _serving(plan: Plan, tokens: int | None, full: bool, as_json: bool) -> int:
    """Answer requests and tell; returns the exit code."""
    from msparallel.cli.simulate_serving_text import serving_text
    from msparallel.simulate.serving import TOKENS, simulate_serving

    found = simulate_serving(plan, tokens=tokens or TOKENS, full=full)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else serving_text(found))
    return 0 if found.same else 1


def _mindformers(
    path: str, overrides: tuple[str, ...], model_config: str | None, steps: int, full: bool, as_json: bool
) -> int:
    """Execute a MindFormers YAML and tell; returns the exit code."""
    from msparallel.cli.simulate_mindformers_text import mindformers_text
    from msparallel.interop.mindformers import read_mindformers
    from msparallel.interop.model_names import load_model_config
    from msparallel.simulate.mindformers import simulate_mindformers

    config = read_mindformers(path, load_model_config(model_config) if model_config else None, overrides)
    found = simulate_mindformers(config, overrides=overrides, model_config=model_config, steps=steps, full=full)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else mindformers_text(found))
    return 0 if found.same else 1


def _write_trace(path: str, timed: Timed) -> None:
    from msparallel.simulate.trace import write_trace

    try:
        write_trace(path, timed.timeline, list(timed.memory.values()))
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise RunError(f"--trace {path}: cannot be written: {error}.") from None
