"""`msparallel plan`: memory and time of a recipe on paper, and the best strategy for its devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msparallel.errors import UserError, printable

if TYPE_CHECKING:
    from msparallel.hardware import Hardware
    from msparallel.plan import Plan
    from msparallel.planner.estimate import Estimate
    from msparallel.planner.search.changes import Change
    from msparallel.planner.search.search import Search


@click.command(epilog="""\b
Examples:
  $ msparallel plan llama2_13b_dp4_tp4_pp2
  $ msparallel plan llama2_13b_dp4_tp4_pp2 parallel.recompute=none --json
  $ msparallel plan llama2_70b_dp2_tp8_pp4 --search
  $ msparallel plan llama2_70b_dp2_tp8_pp4 --search --devices 1024 --global-batch 1024 --top 10
  $ msparallel plan qwen3_8b_dp2_tp4 --search --hardware atlas_900_a3 --report report.html
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--search", "searches", is_flag=True, help="Find the fastest strategies that fit.")
@click.option("--devices", type=click.IntRange(min=1), help="Search for so many devices; whole nodes, or part of one.")
@click.option("--global-batch", type=click.IntRange(1, 100_000_000),
              help="Search with this batch instead of the recipe's.")
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="Strategies to show.")
@click.option("--hardware", metavar="NAME|FILE.yaml", help="Another machine than the recipe's.")
@click.option("--hccl-algo", metavar="LEVEL1:ALGORITHM",
              help="The job's HCCL_ALGO: level1:ring, level1:H-D_R, level1:NHR or level1:NB between servers.")
