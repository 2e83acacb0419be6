"""Written values against the schema: which keys exist, and what each may hold.

In: a Source. Out: the values that fit, and for every other one a Problem that says what the key takes and what YAML
made of the text. A key that is unknown marks the key it was meant to be as broken, so that no rule judges a default
that the user did not want.

>>> expectation("parallel", "data_parallel")
'a whole number from 1 to 65536 or auto'
"""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import ValidationError

from msparallel.errors import Problem
from msparallel.recipe.schema import SECTIONS
from msparallel.recipe.words import meant_key, meant_section
from msparallel.recipe.yaml_source import Source, Written, read_scalar

Values = dict[str, dict[str, Any]]

REQUIRED = ("model",)
"""Sections that every recipe has."""
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_TERMS = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32",
    "zero1": "level1", "zero2": "level2", "zero3": "level3", "select": "selective", "interleaved": "1f1b",
    "sdpa": "plain", "eager": "plain", "flash_attention": "flash",
    "silu": "swiglu", "rmsnorm": "rms", "layernorm": "layer",
    "rotary": "rope", "standalone": "stand_alone", "semi_auto": "semi_auto_parallel", "auto": "auto_parallel",
    "hybrid": "hybrid_parallel", "colossalai_cp": "all_gather",
    "ulysses_cp": "ulysses", "off": "none", "full_recompute": "full",
}  # fmt: skip
"""Other frameworks' words for a value -> ours."""


def check_values(source: Source, file: str) -> Values:
    """Values that fit the schema. Adds to `source.problems` and `source.broken` for the others."""
    values: Values = {}
    for section, keys in source.values.items():
        if section in SECTIONS:
            values[section] = _check_section(section, keys, source, file)
        else:
            _unknown_section(section, source, file)
    for section in sorted(name for name in source.broken if name and "." not in name and name not in SECTIONS):
        source.problems = [problem for problem in source.problems if problem.key != section]  # its name says more
        _unknown_section(section, source, file)
    return values


def _check_section(section: str, keys: dict[str, Written], source: Source, file: str) -> dict[str, Any]:
    fields = SECTIONS[section].model_fields
    known = {key: written for key, written in keys.items() if key in fields}
    for key in keys:
        if key not in fields:
            _unknown_key(section, key, source, file)
    bad = misfits(section, {key: written.value for key, written in known.items()})
    for key in sorted(bad & known.keys()):
        name, written = f"{section}.{key}", known[key]
        told, mended = _explain(section, key, written)
        source.problems.append(
            Problem(key=name, value=written.text[:80], rule="wrong_type", file=file, line=source.lines.get(name),
                    message=f"{key} takes {expectation(section, key)}; {told}.",
                    suggestion=f"{name}={mended}" if mended else "")
        )  # fmt: skip
        source.broken.add(name)
    return {key: written.value for key, written in known.items() if key not in bad}


def missing(values: Values) -> list[str]:
    """Sections and keys that a recipe must state and these values do not."""
    sections = [section for section in REQUIRED if not values.get(section)]
    return sections + [
        f"{section}.{key}"
        for section, keys in values.items()
        if section not in sections
        for key, field in SECTIONS[section].model_fields.items()
        if field.is_required() and key not in keys
    ]


def missing_problem(name: str, file: str, line: int | None) -> Problem:
    """What is told about one name of `missing`."""
    section, _, key = name.partition(".")
    if key:
        rule, message = "missing_key", f"A `{section}:` section needs `{key}`: {expectation(section, key)}."
    else:
        rule, message = (
            "missing_section",
            f"A recipe needs a `{section}:` section, for example with `preset: gpt_tiny`.",
        )
    return Problem(key=name, value=None, rule=rule, message=message, file=file, line=line)


def misfits(section: str, values: dict[str, Any]) -> set[str]:
    """Keys whose value the schema refuses, or misses."""
    try:
        SECTIONS[section].model_validate(values)
    except ValidationError as error:
        return {str(detail["loc"][0]) for detail in error.errors(include_url=False, include_context=False)}
    return set()


def _unknown_section(section: str, source: Source, file: str) -> None:
    meant = meant_section(section)
    if meant and meant not in source.values:
        source.broken.add(meant)
    else:
        source.broken.update(
            key for key in (meant_key(meant or "", name) for name in source.values.get(section, {})) if key
        )
    told = f" Did you mean `{meant}`?" if meant else ""
    if not meant and meant_key("", section):
        told = f" `{meant_key('', section)}` is a key; it goes into the section before the point."
        source.broken.add(str(meant_key("", section)))
    source.problems.append(
        Problem(key=section, value=None, rule="unknown_section", file=file, line=source.lines.get(section),
                message=f"There is no section `{section}`.{told} Sections are {', '.join(SECTIONS)}.")
    )  # fmt: skip


def _unknown_key(section: str, key: str, source: Source, file: str) -> None:
    meant, name = meant_key(section, key), f"{section}.{key}"
    home, _, word = (meant or "").partition(".")
    if not meant:
        told = f"Its keys are {', '.join(SECTIONS[section].model_fields)}."
    elif home == section:
        told = f"Did you mean `{word}`?"
    elif word == key:
        told = f"`{key}` belongs in the section `{home}`."
    else:
        told = f"Did you mean `{word}` in the section `{home}`?"
    if meant:
        source.broken.add(meant)
    source.problems.append(
        Problem(
            key=name,
            value=None,
            rule="unknown_key",
            message=f"`{section}` has no key `{key}`. {told}",
            file=file,
            line=source.lines.get(name),
        )
    )


