"""Writes a safetensors file tensor by tensor, bfloat16 included, without holding more than one in memory.

In: names, types, shapes, and a function that gives each tensor's values when its turn comes. Out: the file, laid out
as the reference implementation lays it out (wider types first, then by name), so that the same tensors give the same
bytes.

>>> write_tensors(Path("model.safetensors"), [Planned("norm.weight", "BF16", (64,), read)])  # doctest: +SKIP

Source of the layout: huggingface/safetensors, `prepare` in safetensors/src/tensor.rs: sorted by dtype, then by name;
the header is padded with spaces to a multiple of 8.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}
_ORDER = ("I64", "F32", "I32", "BF16", "F16")
"""Of the types that are written, the reference implementation's order in a file."""
_NUMPY = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}


@dataclass(frozen=True)
class Planned:
    """A tensor to come: `read` gives its values, of `shape`, when it is written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_tensors(
    path: Path, tensors: Sequence[Planned], progress: Callable[[int], object] = lambda count: None
) -> str:
    """Write `path` and see it on the disk. Returns its sha256; `progress` is told bytes.

    Raises OSError: no space, no permission.
    """
    ordered = sorted(tensors, key=lambda one: (_ORDER.index(one.dtype), one.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for one in ordered:
        offsets = [place, place + one.size_bytes]
        header[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": offsets}
        place += one.size_bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            digest.update(data)
            file.write(data)

        put(len(text).to_bytes(8, "little") + text)
        for one in ordered:
            values = one.read()
            assert values.shape == one.shape, f"{one.name} is {values.shape}, not {one.shape}"
            put(memoryview(as_dtype(values, one.dtype)).cast("B") if values.size else b"")
            progress(one.size_bytes)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as the format's type, contiguous; bfloat16 as the integers of its bits, rounded to nearest, ties to even.

    >>> as_dtype(np.float32([1.0, 1.00390625]), "BF16").tolist()
    [16256, 16256]
    """
    if dtype != "BF16":
        return np.ascontiguousarray(values, _NUMPY[dtype])
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(np.ascontiguousarray(values, np.float32))
    return np.where(nan, ((bits >> 16) | 0x40).astype(np.uint16), rounded) if nan.any() else rounded
