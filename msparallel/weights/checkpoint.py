"""A training checkpoint of msparallel, whole or in the slices of its ranks, read parameter by parameter.

In: `step_NNNNNN`, as `train/checkpoint.py` writes it. Out: any part of any parameter, put together from whichever ranks
hold it; nothing else is read.

>>> with TrainedCheckpoint.open(Path("output/quickstart/checkpoints/step_000480")) as trained:  # doctest: +SKIP
...     trained.read("model.norm.weight").shape
(192,)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.errors import UserError, short
from msparallel.model.shape import ModelShape
from msparallel.train.checkpoint import FORMAT, VERSION, sha256_of
from msparallel.weights.tensor_file import TensorFile

Bounds = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Piece:
    """What one file holds of a parameter: [start, stop) of each dim."""

    file: TensorFile
    bounds: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TrainedCheckpoint:
    """Attributes:
    state: what the trainer stored.
    shapes: of every parameter and optimizer value, whole.
    """

    path: Path
    step: int
    state: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    _pieces: dict[str, list[Piece]]
    _digests: dict[Path, str]
    _stack: ExitStack

    @classmethod
    def open(cls, path: Path, kinds: Sequence[str] = ("model",)) -> TrainedCheckpoint:
        """Of `model` and `optimizer` what `kinds` names. Raises UserError where something is missing or damaged."""
        head = _object(path / "state.json")
        if head.get("format") != FORMAT or head.get("version") != VERSION:
            raise UserError(f"{path / 'state.json'}\n  Format {short(head.get('format'), 40)} version "
                            f"{short(head.get('version'), 20)}; {FORMAT} version {VERSION} is read.")  # fmt: skip
        ranks, step, state = head.get("ranks"), head.get("step"), head.get("state")
        if type(ranks) is not int or not 0 <= ranks <= 65_536 or type(step) is not int or not isinstance(state, dict):
            raise UserError(f"{path / 'state.json'}\n  It has no ranks, step and state.")
        pieces: dict[str, list[Piece]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        digests: dict[Path, str] = {}
        with ExitStack() as stack:
            for folder in [path / f"rank_{rank:04d}" for rank in range(ranks)] or [path]:
                described = _object(folder / "slices.json") if ranks else head
                written = described.get("files")
                for kind in kinds if isinstance(written, dict) else ():
                    file = f"{kind}.safetensors"
                    if isinstance(written.get(file), dict):
                        digests[folder / file] = str(written[file].get("sha256"))
                _add(folder, described.get("parameters"), kinds, stack, pieces, shapes)
            return cls(path, step, state, shapes, pieces, digests, stack.pop_all())

    def __enter__(self) -> TrainedCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check_content(self) -> None:
        """Read every file once and compare it with what was written: what is converted gets a digest of its own, which
        would make a damaged value a good one. Raises UserError."""
        for path, digest in self._digests.items():
            if sha256_of(path) != digest:
                raise UserError(f"{path}\n  It has another content than when it was written (sha256 differs). Take the "
                                "checkpoint before it.")  # fmt: skip

    def read(self, name: str, bounds: Bounds | None = None, whole: Sequence[int] | None = None) -> np.ndarray:
        """A parameter, or the part [start, stop) of each dim.

        Args:
            whole: the shape that the whole must have.

        Raises:
            UserError: it is not there, has another shape, or no rank holds a part of what is asked.
        """
        shape = self.shapes.get(name)
        if shape is None:
            raise UserError(f"{self.path}\n  No {name} in it; it is of another model.")
        if whole is not None and tuple(whole) != shape:
            raise UserError(f"{self.path}\n  {name} has the shape {list(shape)}, the model needs {list(whole)}.")
        wanted = tuple(bounds) if bounds is not None else tuple((0, size) for size in shape)
        pieces = self._pieces[name]
        if len(pieces) == 1 and pieces[0].bounds == wanted:
            return pieces[0].file.read(name)
        values: np.ndarray | None = None
        filled = np.zeros([stop - start for start, stop in wanted], bool)
        for piece in pieces:
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, piece.bounds, strict=True)]
            if any(start >= stop for start, stop in common):
                continue
            into = tuple(slice(start - first, stop - first)
                         for (start, stop), (first, _) in zip(common, wanted, strict=True))  # fmt: skip
            if filled[into].all():
                continue
            part = piece.file.read(name, [(start - first, stop - first) for (start, stop), (first, _) in
                                          zip(common, piece.bounds, strict=True)])  # fmt: skip
            values = np.empty(filled.shape, part.dtype) if values is None else values
            values[into], filled[into] = part, True
        if values is None or not filled.all():
            missing = filled.size - int(filled.sum())
            raise UserError(f"{self.path}\n  {missing:,} of {filled.size:,} values of {name} are in no rank's file.")
        return values


def shape_of_checkpoint(source: TrainedCheckpoint) -> ModelShape:
    """The model that was trained. Raises UserError where the checkpoint does not say it."""
    told = source.state.get("identity")
    told = told if isinstance(told, dict) else {}
    values = {key[6:]: value for key, value in told.items() if key.startswith("model.")}
    try:
        return ModelShape(**values)
    except TypeError:
        raise UserError(f"{source.path / 'state.json'}\n  It does not say which model was trained.") from None


def _add(folder: Path, parameters: Any, kinds: Sequence[str], stack: ExitStack, pieces: dict[str, list[Piece]],
         shapes: dict[str, tuple[int, ...]]) -> None:  # fmt: skip
    """What one folder's description says."""
    if not isinstance(parameters, dict):
        raise UserError(f"{folder}\n  Its description has no parameters.")
    files: dict[str, TensorFile] = {}
    for name, value in parameters.items():
        try:
            file, shape = value["file"], tuple(int(size) for size in value["shape"])
            bounds = tuple((int(start), int(stop)) for start, stop in value["slice"])
            inside = all(0 <= start <= stop <= size for (start, stop), size in zip(bounds, shape, strict=True))
        except (TypeError, KeyError, ValueError, OverflowError):
            inside = False
        if not inside:
            raise UserError(f"{folder}\n  The description of {short(name, 100)} is damaged.")
        if file not in [f"{kind}.safetensors" for kind in kinds]:
            continue
        if file not in files:
            files[file] = stack.enter_context(TensorFile(folder / file))
        if name not in files[file] or files[file].shape(name) != tuple(stop - start for start, stop in bounds):
            raise UserError(f"{folder / file}\n  {short(name, 100)} is not in it as its description says.")
        if shapes.setdefault(name, shape) != shape:
            raise UserError(f"{folder}\n  {short(name, 100)} has the shape {list(shape)} here, {list(shapes[name])} on "
                            "another rank.")  # fmt: skip
        pieces.setdefault(name, []).append(Piece(files[file], bounds))


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}\n  Cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}\n  This is not JSON.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}\n  Expected one object {{...}}.")
    return value
