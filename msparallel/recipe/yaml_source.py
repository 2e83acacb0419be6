"""A recipe's text as sections and keys with their lines, and what is wrong with it as YAML.

In: text and the name it is reported under. Out: a `Source`; every trap of YAML that changes a value without a word
is a Problem, and the key it stands on is not in the values. Nothing here knows the schema.

>>> read_source("train:\\n  steps: 10\\n  steps: 20\\n", "r.yaml").problems[0].line
3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from msparallel.errors import Problem

MAX_BYTES = 256 * 1024
"""Largest recipe that is read; shipped ones have some 3 KB."""
_MAX_DEPTH = 6  # document, section, key, list and two to spare, so that the message can name the key
_TAG = "tag:yaml.org,2002:"
_KINDS = ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
"""What YAML makes of a plain word; `value` is a lone `=`, `merge` a lone `<<`, both text here."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A value as YAML reads it (`value`), as it stands in the file (`text`), and whether it was in quotes."""

    value: Any
    text: str
    line: int | None = None
    quoted: bool = False


@dataclass(kw_only=True)
class Source:
    """Attributes:
    values: section -> key -> what was written there.
    lines: `section` and `section.key` -> line.
    broken: `section` or `section.key` whose value cannot be trusted.
    problems: what was wrong so far.
    """

    values: dict[str, dict[str, Written]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)


class _Reporter:
    """Adds problems to a source: of a file, or of one key on the command line, which has no lines."""

    def __init__(self, source: Source, file: str, key: str = ""):
        self.source, self.file, self.key = source, file, key

    def __call__(
        self, line: int | None, rule: str, message: str, key: str = "", value: Any = None, suggestion: str = ""
    ) -> None:
        self.source.problems.append(
            Problem(
                key=key or self.key or "recipe",
                value=value,
                rule=rule,
                message=message,
                suggestion=suggestion,
                file=self.file,
                line=None if self.key else line,
            )
        )


class _Loader(yaml.SafeLoader):
    """SafeLoader that stops at deep nesting and notes what recipes do not use."""

    def __init__(self, text: str):
        super().__init__(text)
        self.depth = 0
        self.refused: list[tuple[int, str]] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self.refused.append((line, "Anchors (&) and aliases (*) hide what a line sets; write the value itself."))
        if getattr(event, "tag", None) not in (None, "!"):
            self.refused.append(
                (line, f"Tags are not used in recipes; leave out {event.tag} and write the plain value.")
            )
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise yaml.composer.ComposerError(
                None, None, "nested too deeply: a recipe has sections, and keys in them", event.start_mark
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_source(text: str, file: str) -> Source:
    """Sections and keys of a recipe's text. Never raises for what the text holds."""
    source = Source()

    problem = _Reporter(source, file)

    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        line, message = explain_error(error, text)
        problem(line, "yaml_syntax", message)
        source.broken.add("")
        return source
    for line, message in loader.refused:
        problem(line, "yaml_feature", message)
    if root is None:
        problem(
            None, "empty_recipe", "The file holds no keys. `msparallel cp quickstart my.yaml` copies one to start from."
        )
    elif not isinstance(root, yaml.MappingNode):
        problem(
            _line(root), "not_sections", "A recipe is a list of sections such as `model:`, each with its keys below it."
        )
    if not isinstance(root, yaml.MappingNode):
        source.broken.add("")
        return source
    for section, section_node, line in _pairs(root, "", source, problem):
        if isinstance(section_node, yaml.MappingNode):
            source.values[section] = {}
            for key, node, key_line in _pairs(section_node, section, source, problem):
                _read_key(loader, f"{section}.{key}", node, key_line, source, problem)
        else:
            source.broken.add(section)
            empty = isinstance(section_node, yaml.ScalarNode) and section_node.value in ("", "~", "null")
            told = (
                "has nothing below it; indent its keys or leave it out"
                if empty
                else "is a section: its keys go below it, indented"
            )
            problem(line, "empty_section" if empty else "not_a_section", f"`{section}:` {told}.", section)
    return source


def read_scalar(text: str, key: str, file: str) -> tuple[Written | None, list[Problem]]:
    """One value typed on a command line, with the same traps as in a file."""
    source = Source()

    problem = _Reporter(source, file, key)

    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        problem(None, "yaml_syntax", f"{text!r} is not a YAML value: {explain_error(error, text)[1]}")
        return None, source.problems
    for _, message in loader.refused:
        problem(None, "yaml_feature", message)
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value and not node.style):
        problem(None, "empty_value", "Nothing stands after `=`. Write a value, or `null` for the key's default.")
        return None, source.problems
    if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null":
        return Written(value=None, text=node.value), source.problems
    _read_key(loader, key, node, 0, source, problem)
    section, _, name = key.partition(".")
    return source.values.get(section, {}).get(name), source.problems


