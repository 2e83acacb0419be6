"""`msparallel ls`: shipped recipes, or model presets."""

from __future__ import annotations

import json

import click

from msparallel.recipe.library import shipped_recipes, summary


@click.command(epilog="""\b
Example:
  $ msparallel ls
  quickstart  First recipe: a small language model learns Python ...
  $ msparallel ls --presets
  qwen3_8b    8.2 B parameters, 36 layers, hidden 4096, 32 heads (8 kv), vocabulary 151936
""")  # fmt: skip
@click.option("--presets", is_flag=True, help="List model presets instead of recipes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(presets: bool, as_json: bool) -> None:
    """List shipped recipes, or model presets."""
    rows = _presets() if presets else _recipes()
    if as_json:
        click.echo(json.dumps({"presets" if presets else "recipes": rows}, indent=2))
        return
    if not rows:
        click.echo("No recipes are installed with this package.", err=True)
    width = max((len(str(row["name"])) for row in rows), default=0)
    for row in rows:
        click.echo(f"{row['name']!s:<{width}}  {row['summary']}")


def _recipes() -> list[dict[str, object]]:
    return [{"name": name, "path": str(path), "summary": summary(path)} for name, path in shipped_recipes().items()]


def _presets() -> list[dict[str, object]]:
    from dataclasses import asdict

    from msparallel.model.presets import PRESETS

    rows: list[dict[str, object]] = []
    for name, shape in PRESETS.items():
        kind = f", {shape.num_experts} experts ({shape.experts_per_token} a token)" if shape.num_experts else ""
        told = (
            f"{readable_count(shape.parameters())} parameters, {shape.num_layers} layers, hidden {shape.hidden_size}, "
            f"{shape.num_heads} heads ({shape.num_kv_heads} kv), vocabulary {shape.vocab_size}{kind}"
        )
        rows.append({"name": name, "summary": told, "parameters": shape.parameters(), "shape": asdict(shape)})
    return rows


def readable_count(number: int) -> str:
    """1234567 -> '1.2 M'."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return str(number)
