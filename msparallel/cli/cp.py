"""`msparallel cp`: a shipped recipe as a file of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from msparallel.errors import UserError


@click.command(epilog="""\b
Example:
  $ msparallel cp llama2_7b_dp2_tp2_pp2 my.yaml
  Copied to my.yaml. Next: msparallel validate my.yaml
""")  # fmt: skip
@click.argument("name")
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--no-clobber", is_flag=True, help="Leave an existing file as it is.")
def command(name: str, destination: Path, no_clobber: bool) -> int:
    """Copy the shipped recipe NAME to DESTINATION (a file, or a folder)."""
    from msparallel.recipe.load import find_recipe

    source = find_recipe(name)
    target = destination / source.name if destination.is_dir() else destination
    if no_clobber and target.exists():
        click.echo(f"{target} exists; left as it is.", err=True)
        return 0
    try:
        text = source.read_bytes()
        target.write_bytes(text)
    except OSError as error:
        raise UserError(f"{target}: cannot copy {source}: {error.strerror}.") from None
    click.echo(f"Copied to {target}. Next: msparallel validate {target}")
    return 0