def _pairs(
    mapping: yaml.MappingNode, section: str, source: Source, problem: _Reporter
) -> Iterator[tuple[str, yaml.Node, int]]:
    """Keys of a mapping with their value nodes and lines; repeated and odd keys are reported and left out."""
    prefix = f"{section}." if section else ""
    kind = "key" if section else "section"
    found: dict[str, list[tuple[yaml.Node, int]]] = {}
    for key_node, value_node in mapping.value:
        line = _line(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            problem(line, "odd_key", "A key is one word; this is a list or a mapping.", section)
        elif key_node.tag == _TAG + "merge":
            problem(
                line, "yaml_feature", "Merge keys (<<) hide what a recipe sets; write the keys.", section or "recipe"
            )
        elif key_node.tag != _TAG + "str" or not key_node.value:
            told = (
                f"`{key_node.value}` is read as a {_type_word(key_node.tag)}"
                if key_node.value
                else "There is nothing before the colon"
            )
            problem(line, "odd_key", f"{told}; a {kind} is a word.", section)
        else:
            found.setdefault(key_node.value, []).append((value_node, line))
    for name, places in found.items():
        line = places[0][1]
        source.lines[prefix + name] = line
        if len(places) == 1:
            yield name, places[0][0], line
            continue
        source.broken.add(prefix + name)
        source.lines[prefix + name] = places[-1][1]
        values = [
            f"line {at}" + (f" ({node.value})" if isinstance(node, yaml.ScalarNode) else "") for node, at in places
        ]
        problem(places[-1][1], "duplicate_key",
                f"This {kind} stands on {' and on '.join(values)}. YAML would take the last without a word; keep one.",
                prefix + name)  # fmt: skip


def _read_key(loader: _Loader, key: str, node: yaml.Node, line: int, source: Source, problem: _Reporter) -> None:
    """Put one value into `source.values`, or a problem into `source.problems`."""
    section, _, name = key.partition(".")
    written: Written | None = None
    if isinstance(node, yaml.MappingNode):
        problem(line, "too_deep", "Recipes are two levels deep: a section, and keys with plain values in it.", key)
    elif isinstance(node, yaml.SequenceNode):
        items = [_read_scalar(loader, key, item, problem) for item in node.value]
        if None not in items:
            text = "[" + ", ".join(item.text for item in items if item) + "]"
            written = Written(value=[item.value for item in items if item], text=text, line=line, quoted=False)
    else:
        written = _read_scalar(loader, key, node, problem)
    if written is None:
        source.broken.add(key)
    else:
        source.values.setdefault(section, {})[name] = written


def _read_scalar(loader: _Loader, key: str, node: yaml.Node, problem: _Reporter) -> Written | None:
    line = _line(node)
    if not isinstance(node, yaml.ScalarNode):
        problem(line, "too_deep", "A list in a recipe holds plain values only.", key)
        return None
    text, kind = node.value, node.tag.removeprefix(_TAG)
    digits = text.lstrip("+-")
    if node.tag.startswith("!") or kind not in _KINDS:
        return None  # a tag of its own, which the loader has noted
    if kind == "null":
        told = f"`{text}` stands for nothing" if text else "There is nothing after the colon"
        problem(line, "empty_value", f"{told}. Write a value, or leave the line out for the default.", key)
        return None
    if kind in ("int", "float") and ":" in text:
        told = f"YAML reads {text} in base sixty, as {_number(loader, node)}. Quote it if it is text."
        problem(line, "sexagesimal", told, key, text)
        return None
    if kind == "int" and len(digits) > 1 and digits[0] == "0" and digits[1] not in "xb":
        decimal = text.removesuffix(digits) + (digits.lstrip("0_") or "0")
        problem(
            line,
            "octal",
            f"YAML reads {text} in base eight, as {_number(loader, node)}. Write {decimal}.",
            key,
            text,
            f"{key}={decimal}",
        )
        return None
    if kind == "timestamp":
        problem(line, "date", f"YAML reads {text} as a date. Put it in quotes if it is text.", key, text)
        return None
    value: Any = text
    if kind in ("int", "float"):
        value = _number(loader, node)
        if value is None:
            problem(line, "wrong_type", f"{text[:40]} cannot be read as a number.", key, text[:40])
            return None
    elif kind == "bool":
        value = loader.bool_values[text.lower()]
    return Written(value=value, text=text, line=line, quoted=node.style is not None)


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float | None:
    """Value of a numeric scalar; None for what only looks like one (`0b_`) or has thousands of digits."""
    try:
        return loader.construct_yaml_int(node) if node.tag == _TAG + "int" else loader.construct_yaml_float(node)
    except (ValueError, OverflowError):
        return None


def _type_word(tag: str) -> str:
    words = {"bool": "boolean", "int": "number", "float": "number", "null": "nothing", "timestamp": "date"}
    kind = tag.removeprefix(_TAG)
    return words.get(kind, kind)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def explain_error(error: yaml.YAMLError, text: str) -> tuple[int | None, str]:
    """Line and sentence of a YAML error."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return (
            line,
            f"The character with code {error.character:#x} is not allowed in YAML; it is not visible in most editors.",
        )
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else None
    told = str(getattr(error, "problem", None) or "this is not YAML")
    if mark is not None and "\t" in told or "'\\t'" in told:
        return line, "A tab stands where YAML wants spaces. Indent with spaces only."
    context_mark = getattr(error, "context_mark", None)
    if "expected a single document" in str(getattr(error, "context", "")):
        return line, "A second document begins here (`---`). A file holds one."
    if told.startswith("mapping values are not allowed"):
        return (
            line,
            "A second colon, or a key that is indented differently from the line above. Check the indentation; "
            "quote text that holds `: `.",
        )
    since = f" (begun on line {context_mark.line + 1})" if context_mark and context_mark.line + 1 != line else ""
    return (
        line,
        f"This is not YAML: {told}{since}. Check indentation, quotes and brackets on this line and the one above.",
    )
