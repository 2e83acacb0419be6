"""What is asked of a process that compiles one rank, and what it answers.

In: nothing; plain values that both sides know. Out: `Request` and `Result`, written as JSON.
Pure: the side that asks does not import MindSpore.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULT_FILE, FAILURE_FILE, STAGE_FILE = "result.json", "failure.json", "stage.txt"
PID_FILE, EXIT_FILE = "pid.json", "exit.json"
STRATEGY_FILE = "strategy.json"

Role = Literal["weight", "optimizer", "gradient", "cache"]
"""What a kept value is for: trained, the optimizer's or the trainer's state, an accumulated gradient, keys or values of
tokens that were served."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Attributes:
    source: path of a recipe or of a MindFormers YAML.
    kind: which of the two, or a recipe's served model.
    overrides: of the recipe's values.
    values: dotted key -> value over those of a MindFormers YAML, any key.
    model_config: Hugging Face config or preset for a MindFormers YAML without a model shape.
    folder: for what comes out; it is made.
    save_strategy: whether the engine writes its strategies as MindSpore reads them again.
    layers_of_a_group: layers of every group of a MindFormers model, where not the file's.
    serving: of a served model, the fields of `serving.ServedForm`.
    """

    source: str
    kind: Literal["recipe", "mindformers", "serving"] = "recipe"
    overrides: list[str]
    world_size: int
    rank: int = 0
    folder: str = ""
    model_config: str | None = None
    save_strategy: bool = False
    layers_of_a_group: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    serving: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GraphResult:
    """One graph of the step: where it lies, and how often a step runs it."""

    folder: str
    executions: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """Attributes:
    roles: kept value -> what it is for.
    build_s: import and construction; compile_s: MindSpore's work on all graphs.
    peak_memory_bytes: largest resident memory of the process.
    notes: what a reader of the result must know.
    """

    graphs: list[GraphResult]
    roles: dict[str, Role]
    build_s: float
    compile_s: float
    peak_memory_bytes: int
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_result(folder: Path) -> Result:
    """The answer in a request's folder."""
    values = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    return Result(**{**values, "graphs": [GraphResult(**graph) for graph in values["graphs"]]})


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)
