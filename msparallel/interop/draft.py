"""A recipe in the making: values, where each came from, and what was left out on the way.

In: a MindFormersConfig. Out, piece by piece: recipe values with the YAML's key, and keys that were left with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msparallel.interop.mindformers import MindFormersConfig
from msparallel.interop.model_names import Why
from msparallel.interop.typed_reader import TypedReader


class Draft:
    """Attributes:
    config: what was read.
    read: reads further keys of the same file; what it was asked for counts as used.
    values: section -> key -> value of the recipe.
    origin: `section.key` of the recipe -> the YAML's keys that it says, the one to look at first.
    left: the YAML's key -> kind and reason.
    callbacks: items of the `callbacks` list.
    """

    def __init__(self, config: MindFormersConfig):
        self.config = config
        self.read = TypedReader(config.tree)
        self.values: dict[str, dict[str, Any]] = {}
        self.origin: dict[str, tuple[str, ...]] = {}
        self.left: dict[str, tuple[Why, str]] = {}
        found = config.tree.get("callbacks")
        self.callbacks: list[Any] = found if isinstance(found, list) else []

    def put(self, key: str, value: Any, *origin: str) -> None:
        """Set `section.key` of the recipe; `origin` are the YAML's keys that it says, which count as used."""
        section, _, name = key.partition(".")
        self.values.setdefault(section, {})[name] = value
        if origin:
            self.origin[key] = origin
            self.read.read.update(origin)

    def leave(self, key: str, kind: Why, reason: str) -> None:
        """Say that a key of the YAML is not carried, and why."""
        self.left.setdefault(key, (kind, reason))

    def leave_idle(self, reason: str, *keys: str) -> None:
        """Say of keys and sections, as far as the YAML has them, that they change nothing."""
        below = tuple(f"{key}." for key in keys)
        for key, _ in self.config.tree.leaves():
            if key in keys or key.startswith(below):
                self.leave(key, "no_effect", reason)

    def use(self, *keys: str) -> None:
        """Keys whose value holds in the recipe without a key of its own."""
        self.read.read.update(keys)

    def in_file(self, key: str) -> bool:
        """Whether the YAML itself holds a key."""
        return key in self.config.tree.lines

    def override(self, typed: Mapping[str, Any]) -> None:
        """Values from the command line over the draft's own; None takes one away."""
        for key, value in typed.items():
            section, _, name = key.partition(".")
            keys = self.values.setdefault(section, {})
            self.origin.pop(key, None)
            if value is None:
                keys.pop(name, None)
            else:
                keys[name] = value
