"""`msparallel dryrun`: MindSpore's engine compiles ranks of a job for devices that do not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msparallel.cli.numbers import Number
from msparallel.errors import RunError, UserError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msparallel.compile.dryrun import Depth, Job
    from msparallel.hardware import Hardware
    from msparallel.plan import Plan


@click.command(epilog="""\b
Examples:
  $ msparallel dryrun llama2_7b_dp2_tp2_pp2
  $ msparallel dryrun llama2_7b_dp2_tp2_pp2 --rank 5 parallel.optimizer_shard=true
  $ msparallel dryrun llama2_13b_dp4_tp4_pp2 --stages --json
  $ msparallel dryrun qwen3_8b_dp2_tp4 --report report.html
  $ msparallel dryrun qwen3_8b_serve_tp2 --chunk 128
  $ msparallel dryrun pretrain_qwen3_32b_4k.yaml parallel_config.model_parallel=8
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="This rank; may be given repeatedly.")
@click.option("--stages", is_flag=True, help="The first rank of every pipeline stage (the default).")
@click.option("--all-ranks", is_flag=True, help="Every rank.")
@click.option(
    "--depth",
    type=click.Choice(["auto", "full", "representative"]),
    default="auto",
    show_default=True,
    help="Compile all layers, or a few of each stage and infer the rest; auto: few where there are many.",
)
@click.option(
    "--model-config",
    metavar="FILE|PRESET",
    help="A Hugging Face config.json, or one of our presets, for a MindFormers YAML that names no numbers.",
)
@click.option("--chunk", type=click.IntRange(min=1), help="Of a recipe that serves: tokens of a prompt's piece.")
@click.option("--batch", type=click.IntRange(min=1), help="Of a recipe that serves: requests of a token step.")
@click.option("--time-limit", type=Number(min=0, min_open=True), default=1800.0, show_default=True,
              help="Seconds that one rank may take.")  # fmt: skip
@click.option("--report", metavar="FILE.html", help="Also write a page to look at, one self-contained HTML file.")
@click.option(
    "--save-strategy",
    metavar="FILE.json",
    help="Also write the strategies that MindSpore searched, for parallel.strategy_load_file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(
    ctx: click.Context, recipe_name: str, overrides: tuple[str, ...], ranks: tuple[int, ...], stages: bool,
    all_ranks: bool, depth: Depth, model_config: str | None, chunk: int | None, batch: int | None, time_limit: float,
    report: str | None, save_strategy: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compile RECIPE's training step for a simulated Ascend cluster and report what each rank holds and sends.

    Of a recipe that only serves, the graphs that read prompts and make tokens are compiled.
    RECIPE may be a MindFormers training YAML: MindFormers' own model is compiled then, and overrides are its own keys.
    """
    from msparallel.cli import dryrun_text
    from msparallel.cli.output_file import write_output
    from msparallel.compile.dryrun import dry_run
    from msparallel.plan import Plan
    from msparallel.report.dryrun_data import dryrun_data
    from msparallel.report.page import DRY_RUN, check_target, write_page

    if not time_limit > 0:  # NaN too
        raise click.UsageError("--time-limit takes seconds above 0.")
    if save_strategy is not None and not save_strategy.endswith(".json"):
        raise click.UsageError(f"--save-strategy {save_strategy}: MindSpore reads strategies from files named *.json.")
    if report is not None:
        check_target(report, DRY_RUN)
    if sum((bool(ranks), stages, all_ranks)) > 1:
        raise click.UsageError("--rank, --stages and --all-ranks exclude each other.")
    asked, hardware = _job(recipe_name, overrides, depth, model_config)
    if isinstance(asked, Plan):
        if save_strategy is not None:
            raise UserError("--save-strategy: a recipe that serves has no strategies to save; auto_parallel has.")
        chosen = range(asked.world_size) if all_ranks else ranks or [0]
        ctx.exit(_serving(asked, chosen, depth, chunk, batch, time_limit, report, as_json))
    if chunk is not None or batch is not None:
        raise click.UsageError("--chunk and --batch are for recipes that only serve.")
    chosen = range(asked.mesh.size) if all_ranks else ranks or asked.stage_ranks()
    job = dry_run(asked, chosen, time_limit_s=time_limit, save_strategy=save_strategy is not None)
    engine = dryrun_text.mindspore_version()
    # What was worked out is told before anything that can still fail.
    click.echo(json.dumps(job.to_json(), indent=2) if as_json else dryrun_text.job_text(job, hardware, engine))
    try:
        if report is not None:
            write_page(report, DRY_RUN, dryrun_data(job, hardware, engine))
            click.echo(f"\nReport: {printable(report)}", err=as_json)
        if save_strategy is not None and job.strategies is not None:
            write_output(save_strategy, job.strategies, force=True)
    except UserError as error:
        click.echo(printable(str(error)), err=True)
        ctx.exit(RunError.exit_code)


def _serving(
    plan: Plan, ranks: Sequence[int], depth: Depth, chunk: int | None, batch: int | None, time_limit_s: float,
    report: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Compile a recipe that serves and tell; returns the exit code."""
    from msparallel.cli.dryrun_serving_text import serving_job_text
    from msparallel.cli.dryrun_text import mindspore_version
    from msparallel.compile.serving import dry_run_serving, served_form
    from msparallel.report.dryrun_data import serving_data
    from msparallel.report.page import DRY_RUN, write_page

    form = served_form(plan, chunk=chunk, rows=batch)
    found = dry_run_serving(plan, form, ranks, how_deep=depth, time_limit_s=time_limit_s)
    engine = mindspore_version()
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else serving_job_text(found, plan.hardware, engine))
    if report is not None:
        write_page(report, DRY_RUN, serving_data(found, plan.hardware, engine))
        click.echo(f"\nReport: {printable(report)}", err=as_json)
    return 0


def _job(
    name: str, overrides: tuple[str, ...], depth: Depth, model_config: str | None
) -> tuple[Job | Plan, Hardware | None]:
    """What to compile, and the machine where the file names one; the plan of a recipe that only serves."""
    from msparallel.compile.dryrun import recipe_job
    from msparallel.compile.mindformers_job import mindformers_job, require_installed
    from msparallel.interop.mindformers import is_mindformers, read_mindformers
    from msparallel.interop.model_names import load_model_config
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe

    if Path(name).is_file() and is_mindformers(name):
        given = load_model_config(model_config) if model_config else None
        job = mindformers_job(read_mindformers(name, given, overrides), depth, model_config, overrides)
        require_installed()
        return job, None
    if model_config is not None:
        raise click.UsageError("--model-config is for MindFormers YAMLs; a recipe names its model itself.")
    plan = resolve(load_recipe(name, overrides))
    return plan if plan.recipe.train is None else recipe_job(plan, depth), plan.hardware
