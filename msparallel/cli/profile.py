"""`msparallel profile`: what profilers measured, judged: slow ranks, slow links, what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msparallel.errors import UserError, printable

if TYPE_CHECKING:
    from msparallel.hardware import Hardware


@click.command(epilog="""\b
Examples:
  $ msparallel profile prof
  $ msparallel profile prof --recipe llama2_70b_dp2_tp8_pp4
  $ msparallel profile prof --recipe llama2_70b_dp2_tp8_pp4 parallel.recompute=full --report profile.html
  $ msparallel profile hccl_test_all_reduce_8p.txt --hardware atlas_800t_a2
  $ msparallel profile prof --json
""")  # fmt: skip
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--recipe", metavar="RECIPE", help="The recipe of that run: the planner's estimate beside it, changes.")
@click.option("--hardware", metavar="NAME", help="The machine, where there is no recipe: what its wires should reach.")
@click.option("--report", metavar="FILE.html", help="Also write a page to look at, one self-contained HTML file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    folder: Path, overrides: tuple[str, ...], recipe: str | None, hardware: str | None, report: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Judge profiles in DIR: output of msprof, of MindSpore's or torch_npu's profiler, of one or many ranks; of
    hccl_test and hccn_tool -stat; power traces.

    Says where each rank's steps go, which rank or wire is slow, which operators take longest, and what to change, in
    order of what it could gain at most. Exit code 1 where a device computed something wrong.
    """
    from msparallel.cli.columns import terminal_width
    from msparallel.cli.profile_json import profile_document
    from msparallel.cli.profile_text import profile_text
    from msparallel.cli.reading_bar import reading_bar
    from msparallel.profiling.profile import profile
    from msparallel.profiling.recipe_changes import Recipes
    from msparallel.report.page import PROFILE, check_target, write_page

    if overrides and recipe is None:
        raise click.UsageError(f"{overrides[0]} changes a recipe, and --recipe names none.")
    if report is not None:
        check_target(report, PROFILE)
    recipes = Recipes(recipe, overrides) if recipe is not None else None
    with reading_bar() as read:
        found = profile(folder, recipes=recipes, hardware=_hardware(hardware), told=read)
    document = profile_document(found)
    shown = printable(str(folder))
    click.echo(json.dumps(document, indent=2) if as_json else profile_text(found, folder=shown, width=terminal_width()))
    if report is not None:
        from msparallel.report.profile_data import profile_data

        write_page(report, PROFILE, profile_data(found, folder=shown))
        click.echo(f"\nReport: {printable(report)}", err=as_json)
    return 1 if found.failed else 0


def _hardware(name: str | None) -> Hardware | None:
    """Raises UserError for a name that no profile has."""
    from msparallel.hardware import hardware_names, load_hardware

    if name is None:
        return None
    if name not in hardware_names():
        raise UserError(f"--hardware {name}: there is no such profile. Profiles are {', '.join(hardware_names())}.")
    return load_hardware(name)
