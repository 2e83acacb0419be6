"""Values typed over a recipe's own: `section.key=value`.

In: a Recipe and new values. Out: another Recipe. Where the product of degrees changes on a single node whose
devices the file states, `cluster.devices_per_node` follows and a note says so; the number of nodes never changes by
itself.

>>> format_override("parallel.stage_layers", [8, 8])
'parallel.stage_layers=[8,8]'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from msparallel.errors import Problem
from msparallel.recipe import derive
from msparallel.recipe.recipe import COMMAND_LINE, BrokenValue, PartialSection, Recipe
from msparallel.recipe.schema import SECTIONS, Sections
from msparallel.recipe.values import Values, check_values, missing
from msparallel.recipe.words import meant_key
from msparallel.recipe.yaml_source import Source, read_scalar

DEVICES = "cluster.devices_per_node"


def read_overrides(texts: Iterable[str]) -> tuple[dict[str, Any], frozenset[str], list[Problem]]:
    """Typed values of `section.key=value` texts (None for `=null`: the key's default), keys whose value was refused,
    and why."""
    source, removed, seen = Source(), set[str](), dict[str, str]()
    for text in texts:
        key, equals, value = text.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not section or not name or "." in name:
            meant = meant_key("", text.partition("=")[0]) if equals else None
            told = f"Did you mean `{meant}={value}`?" if meant else "An example is `parallel.model_parallel=4`."
            message = f"An override is `section.key=value`. {told}"
            source.problems.append(
                Problem(key=text or "override", value=None, rule="override", message=message, file=COMMAND_LINE)
            )
            continue
        key = f"{section}.{name}"
        if key in seen:
            message = f"Given twice: {seen[key]} and {value}. Keep one."
            source.problems.append(Problem(key=key, value=value, rule="override", message=message, file=COMMAND_LINE))
            source.broken.add(key)
            continue
        seen[key] = value
        written, problems = read_scalar(value, key, COMMAND_LINE)
        source.problems += problems
        if written is None:
            source.broken.add(key)
        elif written.value is None and section in SECTIONS and name in SECTIONS[section].model_fields:
            removed.add(key)
        else:
            source.values.setdefault(section, {})[name] = written
    values = check_values(source, COMMAND_LINE)
    typed = {f"{section}.{name}": value for section, keys in values.items() for name, value in keys.items()}
    return typed | dict.fromkeys(removed - source.broken), frozenset(source.broken), source.problems


def build_sections(values: Values, broken: frozenset[str]) -> Sections:
    """Sections of checked values; where some were refused or are missing, partial ones."""
    sections: dict[str, Any] = {}
    absent = broken.union(missing(values))
    for section, cls in SECTIONS.items():
        bad = {key.partition(".")[2] for key in absent if key.startswith(f"{section}.")}
        bad |= set(cls.model_fields) if section in absent else set()
        keys = values.get(section, {})
        if bad:
            sections[section] = PartialSection(cls.model_construct(**keys), frozenset(bad))
        elif section in values:
            sections[section] = cls(**keys)
    return Sections.model_construct(**sections)


def section_values(recipe: Recipe) -> Values:
    """What the recipe states, section by section; refused values are left out."""
    values: Values = {}
    for section in recipe.sections.model_fields_set:
        found = getattr(recipe.sections, section)
        if isinstance(found, PartialSection):
            values[section] = found.stated_values()
        elif found is not None:
            values[section] = {key: getattr(found, key) for key in found.model_fields_set}
    return values


def with_possible_values(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe | None:
    """As `with_values`; None where a value is more or less than its key takes."""
    try:
        return with_values(recipe, changes)
    except ValidationError:
        return None


def with_values(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with checked values over its own; None takes a key away. devices_per_node follows (see above)."""
    values = section_values(recipe)
    for key, value in changes.items():
        section, _, name = key.partition(".")
        keys = values.setdefault(section, {})
        if value is None:
            keys.pop(name, None)
        else:
            keys[name] = value
    broken = recipe.broken - changes.keys()
    changed = replace(recipe, sections=build_sections(values, broken), broken=broken)
    followed = _followed_devices(recipe, changed, changes)
    if followed is None:
        return changed
    before = values["cluster"]["devices_per_node"]
    values["cluster"]["devices_per_node"] = followed
    note = f"{DEVICES} follows the degrees: {before} -> {followed}"
    return replace(changed, sections=build_sections(values, broken), notes=(*recipe.notes, note))


def _followed_devices(before: Recipe, after: Recipe, changes: Mapping[str, Any]) -> int | None:
    """Devices of the one node that new degrees ask for, None where nothing has to follow."""
    degrees = [f"parallel.{key}" for key in derive.DEGREES]
    try:
        typed = DEVICES in changes or any(text.startswith(f"{DEVICES}=") for text in before.overrides)
        if typed or not any(key in changes for key in degrees):
            return None
        if after.cluster.devices_per_node is None or (after.cluster.nodes or 1) != 1:
            return None
        old, new = derive.mesh(before), derive.mesh(after)
    except BrokenValue:
        return None
    if old is None or new is None or old.size == new.size or new.size == after.cluster.devices_per_node:
        return None
    return new.size


def format_override(key: str, value: Any) -> str:
    """As typed on a command line, without spaces."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, (list, tuple)):
        text = "[" + ",".join(map(str, value)) + "]"
    elif isinstance(value, float):
        text = yaml_float(value)
    else:
        text = str(value)
    return f"{key}={text}"


def yaml_float(value: float) -> str:
    """A float as YAML 1.1 reads it back: an exponent needs a point before it.

    >>> yaml_float(3e-05)
    '3.0e-05'
    """
    text = repr(value).replace("inf", ".inf").replace("nan", ".nan")
    return text if "e" not in text or "." in text else text.replace("e", ".0e")
