"""`msparallel doctor`: the ladder from the environment to your recipe; stops at the first broken rung."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from msparallel.doctor.ladder import Climbed
    from msparallel.doctor.recording import Recording
    from msparallel.errors import RecipeError

_RUNGS = ("environment", "devices", "links", "collective", "smallest", "recipe")


@click.command(epilog="""\b
Examples:
  $ msparallel doctor                            this machine, up to the smallest recipe
  $ msparallel doctor llama2_7b_dp2_tp2_pp2      and then this recipe
  $ msparallel doctor --until links              nothing is started
  $ msparallel doctor --save node_0              writes what this machine tells into a folder
  $ msparallel doctor --from collected           reads such folders, a sub-folder for each host
""")  # fmt: skip
@click.argument("recipe_name", metavar="[RECIPE]", required=False)
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--from", "folder", metavar="DIR", type=click.Path(path_type=Path),
              help="Read recorded outputs instead of asking this machine.")
@click.option("--save", metavar="DIR", type=click.Path(path_type=Path),
              help="Only write what this machine tells into a new folder, for --from.")
@click.option("--until", type=click.Choice(_RUNGS), help="The last rung that is tried.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    recipe_name: str | None, overrides: tuple[str, ...], folder: Path | None, save: Path | None, until: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Find what is wrong with this machine (or with recorded ones) before a job does.

    Rungs: environment, devices, links, collective, smallest recipe, your recipe. The first one that breaks is told with
    its cause and what to do; what stands on it is not tried. A rung that cannot be tried here says why. Exit code 1
    where a rung is broken, 0 where none is.
    """
    if save is not None and (folder is not None or recipe_name or until):
        raise click.UsageError("--save only writes what this machine tells: leave out RECIPE, --from and --until.")
    if folder is not None and until in _RUNGS[3:]:
        raise click.UsageError(f"--until {until}: a recording runs nothing; its last rung is links.")
    if folder is not None and recipe_name:
        raise click.UsageError("A recording has no devices to run a recipe on: leave out RECIPE, or --from.")
    from msparallel.launch.processes import interruptible

    with interruptible():  # tools that are being asked, and folders of runs, end with this process
        if save is not None:
            return _save(save, as_json)
        climbed, left_out = _recorded(folder, until) if folder else _live(recipe_name, overrides, until)
    _tell(climbed, left_out, recipe_name, as_json)
    return 1 if climbed.broken else 0


def _recorded(folder: Path, until: str | None) -> tuple[Climbed, list[tuple[str, str]]]:
    from msparallel.doctor.ladder import climb
    from msparallel.doctor.recording import read_recordings

    with _Progress() as bar:
        bar.show("reading")
        told = read_recordings(folder)
        climbed = climb(lambda name: told, {}, until or "recipe", bar.show)
    return climbed, [pair for one in told for pair in one.left_out]


def _live(
    recipe_name: str | None, overrides: tuple[str, ...], until: str | None
) -> tuple[Climbed, list[tuple[str, str]]]:
    from msparallel.doctor import runners
    from msparallel.doctor.collect import collect_devices, collect_environment, collect_links, together
    from msparallel.doctor.device_rules import device_table
    from msparallel.doctor.ladder import Rung, climb

    refused = _refused(recipe_name, overrides) if recipe_name else None
    told: dict[str, Recording] = {}

    with _Progress() as bar:
        def recorded(name: str) -> list[Recording]:
            if "devices" not in told:  # the environment's rules ask how many there are
                told["environment"], told["devices"] = collect_environment(), collect_devices(bar.show)
            if name == "links" and "links" not in told:
                told["links"] = collect_links(told["devices"], bar.show)
            return [together(*told.values())]

        def devices() -> int:
            table = device_table(told["devices"]) if "devices" in told else None
            return len(table.devices) if table else 0

        def recipe() -> Rung:
            if recipe_name is None:
                return Rung(name="recipe", state="not_asked", told="name a RECIPE to have it checked")
            return runners.run_recipe(recipe_name, overrides, refused, devices_known=devices() > 0)

        climbed = climb(recorded, {"collective": lambda: runners.run_collective(devices()),
                                   "smallest": lambda: runners.run_smallest(devices()), "recipe": recipe},
                        until or "recipe", bar.show)  # fmt: skip
    return climbed, []


def _refused(name: str, overrides: tuple[str, ...]) -> RecipeError | None:
    """What the rules have against a recipe; raises where there is no such recipe."""
    from msparallel.errors import RecipeError
    from msparallel.recipe.load import find_recipe, load_recipe

    try:
        load_recipe(name, overrides)
    except RecipeError as error:
        if not find_recipe(name).is_file():
            raise
        return error
    return None


def _save(folder: Path, as_json: bool) -> int:
    from msparallel.doctor.collect import collect_devices, collect_environment, collect_links, together
    from msparallel.doctor.recording import write_recording
    from msparallel.errors import printable

    with _Progress() as bar:
        devices = collect_devices(bar.show)
        told = together(collect_environment(), devices, collect_links(devices, bar.show))
    written = write_recording(told, folder)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "files": [path.name for path in written]}, indent=2))
    else:
        names = ", ".join(path.name for path in written)
        click.echo(printable(f"{len(written)} files written to {folder}: {names}\n"
                             "Of the environment only variables that msparallel knows are in it. Put folders of "
                             "several "
                             "hosts side by side and read them with `msparallel doctor --from DIR`."))  # fmt: skip
    return 0


def _tell(climbed: Climbed, left_out: list[tuple[str, str]], recipe_name: str | None, as_json: bool) -> None:
    if as_json:
        broken = climbed.broken
        click.echo(json.dumps({
            "findings": [one.to_json() for one in climbed.findings],
            "rungs": [rung.to_json() for rung in climbed.rungs],
            "broken": broken.name if broken else None,
            "hosts": list(climbed.hosts),
            "left_out": [{"file": name, "reason": reason} for name, reason in left_out],
        }, indent=2))  # fmt: skip
        return
    from msparallel.cli.columns import terminal_width
    from msparallel.cli.doctor_text import climbed_text

    click.echo(climbed_text(climbed, left_out, recipe_name, width=terminal_width()))


class _Progress:
    """What is being done, on stderr, after two seconds."""

    def __enter__(self) -> _Progress:
        from tqdm import tqdm

        tqdm.monitor_interval = 0
        self._bar = tqdm(bar_format="doctor: {desc} {elapsed}", delay=2, leave=False, disable=None)
        return self

    def show(self, what: str) -> None:
        from msparallel.errors import printable

        self._bar.set_description_str(printable(what), refresh=False)
        self._bar.update(1)

    def __exit__(self, *error: object) -> None:
        self._bar.close()
