"""`msparallel schema`: JSON Schema of recipes."""

from __future__ import annotations

import json

import click


@click.command(epilog="""\b
Example: let an editor complete and check recipes.
  $ msparallel schema > recipe.schema.json
  and at the top of a recipe, for editors with the YAML language server:
  # yaml-language-server: $schema=recipe.schema.json
""")  # fmt: skip
def command() -> None:
    """Print a JSON Schema: sections, keys, types, defaults and meanings."""
    from msparallel.recipe.schema import Sections

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Sections.model_json_schema()}
    click.echo(json.dumps({**schema, "title": "msparallel recipe"}, indent=2))