@click.option("--report", metavar="FILE.html", help="Also write a page to look at, one self-contained HTML file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    recipe_name: str, overrides: tuple[str, ...], searches: bool, devices: int | None, global_batch: int | None,
    top: int, hardware: str | None, hccl_algo: str | None, report: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what RECIPE needs and how fast it is, without compiling or running anything.

    With --search (or --devices, or --global-batch): which strategy is fastest among all that the rules allow and that
    fit, and why others are not possible.
    """
    from msparallel.cli import plan_json, plan_search_text, plan_text
    from msparallel.cli.columns import terminal_width
    from msparallel.planner.estimate import estimate
    from msparallel.planner.workload import workload_of
    from msparallel.report.page import PLAN, check_target, write_page

    plan, width = _plan(recipe_name, overrides, hardware, hccl_algo), terminal_width()
    options = {"--hardware": None if hardware == plan.recipe.cluster.hardware else hardware, "--hccl-algo": hccl_algo}
    searching = searches or devices is not None or global_batch is not None
    if plan.recipe.train is None:
        if searching or report is not None:
            raise click.UsageError("--search, --devices, --global-batch and --report plan training; this serves.")
        click.echo(_serving(plan, width, as_json=as_json))
        return
    if report is not None:
        check_target(report, PLAN)
    as_it_is = estimate(workload_of(plan), plan.hardware)
    document = plan_json.plan_document(plan, as_it_is)
    found: Search | None = None
    changes: list[Change] = []
    if searching:
        found, changes = _search(plan, devices, global_batch, top)
        document |= plan_json.search_document(plan, found, changes)
        text = plan_search_text.search_text(plan, as_it_is, found, changes, options=options, width=width)
    elif as_it_is.fits:
        text = plan_text.plan_text(plan, as_it_is, width=width)
    else:
        settings, changes = _mended(plan)
        document |= plan_json.mending_document(settings, changes)
        lines = plan_search_text.mending_lines(settings, changes)
        text = plan_text.plan_text(plan, as_it_is, lines, width=width)
    if plan.recipe.serve is not None:
        from msparallel.cli.plan_serving_text import serving_document, serving_sections
        from msparallel.planner.serving import serving_memory

        served = serving_memory(plan)
        document["serving"] = serving_document(served)
        text += "\n\n" + plan_text.joined(serving_sections(served, width), width)
    click.echo(json.dumps(document, indent=2) if as_json else text)
    if report is not None:
        from msparallel.report.plan_data import plan_data

        write_page(report, PLAN, plan_data(plan, as_it_is, found, changes))
        click.echo(f"\nReport: {printable(report)}", err=as_json)


def _serving(plan: Plan, width: int, *, as_json: bool) -> str:
    """The answer for a recipe that only serves."""
    from msparallel.cli.plan_json import head_document
    from msparallel.cli.plan_serving_text import serving_document, serving_text
    from msparallel.planner.serving import serving_memory

    found = serving_memory(plan)
    if not as_json:
        return serving_text(plan, found, width=width)
    document = {**head_document(plan), "fits": found.fits, "serving": serving_document(found), "stages": [],
                "candidates": [], "rejected": []}  # fmt: skip
    return json.dumps(document, indent=2)


def _plan(name: str, overrides: tuple[str, ...], hardware: str | None, hccl_algo: str | None) -> Plan:
    """The recipe's plan, on another machine or with other algorithms where they are asked for."""
    from dataclasses import replace

    from msparallel.hardware.hccl import choose_algorithms

    plan = _plan_on(name, overrides, hardware)
    return replace(plan, hardware=choose_algorithms(plan.hardware, hccl_algo)) if hccl_algo else plan


def _plan_on(name: str, overrides: tuple[str, ...], hardware: str | None) -> Plan:
    from dataclasses import replace

    from msparallel.hardware import hardware_names
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe

    if hardware is None or hardware in hardware_names():
        typed = () if hardware is None else (f"cluster.hardware={hardware}",)
        return resolve(load_recipe(name, (*overrides, *typed)))
    machine, plan = _machine(hardware), resolve(load_recipe(name, overrides))
    train = plan.recipe.train
    if train is not None and train.dtype not in machine.dtypes:
        raise UserError(f"--hardware {hardware}: it multiplies in {', '.join(machine.dtypes)}, not in {train.dtype}.")
    if (machine.target == "CPU") != (plan.hardware.target == "CPU"):
        raise UserError(
            f"--hardware {hardware}: a machine of target {machine.target}, but the recipe is for {plan.hardware.name} "
            f"of target {plan.hardware.target}, and what may be cut depends on that. Name a machine like it in "
            "cluster.hardware too."
        )
    per_node = plan.devices_per_node
    if per_node == plan.hardware.devices_per_node:  # whole nodes stay whole
        per_node = min(plan.world_size, machine.devices_per_node)
    per_node = min(per_node, machine.devices_per_node)
    if plan.world_size % per_node:
        raise UserError(f"--hardware {hardware}: {plan.world_size} devices are no whole nodes of {per_node}.")
    return replace(plan, hardware=machine, devices_per_node=per_node, nodes=plan.world_size // per_node)


def _machine(hardware: str) -> Hardware:
    """A profile that no recipe can name: one for comparison, or a file."""
    from msparallel.hardware import hardware_names, load_hardware, read_hardware

    if hardware.endswith((".yaml", ".yml")) or Path(hardware).exists():
        try:
            return read_hardware(Path(hardware))
        except ValueError as problem:
            raise UserError(str(problem)) from None
        except OSError as problem:
            raise UserError(f"--hardware {hardware}: cannot be read: {problem.strerror}.") from None
    try:
        return load_hardware(hardware)
    except KeyError:
        known = ", ".join(hardware_names())
        raise UserError(f"--hardware {hardware}: there is no such profile. Profiles are {known}.") from None


def _search(plan: Plan, devices: int | None, global_batch: int | None, top: int) -> tuple[Search, list[Change]]:
    from msparallel.planner.search.changes import smallest_changes
    from msparallel.planner.search.overrides import space_of
    from msparallel.planner.search.search import search
    from msparallel.planner.workload import workload_of

    if devices is not None:
        _check_devices(plan, devices)
    space, work = space_of(plan, devices=devices, global_batch_size=global_batch), workload_of(plan)
    found = search(work, plan.hardware, space, top=top)
    return found, [] if found.candidates else smallest_changes(work, plan.hardware, space)


def _check_devices(plan: Plan, devices: int) -> None:
    """Raises UserError where so many devices are no whole nodes, or more than MindSpore takes."""
    from msparallel.planner.search.overrides import recipe_hardware
    from msparallel.recipe.rules.devices import MAX_DEVICES

    if devices > MAX_DEVICES:
        raise UserError(f"--devices {devices}: MindSpore's device_num goes up to {MAX_DEVICES}.")
    for machine in (plan.hardware, recipe_hardware(plan.recipe)):
        full = machine.devices_per_node
        if devices > full and devices % full:
            below = devices // full * full
            raise UserError(
                f"--devices {devices}: a node of {machine.name} has {full} devices, and nodes are taken whole "
                f"({devices} % {full} = {devices % full}). Try --devices {below} or {below + full}."
            )


def _mended(plan: Plan) -> tuple[tuple[dict[str, Any], Estimate] | None, list[Change]]:
    """What would make a recipe fit: other settings, or where none do, more."""
    from msparallel.planner.search.changes import other_settings, smallest_changes
    from msparallel.planner.search.overrides import space_of
    from msparallel.planner.workload import workload_of

    space, work = space_of(plan), workload_of(plan)
    settings = other_settings(plan, work, space)
    return settings, [] if settings is not None else smallest_changes(work, plan.hardware, space)
