"""`msparallel export`: a recipe as another framework's file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from msparallel.interop.export_mindformers import Exported


@click.command(epilog="""\b
Examples:
  $ msparallel export qwen3_32b_tp4_pp4 --to mindformers -o qwen3_32b.yaml
  $ msparallel export llama2_7b_dp2_tp2_pp2 --to mindformers parallel.optimizer_shard=true
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--to", "target", type=click.Choice(["mindformers"]), required=True, help="Whose format.")
@click.option("-o", "--output", metavar="FILE", help="Write the YAML here instead of printing it.")
@click.option("--force", is_flag=True, help="Overwrite an existing file that differs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    recipe_name: str, overrides: tuple[str, ...], target: str, output: str | None, force: bool, as_json: bool
) -> None:
    """Write RECIPE as a MindFormers training YAML.

    What MindFormers has no word for is printed, and stands as comments in the head of the file.
    """
    from msparallel.cli.output_file import write_output
    from msparallel.errors import printable
    from msparallel.interop.export_mindformers import export_mindformers
    from msparallel.recipe.load import load_recipe

    exported = export_mindformers(load_recipe(recipe_name, overrides))
    if output:
        write_output(output, exported.text, force)
    if as_json:
        click.echo(json.dumps({**exported.to_json(), "output": output, "to": target}, indent=2))
        return
    if not output:
        click.echo(printable(exported.text), nl=False)
        return
    click.echo(printable("\n".join([*report_lines(exported), f"Written to {output}."])))


def report_lines(exported: Exported) -> list[str]:
    """What MindFormers has no word for: by reason, each key with its value."""
    from msparallel.errors import short

    lines = ["Not in it, because MindFormers has no word for it:"] if exported.not_exported else []
    for reason in dict.fromkeys(item.reason for item in exported.not_exported):
        lines.append(f"  {reason}:")
        for item in (item for item in exported.not_exported if item.reason == reason):
            lines.append(f"    {item.key}: {short(item.value)}")
    return lines + [""] * bool(lines)
