"""`msparallel cp`: a shipped recipe as a file of one's own."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from msparallel.errors import UserError, printable


@click.command(epilog="""\b
Example:
  $ msparallel cp llama2_7b_dp2_tp2_pp2 my.yaml
  Copied to my.yaml. Next: msparallel validate my.yaml
""")  # fmt: skip
@click.argument("name")
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--no-clobber", is_flag=True, help="Leave an existing file as it is, without an error.")
@click.option("--force", is_flag=True, help="Overwrite an existing file, also one with changes in it.")
def command(name: str, destination: Path, no_clobber: bool, force: bool) -> int:
    """Copy the shipped recipe NAME to DESTINATION (a file, or a folder).

    An existing file that differs is not overwritten without --force.
    """
    from msparallel.recipe.load import find_recipe

    if no_clobber and force:
        raise click.UsageError("--no-clobber keeps an existing file, --force overwrites it: give one of them.")
    source = find_recipe(name)
    target = destination / source.name if destination.is_dir() else destination
    if no_clobber and target.exists():
        click.echo(f"{printable(str(target))} exists; left as it is.", err=True)
        return 0
    try:
        text = source.read_bytes()
        if not force and target.is_file() and target.read_bytes() != text:
            raise UserError(
                f"{target}: this file exists and differs from {source}; it was left as it is.\n"
                f"  Name another file, or overwrite it: msparallel cp {shlex.join([name, _argument(target)])} --force"
            )
        target.write_bytes(text)
    except OSError as error:
        raise UserError(f"{target}: cannot copy {source}: {error.strerror}.") from None
    told = f"Copied to {target}. Next: msparallel validate {shlex.quote(_argument(target))}"
    click.echo(printable(told))
    return 0


def _argument(path: Path) -> str:
    """A path that a command takes for one: neither for the name of a shipped recipe nor for an option."""
    text = str(path)
    plain = os.sep in text or (text.endswith((".yaml", ".yml")) and not text.startswith("-"))
    return text if plain else os.path.join(os.curdir, text)
