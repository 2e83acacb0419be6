"""A file of Kubernetes objects as plain values, with the line of every one.

In: bytes from anywhere. Out: `Document`s; anchors and aliases are followed, as kubectl follows them. Nothing in the
text can raise anything but RecipeError: size, depth and the number of values are bounded, also after aliases are
written out.

>>> one, = read_documents("kind: Job\\nspec: {tasks: [a, b]}\\n", "job.yaml")
>>> one.kind, one.line("spec", "tasks", 1)
('Job', 2)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from msparallel.errors import Problem, RecipeError, short
from msparallel.recipe.yaml_source import explain_error

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 40
MAX_VALUES = 200_000
Path = tuple[str | int, ...]
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, kw_only=True)
class Document:
    """One object.

    Attributes:
        start: line it begins on.
        lines: path of keys and places -> line.
    """

    file: str
    start: int
    values: Mapping[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.values.get("kind", ""))

    @property
    def api(self) -> str:
        """Group of apiVersion; empty for the core."""
        return str(self.values.get("apiVersion", "")).rpartition("/")[0]

    @property
    def name(self) -> str:
        found = self.get("metadata", "name")
        return found if isinstance(found, str) else ""

    def get(self, *path: str | int) -> Any:
        """The value at a path, None where a part of the way is missing or something else."""
        found: Any = self.values
        for key in path:
            if isinstance(key, int) and isinstance(found, list):
                found = found[key] if key < len(found) else None
            else:
                found = found.get(key) if isinstance(found, dict) else None
        return found

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path, empty for anything else."""
        found = self.get(*path)
        return found if isinstance(found, dict) else {}

    def items(self, *path: str | int) -> list[tuple[Path, dict[str, Any]]]:
        """Mappings of the list at a path, each with its own."""
        found = self.get(*path)
        listed = found if isinstance(found, list) else []
        return [((*path, at), item) for at, item in enumerate(listed) if isinstance(item, dict)]

    def line(self, *path: str | int) -> int:
        """Line of a path, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, self.start)

    def problem(self, path: Path, rule: str, message: str, suggestion: str = "") -> Problem:
        """A Problem at a path."""
        value = self.get(*path)
        one_line = isinstance(value, (str, int, float, bool)) and "\n" not in str(value)
        shown = short(value, 80) if one_line else None
        return Problem(
            key=dotted(path),
            value=shown,
            rule=rule,
            message=message,
            suggestion=suggestion,
            file=self.file,
            line=self.line(*path),
        )


def dotted(path: Path) -> str:
    """`spec.tasks[0].name`, as kubectl writes it."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".") or "object"


def read_documents(text: str, file: str) -> list[Document]:
    """The objects of a file; a List is its items. Raises RecipeError."""
    try:
        loader = _Loader(text)
        nodes = list(_nodes(loader))
    except yaml.YAMLError as error:
        line, message = explain_error(error, text)
        raise _refused(file, "yaml_syntax", message, line) from None
    builder = _Builder(loader, file)
    found = []
    for node in nodes:
        if isinstance(node, yaml.ScalarNode) and node.value == "":
            continue  # nothing between two `---`
        if not isinstance(node, yaml.MappingNode):
            raise _refused(file, "not_an_object", "A document of a manifest is a mapping.", node.start_mark.line + 1)
        found += builder.documents(node)
    if not found:
        raise _refused(file, "empty", "There is no object in this file.", None)
    return found


def _nodes(loader: _Loader) -> Iterator[yaml.Node]:
    while loader.check_node():
        yield loader.get_node()


def _refused(file: str, rule: str, message: str, line: int | None) -> RecipeError:
    return RecipeError([Problem(key="file", value=None, rule=rule, message=message, file=file, line=line)])


class _Loader(yaml.SafeLoader):
    """SafeLoader that stops before Python's own recursion limit does."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "tag", None) not in (None, "!"):
            told = f"the tag {short(event.tag, 40)} is not read by Kubernetes"
            raise yaml.composer.ComposerError(None, None, told, event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_DEPTH} levels deep", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Builder:
    """Nodes -> values. An alias may name a node again and again, or itself: depth and count are held."""

    def __init__(self, loader: _Loader, file: str):
        self.loader, self.file, self.count = loader, file, 0

    def documents(self, node: yaml.MappingNode) -> Iterator[Document]:
        lines: dict[Path, int] = {}
        values = self.value(node, (), lines)
        start = node.start_mark.line + 1
        if values.get("kind") != "List" or not isinstance(values.get("items"), list):
            yield Document(file=self.file, start=start, values=values, lines=lines)
            return
        for at, item in enumerate(values["items"]):
            inner = {path[2:]: line for path, line in lines.items() if path[:2] == ("items", at)}
            if isinstance(item, dict):
                yield Document(file=self.file, start=inner.get((), start), values=item, lines=inner)

    def value(self, node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
        self.count += 1
        line = node.start_mark.line + 1
        if len(path) > MAX_DEPTH or self.count > MAX_VALUES:
            told = f"More than {MAX_DEPTH} levels or {MAX_VALUES:,} values once aliases (*) are written out."
            raise _refused(self.file, "too_large", told, line)
        lines.setdefault(path, line)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, at), lines) for at, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, lines)
        try:
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError, KeyError, AttributeError):
            raise _refused(
                self.file, "odd_value", f"{short(node.value, 60)} is no value of YAML; in quotes it is text.", line
            ) from None

    def mapping(self, node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                raise _refused(self.file, "yaml_feature", "Merge keys (<<) are not read here; write the keys.", line)
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refused(self.file, "odd_key", "A key is one word; this is a list or a mapping.", line)
            if key_node.value in values:
                told = f"The key {short(key_node.value, 60)} stands twice in this mapping; the API server refuses that."
                raise _refused(self.file, "duplicate_key", told, line)
            inner = (*path, key_node.value)
            lines[inner] = line
            values[key_node.value] = self.value(value_node, inner, lines)
        return values