def _explain(section: str, key: str, written: Written) -> tuple[str, str]:
    """What YAML made of the text, and a value that fits (empty where none is near)."""
    value, text = written.value, written.text[:80]
    options = _options(section, key)
    tries: list[Any] = []
    told = f"this is {text}"
    if isinstance(value, bool):
        spelled = "" if text.lower() in ("true", "false") else f"YAML reads a bare {text} as "
        told = f"{spelled or 'this is '}{str(value).lower()}, a boolean"
        tries = [word for word in (["full", "auto"] if value else ["none"]) if word in options]
        if spelled and _takes_text(section, key):
            told += "; put it in quotes if it is text"
    elif isinstance(value, str):
        lower = text.lower().replace("-", "_").strip()
        match = _NUMBER.fullmatch(text.strip())
        if match and not written.quoted:
            number = _readable(text)
            told = f"YAML reads {text} as text, because it writes numbers otherwise; write {number}"
            tries = [number]
        elif match:
            told = f'the quotes make "{text}" text'
            tries = [_readable(text)]
        elif lower in ("true", "false", "on", "off", "yes", "no"):
            told = f'the quotes make "{text}" text'
            tries = ["true" if lower in ("true", "on", "yes") else "false"]
        else:
            told = f"{text!r} is none of these" if options else _odd_text(text)
        tries += [_TERMS.get(lower)] if _TERMS.get(lower) in options else []
        tries += get_close_matches(lower, options, n=1, cutoff=0.6)
    elif isinstance(value, list):
        told = "this is a list"
        tries = value[:1] if len(value) == 1 else []
    elif isinstance(value, float) and not math.isfinite(value):
        return f"YAML reads {text} as {'not a number' if math.isnan(value) else 'infinity'}", ""
    elif isinstance(value, float) and value.is_integer():
        tries = [str(int(value))] if abs(value) < 2**53 else []
    elif isinstance(value, int) and value in (0, 1):
        tries = ["true" if value else "false"]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = _bounds(section, key)
        tries += [low] if low is not None and value < low else [high] if high is not None and value > high else []
    return told, next((text for text in map(str, tries) if _fits(section, key, text)), "")


def _odd_text(text: str) -> str:
    if not text:
        return "this is empty; write something, or leave the line out for the default"
    return "this holds a zero byte" if "\0" in text else f"this is the text {text!r}"


def _readable(text: str) -> str:
    """A number as YAML 1.1 reads it: exponents need a point and a sign."""
    number = text.strip().replace("_", "")
    mantissa, mark, exponent = number.lower().partition("e")
    if mark:
        value = float(number)
        if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        point = mantissa if "." in mantissa else f"{mantissa}.0"
        return f"{point}e{exponent if exponent[0] in '+-' else '+' + exponent}"
    return mantissa.lstrip("0") or "0" if mantissa.isdigit() else mantissa


def _fits(section: str, key: str, text: str) -> bool:
    """Whether a value, as typed on a command line, is one that the key takes."""
    written, problems = read_scalar(text, f"{section}.{key}", "")
    return not problems and written is not None and key not in misfits(section, {key: written.value})


@cache
def _schema(section: str) -> dict[str, Any]:
    return SECTIONS[section].model_json_schema()["properties"]


def _alternatives(section: str, key: str) -> list[dict[str, Any]]:
    field = _schema(section)[key]
    return [part for part in field.get("anyOf", [field]) if part.get("type") != "null"]


def _options(section: str, key: str) -> list[str]:
    """Words that the key takes."""
    parts = _alternatives(section, key)
    return [str(word) for part in parts for word in part.get("enum", [part["const"]] if "const" in part else [])]


def _bounds(section: str, key: str) -> tuple[Any, Any]:
    """Smallest and largest number that the key takes, where the limit itself is allowed."""
    numbers = [part for part in _alternatives(section, key) if part.get("type") in ("integer", "number")]
    return (numbers[0].get("minimum"), numbers[0].get("maximum")) if numbers else (None, None)


def _takes_text(section: str, key: str) -> bool:
    return any(
        part.get("type") == "string" and "enum" not in part and "const" not in part
        for part in _alternatives(section, key)
    )


def expectation(section: str, key: str) -> str:
    """What a key takes, in words."""
    words: list[str] = []
    for part in _alternatives(section, key):
        kind = part.get("type")
        if "enum" in part or "const" in part:
            words += map(str, part.get("enum", [part.get("const")]))
        elif kind == "boolean":
            words.append("true or false")
        elif kind == "array":
            words.append(f"a list of whole numbers{_range(part['items'])}, as [8, 8]")
        elif kind == "string":
            words.append("text")
        else:
            words.append("a whole number" + _range(part) if kind == "integer" else "a number" + _range(part))
    comma = "," if len(words) > 2 else ""
    return ", ".join(words[:-1]) + (f"{comma} or " if len(words) > 1 else "") + words[-1]


def _range(part: dict[str, Any]) -> str:
    if "minimum" in part and "maximum" in part:
        return f" from {part['minimum']} to {part['maximum']}"
    limits = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "of at most",
        "exclusiveMaximum": "below",
    }
    found = [f"{word} {part[name]}" for name, word in limits.items() if name in part]
    return " " + " and ".join(found) if found else ""
