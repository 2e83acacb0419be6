"""A Hugging Face model folder: what model it is, and its weights, slice by slice, under our names.

In: a folder with config.json and model.safetensors, or several files and model.safetensors.index.json. Out: the
ModelShape, and any part of any parameter. Llama 2 and 3, Qwen2, Qwen3 and Qwen3-MoE; weights tied to the embedding or
not.

>>> folder = HuggingFaceFolder.open(Path("models/Qwen3-8B"))  # doctest: +SKIP
>>> folder.shape.num_layers, folder.read("lm_head.weight").shape  # doctest: +SKIP
(36, (151936, 4096))

Our names are theirs, except that a mixture's experts are stacked: `mlp.experts.gate_proj` [E, F, H] stands for
`mlp.experts.0.gate_proj.weight` [F, H] and so on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.errors import UserError, short
from msparallel.interop.model_names import read_model
from msparallel.model.shape import ModelShape
from msparallel.weights.tensor_file import TensorFile

MODEL_TYPES = ("llama", "qwen2", "qwen3", "qwen3_moe")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_EXPERTS = re.compile(r"(?P<layer>model\.layers\.\d+\.mlp)\.experts\.(?P<matrix>gate_proj|up_proj|down_proj)")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")

Bounds = Sequence[tuple[int, int]]


_REAL = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class HuggingFaceFolder:
    """Attributes:
    shape: what config.json says; vocab_multiple is 1.
    config: config.json itself.
    """

    path: Path
    shape: ModelShape
    config: dict[str, Any]
    _files: dict[str, TensorFile]
    _stack: ExitStack

    @classmethod
    def open(cls, path: Path) -> HuggingFaceFolder:
        """Raises UserError: no such folder, another architecture, pickled weights, a file missing or cut off."""
        config = _read_object(path / "config.json")
        shape = shape_of_config(config, path / "config.json")
        with ExitStack() as stack:
            files = _open_files(path, stack)
            return cls(path, shape, config, files, stack.pop_all())

    def __enter__(self) -> HuggingFaceFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, name: str, bounds: Bounds | None = None, whole: Sequence[int] | None = None) -> np.ndarray:
        """A parameter under our name, or the part [start, stop) of each dim.

        Args:
            whole: the shape that the whole must have; rows of the embedding and of the head beyond the file's, which
                only pad the vocabulary, are zeros.

        Raises:
            UserError: it is not there, or has another shape.
        """
        if experts := _EXPERTS.fullmatch(name):
            return self._stacked(experts, bounds, whole)
        shape = self._shape(name)
        rows = whole[0] if whole else shape[0]
        padded = name in (EMBEDDING, HEAD) and rows >= shape[0] >= self.shape.vocab_size
        if whole is not None and tuple(whole) != shape and not (padded and tuple(whole[1:]) == shape[1:]):
            raise self._wrong(name, shape, whole)
        if bounds is None:
            bounds = [(0, rows), *((0, size) for size in shape[1:])]
        start, stop = bounds[0]
        held = self._files[name].read(name, [(min(start, shape[0]), min(stop, shape[0])), *bounds[1:]])
        missing = stop - start - held.shape[0]
        return np.concatenate([held, np.zeros((missing, *held.shape[1:]), held.dtype)]) if missing else held

    def _stacked(self, found: re.Match[str], bounds: Bounds | None, whole: Sequence[int] | None) -> np.ndarray:
        """Experts are stacked along the first dim."""
        names = [f"{found['layer']}.experts.{expert}.{found['matrix']}.weight"
                 for expert in range(self.shape.num_experts)]  # fmt: skip
        for name in names:
            shape = self._shape(name)
            if whole is not None and tuple(whole) != (len(names), *shape):
                raise self._wrong(name, shape, whole[1:])
        chosen = names if bounds is None else names[slice(*bounds[0])]
        return np.stack([self._files[name].read(name, None if bounds is None else bounds[1:]) for name in chosen])

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._files:
            files = {file.path.name for file in self._files.values()}
            raise UserError(f"{self.path}\n  No weight {name} in {', '.join(sorted(files)[:3])}"
                            f"{' ...' * (len(files) > 3)}. The folder is of another model, or was not downloaded "
                            "whole.")  # fmt: skip
        file = self._files[name]
        if file.dtype(name) not in _REAL:
            raise UserError(f"{file.path}\n  {name} has the dtype {file.dtype(name)}; weights are one of "
                            f"{', '.join(_REAL)}. Quantised weights are not read: take the model's own.")  # fmt: skip
        return file.shape(name)

    def _wrong(self, name: str, shape: Sequence[int], wanted: Sequence[int]) -> UserError:
        return UserError(f"{self._files[name].path}\n  {name} has the shape {list(shape)}, the model needs "
                         f"{list(wanted)}.")  # fmt: skip


def shape_of_config(config: dict[str, Any], path: Path) -> ModelShape:
    """What a config.json describes.

    Raises:
        UserError: another architecture, or one with a block that is not here.
    """
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise UserError(f"{path}\n  model_type is {short(kind, 40)}; {', '.join(MODEL_TYPES)} are served.")
    read = read_model(config, str(kind))
    missing = list(read.missing)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) not in (None, "default"):
        missing.append(("rope_scaling", f"positions scaled by {short(scaling.get('rope_type', scaling.get('type')))}"))
    if missing:
        told = "\n".join(f"  {short(key, 60)} asks for {short(what, 80)}, which is not here." for key, what in missing)
        raise UserError(f"{path}\n{told}")
    values = {key: value for key, value in read.values.items() if key != "attention"}
    try:
        shape = ModelShape(**values)
    except TypeError as error:
        raise UserError(f"{path}\n  The model's numbers are not complete: {error}.") from None
    wrong = [key for key in ("num_layers", "hidden_size", "num_heads", "vocab_size", "num_kv_heads", "head_dim")
             if type(getattr(shape, key)) is not int or not 0 < getattr(shape, key) < 2**31]  # fmt: skip
    if wrong or shape.num_heads % shape.num_kv_heads:
        key = wrong[0] if wrong else "num_kv_heads"
        raise UserError(f"{path}\n  {read.origin.get(key, key)} is {short(getattr(shape, key), 40)}: a whole number "
                        f"from 1{', which divides the heads' if key == 'num_kv_heads' else ''}.")  # fmt: skip
    return shape


def _open_files(path: Path, stack: ExitStack) -> dict[str, TensorFile]:
    """Tensor -> the file that has it."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        placed = _read_object(index).get("weight_map")
        if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
            raise UserError(f"{index}\n  It has no weight_map {{tensor: file}}.")
        names = sorted(set(placed.values()))
        outside = [name for name in names if Path(name).name != name or name in ("", ".", "..")]
        if outside:
            raise UserError(f"{index}\n  {short(outside[0], 100)} is no file of this folder.")
    elif (path / "model.safetensors").is_file():
        placed, names = None, ["model.safetensors"]
    else:
        pickled = next((name for name in _PICKLES if (path / name).exists()), None)
        told = (f"{pickled} is pickled: reading it can run any program. Convert it to safetensors where it came from, "
                "or download the safetensors files" if pickled else
                "There is neither model.safetensors nor model.safetensors.index.json")  # fmt: skip
        raise UserError(f"{path}\n  {told}.")
    files = {name: stack.enter_context(TensorFile(path / name)) for name in names}
    if placed is None:
        return dict.fromkeys(files["model.safetensors"].names(), files["model.safetensors"])
    for tensor, file in placed.items():
        if tensor not in files[file]:
            raise UserError(f"{path / file}\n  {short(tensor, 100)} should be in it, by {index.name}, and is not. "
                            "Download it again.")  # fmt: skip
    return {tensor: files[file] for tensor, file in placed.items()}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}\n  Cannot be read: {error.strerror}. A Hugging Face folder has config.json, "
                        "safetensors and tokenizer.json.") from None  # fmt: skip
    except (ValueError, RecursionError):
        raise UserError(f"{path}\n  This is not JSON.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}\n  Expected one object {{...}}.")
    return value
