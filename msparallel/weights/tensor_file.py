"""A safetensors file read slice by slice, bfloat16 included, which NumPy has no type for.

In: a path. Out: names, shapes, and parts of tensors as float32, float16 or integers; what is not asked for is not read.

>>> with TensorFile(Path("model.safetensors")) as file:  # doctest: +SKIP
...     file.read("lm_head.weight", ((0, 1000), (0, 4096))).dtype
dtype('float32')

Source of the format: huggingface/safetensors, README: 8 bytes little-endian length of a JSON header {name: {dtype,
shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.errors import UserError, short

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
          "U8": "u1", "BOOL": "?"}  # fmt: skip
"""The format's word -> NumPy's; bfloat16 as the integer of its bits."""
_MOST_HEADER_BYTES = 100 * 1024 * 1024
"""The limit of the reference implementation."""


@dataclass(frozen=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int


class TensorFile:
    """One file, mapped into memory.

    Raises:
        UserError: the file is not there, is cut off, or is no safetensors file; the text says which tensor.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file, or a name that no file can have
            if isinstance(error, OSError):
                reason = error.strerror
            else:
                reason = "no file has such a name" if "\0" in str(path) else "it is empty"
            raise UserError(f"{path}\n  The weights cannot be read: {reason}.") from None
        try:
            self._entries = self._read_header()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """In the order of the file."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        """The format's word, such as BF16."""
        return self._entries[name].dtype

    def read(self, name: str, bounds: Sequence[tuple[int, int]] | None = None) -> np.ndarray:
        """A tensor, or the part [start, stop) of each dim that `bounds` names; bfloat16 comes as float32."""
        entry = self._entries[name]
        whole = np.frombuffer(self._map, _TYPES[entry.dtype], math.prod(entry.shape), entry.start).reshape(entry.shape)
        part = whole if bounds is None else whole[tuple(slice(*bound) for bound in bounds)]
        if entry.dtype == "BF16":
            return (part.astype(np.uint32) << 16).view(np.float32)
        return np.array(part)

    def _read_header(self) -> dict[str, _Entry]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
            raise self._broken(f"its header would be {length:,} bytes of {size:,}. It is cut off, or of another format")
        try:
            header = json.loads(self._map[8 : 8 + length])
        except (ValueError, RecursionError):
            raise self._broken("its header is not JSON") from None
        if not isinstance(header, dict):
            raise self._broken("its header is no object")
        data = 8 + length
        return {name: self._entry(name, value, data, size) for name, value in header.items() if name != "__metadata__"}

    def _entry(self, name: str, value: Any, data: int, size: int) -> _Entry:
        told = short(name, 100)
        if not isinstance(value, dict) or value.get("dtype") not in _TYPES:
            kind = value.get("dtype") if isinstance(value, dict) else value
            raise self._broken(f"{told} has the type {short(kind, 40)}; {', '.join(_TYPES)} are read")
        shape, offsets = value.get("shape"), value.get("data_offsets")
        if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
            raise self._broken(f"{told} has no shape and place in the file")
        taken = math.prod(shape) * np.dtype(_TYPES[value["dtype"]]).itemsize
        if offsets[1] - offsets[0] != taken:
            raise self._broken(f"{told} of shape {list(shape)} takes {taken:,} bytes, {offsets[1] - offsets[0]:,} are "
                               "set aside")  # fmt: skip
        if data + offsets[1] > size:
            raise self._broken(f"{told} ends at byte {data + offsets[1]:,}, the file at {size:,}: it is cut off. "
                               "Download it again")  # fmt: skip
        return _Entry(value["dtype"], tuple(shape), data + offsets[0])

    def _broken(self, what: str) -> UserError:
        return UserError(f"{self.path}\n  The weights cannot be used: {what}.")


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**48 for item in value)
