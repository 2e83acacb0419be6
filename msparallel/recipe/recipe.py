"""One loaded recipe: its sections, and where each value came from.

In: sections, the lines they stand on, overrides. Out: an immutable value that rules, plan and trainer read.
Built by `msparallel.recipe.load.load_recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from msparallel.errors import Problem
from msparallel.recipe.schema import Cluster, Data, Model, Optimizer, Parallel, Sections, Serve, Supervise, Train

COMMAND_LINE = "command line"
"""Stands for the file in problems of overrides."""


class BrokenValue(Exception):
    """A rule asked for a value that was itself refused: the rule cannot be judged yet."""


class PartialSection:
    """A section some of whose values were refused. Reading one of those raises BrokenValue."""

    def __init__(self, section: BaseModel, broken: frozenset[str]):
        self._section, self._broken = section, broken
        self.model_fields_set = section.model_fields_set | broken

    def stated_values(self) -> dict[str, Any]:
        """Values that were written and not refused."""
        return {key: getattr(self._section, key) for key in self._section.model_fields_set}

    def __getattr__(self, name: str) -> Any:
        if name in self._broken:
            raise BrokenValue(name)
        return getattr(self._section, name)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Attributes:
    name: file name without `.yaml`; names the output folder.
    path: file it came from, as the user wrote it.
    sections: typed values. While a recipe still has problems, sections may be PartialSection.
    broken: `section.key` of values that were refused; empty in every recipe that load_recipe returns.
    lines: `section.key` (or `section`) -> line in the file; overridden keys have none.
    overrides: `section.key=value` as given.
    notes: what followed from an override and is worth saying (devices_per_node that followed the degrees).
    """

    name: str
    path: str
    sections: Sections
    lines: Mapping[str, int] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()

    @property
    def model(self) -> Model:
        return self.sections.model

    @property
    def parallel(self) -> Parallel:
        return self.sections.parallel

    @property
    def optimizer(self) -> Optimizer:
        return self.sections.optimizer or Optimizer()

    @property
    def data(self) -> Data:
        return self.sections.data or Data()

    @property
    def train(self) -> Train | None:
        return self.sections.train

    @property
    def cluster(self) -> Cluster:
        return self.sections.cluster or Cluster()

    @property
    def serve(self) -> Serve | None:
        return self.sections.serve

    @property
    def supervise(self) -> Supervise:
        return self.sections.supervise or Supervise()

    def stated(self, key: str) -> bool:
        """Whether `section.key` was written by the user rather than left to its default."""
        section, _, name = key.partition(".")
        values = getattr(self.sections, section)
        return values is not None and (not name or name in values.model_fields_set)

    def keys_stated(self, section: str) -> frozenset[str]:
        """Keys that the user wrote in a section."""
        values = getattr(self.sections, section)
        return frozenset() if values is None else frozenset(values.model_fields_set)

    def value(self, key: str) -> Any:
        """Value of `section.key`, None where the section is absent."""
        section, _, name = key.partition(".")
        return getattr(getattr(self.sections, section), name, None)

    def problem(self, rule: str, key: str, message: str, suggestion: str = "") -> Problem:
        """A Problem of this recipe, with the file and line of `key`, or of its section where no line states the key."""
        typed = any(override.startswith(f"{key}=") for override in self.overrides)
        line = None if typed else self.lines.get(key, self.lines.get(key.partition(".")[0]))
        return Problem(key=key, value=self.value(key) if self.stated(key) else None, rule=rule, message=message,
                       suggestion=suggestion, file=COMMAND_LINE if typed else self.path, line=line)  # fmt: skip
