"""`serve.weights` -> where weights come from: a Hugging Face folder, a training checkpoint, or random values.

In: the path or `random`, the model's shape. Out: something with `read(name, bounds, whole)`, and the folder of the
tokenizer that belongs to it. A shape that differs from the recipe's is refused before anything is loaded.

>>> open_weights("output/quickstart", shape).tokenizer  # doctest: +SKIP
PosixPath('output/quickstart')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

import numpy as np

from msparallel.errors import UserError
from msparallel.model.shape import ModelShape
from msparallel.weights.checkpoint import TrainedCheckpoint, shape_of_checkpoint
from msparallel.weights.hugging_face import HuggingFaceFolder

RANDOM = "random"
_NOT_OF_WEIGHTS = ("vocab_multiple", "max_positions", "init_std", "router_aux_loss", "expert_capacity_factor")
"""Numbers of a shape that say nothing about what weights mean."""


class Source(Protocol):
    """Parameters by name."""

    def read(
        self, name: str, bounds: Sequence[tuple[int, int]] | None = None, whole: Sequence[int] | None = None
    ) -> np.ndarray:
        """A parameter under our name, or the part [start, stop) of each dim; `whole` is the shape that the whole must
        have."""


@dataclass(frozen=True)
class Weights:
    """Attributes:
    tokenizer: folder with tokenizer.json; None where bytes are the tokens.
    """

    source: Source
    tokenizer: Path | None


def read_finite(
    weights: Source, name: str, bounds: Sequence[tuple[int, int]] | None = None, whole: Sequence[int] | None = None
) -> np.ndarray:
    """As `Source.read`. Raises UserError also where a value is NaN or infinite: every answer would be without sense."""
    values = weights.read(name, bounds, whole)
    wrong = values.size - int(np.isfinite(values).sum())
    if wrong:
        raise UserError(f"{name}\n  {wrong:,} of {values.size:,} values are NaN or infinite. The weights are damaged, "
                        "or their training diverged: take an earlier checkpoint.")  # fmt: skip
    return values


class RandomWeights:
    """What training begins with: to try the machinery without a checkpoint.

    Matrices are drawn by seed and name, norms are ones, biases zeros.
    """

    def __init__(self, shape: ModelShape, seed: int = 1):
        self._shape, self._seed = shape, seed

    def read(
        self, name: str, bounds: Sequence[tuple[int, int]] | None = None, whole: Sequence[int] | None = None
    ) -> np.ndarray:
        """See `Source.read`; `whole` must be given."""
        from msparallel.model.initialize import initial_std, normal_values

        assert whole is not None, "random values need a shape"
        if len(whole) == 1:
            values = np.zeros(whole, np.float32) if name.endswith(".bias") else np.ones(whole, np.float32)
        else:
            values = normal_values(self._seed, name, tuple(whole), initial_std(self._shape, name))
        return values if bounds is None else values[tuple(slice(*bound) for bound in bounds)]


def open_weights(where: str, shape: ModelShape, *, to_read: bool = False) -> Weights:
    """Raises UserError: nothing there, or weights of another model; where they are `to_read`, also damaged ones."""
    if where == RANDOM:
        return Weights(RandomWeights(shape), None)
    path = Path(where)
    if (path / "config.json").is_file():
        folder = HuggingFaceFolder.open(path)
        check_same_model(shape, folder.shape, path)
        return Weights(folder, path)
    step = _step_folder(path)
    checkpoint = TrainedCheckpoint.open(step)
    check_same_model(shape, shape_of_checkpoint(checkpoint), step)
    if to_read:
        checkpoint.check_content()
    return Weights(checkpoint, step.parent.parent)


def open_source(where: str) -> HuggingFaceFolder | TrainedCheckpoint:
    """The same without a recipe, with the optimizer's state where there is one. Raises UserError."""
    path = Path(where)
    if (path / "config.json").is_file():
        return HuggingFaceFolder.open(path)
    checkpoint = TrainedCheckpoint.open(_step_folder(path), ("model", "optimizer"))
    checkpoint.check_content()
    return checkpoint


def _step_folder(path: Path) -> Path:
    """A checkpoint: the folder itself, or the newest one of a run."""
    if (path / "state.json").is_file():
        return path
    for root in (path, path / "checkpoints"):
        steps = [one for one in root.glob("step_*") if one.name[5:].isdigit() and (one / "state.json").is_file()]
        if steps:
            return max(steps, key=lambda one: int(one.name[5:]))
    raise UserError(
        f"{path}\n  There is no Hugging Face folder (config.json) and no checkpoint (state.json, or "
        "checkpoints/step_N). `msparallel run quickstart` makes one: serve.weights=output/quickstart. To try without "
        "weights: serve.weights=random"
    )


def check_same_model(recipe: ModelShape, found: ModelShape, path: Path) -> None:
    """Raise UserError with every number that differs."""
    lines = []
    for field in fields(ModelShape):
        ours, theirs = getattr(recipe, field.name), getattr(found, field.name)
        if field.name not in _NOT_OF_WEIGHTS and ours != theirs:
            if recipe.num_experts and field.name == "ffn_size":  # of a dense layer, of which there is none
                continue
            lines.append(f"  model.{field.name} is {_word(ours)} in the recipe and {_word(theirs)} there.")
    if lines:
        raise UserError("\n".join([str(path), *lines]))


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
