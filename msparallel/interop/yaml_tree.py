"""YAML of any depth as plain values, with the line of every key.

In: the text of another framework's file. Out: a `Tree`: nested dicts and lists, and `section.sub.key` -> line. Read as
`yaml.safe_load` would (aliases and anchors too), but nothing in the text can raise anything other than RecipeError:
depth and size are bounded, tags and merge keys are refused, and a key that stands twice is told.

>>> tree = read_tree("a: {b: [1, 2]}\\nc: 1.e-8\\n", "f.yaml")
>>> tree.values["c"], tree.lines["a.b"]
(1e-08, 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from msparallel.errors import Problem, RecipeError, short
from msparallel.recipe.yaml_source import explain_error

MAX_DEPTH = 20
"""Levels; MindFormers' own limit is 10, its longest shipped file uses 6."""
MAX_KEYS = 20_000
"""Values after aliases are written out; a shipped file has some 250."""
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Attributes:
    file: path as the user wrote it.
    values: the document; every mapping is a dict with text keys.
    lines: dotted key -> line of its last mention.
    elsewhere: dotted key -> where its value came from, if not from this file: the command line, a model's config.json.
    repeated: dotted keys that stand more than once in one mapping -> their lines; YAML takes the last.
    """

    file: str
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """Value of a dotted key (`callbacks.0.type` in a list), None where a part of the way is missing."""
        found: Any = self.values
        for name in key.split("."):
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found

    def place(self, key: str) -> tuple[str, int | None]:
        """File and line of a key, or of the nearest mapping around it."""
        while key and key not in self.lines and key not in self.elsewhere:
            key = key.rpartition(".")[0]
        return (self.elsewhere[key], None) if key in self.elsewhere else (self.file, self.lines.get(key))

    def line(self, key: str) -> int | None:
        """Line of a key, or of the nearest mapping around it; None for what did not come from this file."""
        return self.place(key)[1]

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Dotted keys that hold no mapping of their own, in the order of the file."""
        yield from _leaves("", self.values)


def read_tree(text: str, file: str) -> Tree:
    """Values and lines of a document. Raises RecipeError where it is not YAML, or not a mapping, or too large."""
    builder = _Builder(text, file)
    try:
        root = builder.loader.get_single_node()
    except yaml.YAMLError as error:
        line, message = explain_error(error, text)
        raise builder.refused("yaml_syntax", message, line) from None
    if not isinstance(root, yaml.MappingNode):
        told = "The file is empty." if root is None else "The file holds no mapping of sections."
        raise builder.refused("not_sections", told, root.start_mark.line + 1 if root else None)
    values = builder.mapping(root, "", 0)
    return Tree(file=file, values=values, lines=builder.lines, repeated=builder.repeated)


class _Loader(yaml.SafeLoader):
    """SafeLoader that stops before Python's own recursion limit does."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "tag", None) not in (None, "!"):
            told = f"the tag {short(event.tag, 40)} is not read here; write the plain value"
            raise yaml.composer.ComposerError(None, None, told, event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_DEPTH} levels deep", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Builder:
    """Turns nodes into values. An alias may name a node again and again, or itself: depth and count are held."""

    def __init__(self, text: str, file: str):
        self.file = file
        try:
            self.loader = _Loader(text)
        except yaml.YAMLError as error:  # a character that YAML does not allow
            line, message = explain_error(error, text)
            raise self.refused("yaml_syntax", message, line) from None
        self.lines: dict[str, int] = {}
        self.repeated: dict[str, tuple[int, ...]] = {}
        self.count = 0

    def refused(self, rule: str, message: str, line: int | None, key: str = "file") -> RecipeError:
        return RecipeError([Problem(key=key, value=None, rule=rule, message=message, file=self.file, line=line)])

    def mapping(self, node: yaml.MappingNode, key: str, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        places: dict[str, tuple[int, ...]] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                raise self.refused("yaml_feature", "Merge keys (<<) are not read here; write the keys.", line, key)
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.refused("odd_key", "A key is one word; this is a list or a mapping.", line, key or "file")
            name = key_node.value
            dotted = f"{key}.{name}" if key else name
            places[dotted] = (*places.get(dotted, ()), line)
            self.lines[dotted] = line
            values[name] = self.value(value_node, dotted, depth + 1)
        self.repeated.update({dotted: lines for dotted, lines in places.items() if len(lines) > 1})
        return values

    def value(self, node: yaml.Node, key: str, depth: int) -> Any:
        self.count += 1
        line = node.start_mark.line + 1
        if depth > MAX_DEPTH or self.count > MAX_KEYS:
            told = f"More than {MAX_DEPTH} levels or {MAX_KEYS} values once aliases (*) are written out."
            raise self.refused("too_large", told, line, key)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{key}.{at}", depth + 1) for at, item in enumerate(node.value)]
        try:
            return self.loader.construct_object(node)
        except (ValueError, OverflowError, yaml.YAMLError):  # month 13, thousands of digits, a lone `=`
            raise self.refused("odd_value", f"{short(node.value, 40)} cannot be read as a value.", line, key) from None


def _leaves(key: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        dotted = f"{key}.{name}" if key else name
        if isinstance(value, dict) and value:
            yield from _leaves(dotted, value)
        else:
            yield dotted, value


def is_number(text: str) -> bool:
    """Whether text that YAML read as text was meant as a number, as `3e-4` is."""
    try:
        float(text)
    except ValueError:
        return False
    return True
