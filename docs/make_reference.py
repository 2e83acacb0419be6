"""Writes docs/recipe_reference.md from schema, presets, hardware profiles, rules and the shipped recipes.

In: nothing. Out: the page, as text or as a file; tests/test_docs.py holds the file up to date.

    python docs/make_reference.py
"""

from __future__ import annotations

import types
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic.fields import FieldInfo

from msparallel.hardware import hardware_names, load_hardware
from msparallel.model.presets import PRESETS
from msparallel.model.shape import ModelShape
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.rules import RULES
from msparallel.recipe.schema import SECTIONS

PAGE = Path(__file__).with_name("recipe_reference.md")
HEAD = """# Recipe reference

Every key of a recipe: its type, what holds when it is left out, what it means, and the first shipped recipe that uses
it. This page is written by `python docs/make_reference.py` from `msparallel/recipe/schema.py`; do not edit it by hand.
The same information as a JSON Schema, for editors: `msparallel schema`. How to read it in Chinese:
[recipe_reference.zh-CN.md](recipe_reference.zh-CN.md).

A recipe has a `model` section and a `train` or a `serve` section (or both); the others may be left out.
`msparallel show RECIPE` prints every value as it came out. Any key can be replaced on the command line as
`section.key=value`; `section.key=null` gives it back its default.
"""
SHAPE = {field.name: field for field in fields(ModelShape)}
BOUNDS = ((annotated_types.Ge, "ge", ">="), (annotated_types.Gt, "gt", ">"), (annotated_types.Le, "le", "<="),
          (annotated_types.Lt, "lt", "<"))  # fmt: skip


def type_text(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> str:
    """A type as a recipe's author reads it: `whole number >= 1`, `a, b or c`, `list of ...`."""
    if hasattr(annotation, "__metadata__"):
        return type_text(annotation.__origin__, [*_flat(annotation.__metadata__), *metadata])
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _either([word for arg in args if arg is not type(None) for word in _words(arg)])
    if origin is Literal:
        return _either(_words(annotation))
    if origin is list:
        return f"list of {type_text(args[0]).replace('number', 'numbers')}"
    word = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text"}[annotation]
    bounds = [f"{sign} {getattr(bound, name)}" for bound in _flat(metadata) for cls, name, sign in BOUNDS
              if isinstance(bound, cls)]  # fmt: skip
    return " ".join([word, *bounds])


def _words(annotation: Any) -> list[str]:
    """The alternatives of a type."""
    if annotation is bool:
        return ["`true`", "`false`"]
    if get_origin(annotation) is Literal:
        return [f"`{arg}`" for arg in get_args(annotation)]
    return [type_text(annotation)]


def _flat(metadata: Any) -> list[Any]:
    """Bounds of a Field or of plain annotated types."""
    return [bound for item in metadata for bound in (item.metadata if isinstance(item, FieldInfo) else [item])]


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def default_and_meaning(section: str, key: str, field: FieldInfo) -> tuple[str, str]:
    """What holds where the key is left out, and what the key means."""
    meaning, _, left_out = " ".join((field.description or "").split()).partition(" Left out: ")
    if field.is_required():
        return "must be given", meaning
    if field.default is not None:
        return f"`{_yaml(field.default)}`", meaning
    if section != "model":
        assert left_out, f"schema: {section}.{key} does not say what holds when it is left out"
        return left_out.rstrip("."), meaning
    plain = SHAPE.get(key)
    if key == "preset":
        return "none", meaning
    if left_out or plain is None or plain.default is MISSING:
        return f"preset, else {left_out.rstrip('.') or 'must be given'}", meaning
    return f"preset, else `{_yaml(plain.default)}`", meaning


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def first_uses() -> dict[str, str]:
    """`section.key` -> name of the first shipped recipe that states it."""
    uses: dict[str, str] = {}
    for name, path in shipped_recipes().items():
        for section, keys in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            for key in keys:
                uses.setdefault(f"{section}.{key}", name)
    return uses


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(), *_presets(), "", *_hardware(), "", *_rules()]) + "\n"


def _sections() -> list[str]:
    uses, lines = first_uses(), []
    for section, cls in SECTIONS.items():
        lines += [f"## {section}", "", " ".join(cls.__doc__.split()), "",
                  *_table_head("key", "type", "default", "meaning", "shown in")]  # fmt: skip
        for key, field in cls.model_fields.items():
            default, meaning = default_and_meaning(section, key, field)
            shown = f"`{uses[f'{section}.{key}']}`" if f"{section}.{key}" in uses else ""
            lines.append(_row(f"`{key}`", type_text(field.annotation, field.metadata), default, meaning, shown))
        lines.append("")
    return lines


def _presets() -> list[str]:
    columns = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "vocab_size", "num_experts",
               "experts_per_token", "expert_ffn_size")  # fmt: skip
    lines = ["## Presets", "",
             "Values of `model.preset`. Numbers are those of each model's public `config.json`; parameters are counted",
             "from the shape, vocabulary padding included.", "",
             *_table_head("preset", *(f"`{column}`" for column in columns), "parameters")]  # fmt: skip
    for name, shape in PRESETS.items():
        numbers = [getattr(shape, column) or "" for column in columns]
        lines.append(_row(f"`{name}`", *numbers, f"{shape.parameters():,}"))
    return lines


def _hardware() -> list[str]:
    lines = ["## Hardware profiles", "",
             "Values of `cluster.hardware`; each file in `msparallel/hardware/profiles` names its source.", "",
             *_table_head("profile", "chip", "most devices a node", "memory of a device, GiB", "dtypes")]  # fmt: skip
    for machine in map(load_hardware, hardware_names()):
        memory, dtypes = f"{machine.memory_gib:g}" if machine.memory_gib else "the host's", ", ".join(machine.dtypes)
        lines.append(_row(f"`{machine.name}`", machine.chip, machine.devices_per_node, memory, dtypes))
    return lines


def _rules() -> list[str]:
    lines = ["## Rules", "",
             "What `msparallel validate` checks beside types; `validate --json` names the rule of each problem.", "",
             *_table_head("rule", "what must hold")]  # fmt: skip
    return lines + [_row(f"`{rule.__name__}`", " ".join((rule.__doc__ or "").split())) for rule in RULES]


def _table_head(*columns: str) -> list[str]:
    return [_row(*columns), "|---" * len(columns) + "|"]


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
