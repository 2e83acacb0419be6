"""`msparallel import`: a MindFormers training YAML as a recipe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from msparallel.interop.import_mindformers import Imported


@click.command(epilog="""\b
Examples:
  $ msparallel import pretrain_qwen3_32b_4k.yaml -o my.yaml
  $ msparallel import finetune_qwen3.yaml --model-config qwen3_32b -o my.yaml
  $ msparallel import pretrain_qwen3_32b_4k.yaml cluster.hardware=atlas_900_a3
""")  # fmt: skip
@click.argument("path", metavar="FILE.yaml")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help="Write the recipe here instead of printing it.")
@click.option("--model-config", metavar="FILE|PRESET",
              help="A Hugging Face config.json, or one of our presets, for a YAML that names no numbers.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing file that differs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    path: str, overrides: tuple[str, ...], output: str | None, model_config: str | None, force: bool, as_json: bool
) -> None:
    """Turn a MindFormers training YAML into a recipe, and say what could not be carried.

    The recipe passes every rule. Each key that is not in it is listed with its line and why.
    """
    from msparallel.cli.output_file import next_command, write_output
    from msparallel.errors import printable
    from msparallel.interop.import_mindformers import import_mindformers
    from msparallel.interop.model_names import load_model_config

    given = load_model_config(model_config) if model_config else None
    imported = import_mindformers(path, given, overrides)
    if output:
        write_output(output, imported.text, force)
    if as_json:
        click.echo(json.dumps({**imported.to_json(), "output": output}, indent=2, default=str))
        return
    if not output:
        click.echo(printable(imported.text), nl=False)
    click.echo(printable("\n".join(report_lines(imported))), err=not output)
    if output:
        click.echo(f"\nWritten to {printable(output)}. Next: {printable(next_command('validate', output))}")


def report_lines(imported: Imported) -> list[str]:
    """What was not carried: by kind, then by reason, each key with its line."""
    from msparallel.errors import short
    from msparallel.interop.mindformers_keys import KINDS

    count = sum(item.kind != "same" for item in imported.not_carried)
    lines = [f"{imported.config.path}: a recipe of {imported.values} values; {count} keys are not in it"]
    for kind, heading in KINDS.items():
        items = [item for item in imported.not_carried if item.kind == kind]
        if items:
            lines += ["", f"{heading} ({len(items)})"]
        for reason in dict.fromkeys(item.reason for item in items):
            lines.append(f"  {reason}:")
            for item in (item for item in items if item.reason == reason):
                place = f"line {item.line}" if item.line else "-"
                value = "" if item.value is None else f": {short(item.value, 60)}"
                lines.append(f"    {place:<9} {short(item.key)}{value}")
    if imported.absent:
        lines += ["", "named and not on this machine"]
        lines += [f"    {key}: {short(path)}" for key, path in imported.absent.items()]
    return lines
