"""The inputs of a Call as a kernel wants them: tensors, whole numbers, dims.

In: a Call and the place of an input. Out: the value, checked. A value that is not of the asked kind raises
UnsupportedCall with the operator, the place and what was found.

>>> dims(Call("ReduceSum", (np.zeros((2, 3)), [-1]), {}, None), 1, 2)
(1,)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from msparallel.compile.graph import TensorType
from msparallel.simulate.kernels.call import Call, UnsupportedCall

DTYPE_IDS = {
    **{30: "bool", 32: "int8", 33: "int16", 34: "int32", 35: "int64", 37: "uint8", 38: "uint16", 39: "uint32"},
    **{40: "uint64", 42: "float16", 43: "float32", 44: "float64"},
}
"""MindSpore's numbers of its dtypes, as operators take them."""


def unsupported(call: Call, text: str) -> UnsupportedCall:
    return UnsupportedCall(f"{call.op}: {text}")


def given(call: Call, place: int) -> Any:
    """An input as it is; raises UnsupportedCall where there is none."""
    if place >= len(call.inputs):
        raise unsupported(call, f"has {len(call.inputs)} inputs, and none at {place}")
    return call.inputs[place]


def tensor(call: Call, place: int) -> np.ndarray:
    return _tensor(call, place, given(call, place))


def optional_tensor(call: Call, place: int) -> np.ndarray | None:
    """A tensor, or None where the operator got none."""
    if place >= len(call.inputs) or call.inputs[place] is None:
        return None
    return tensor(call, place)


def tensor_list(call: Call, place: int) -> list[np.ndarray]:
    """Tensors of one dtype."""
    value = given(call, place)
    if not isinstance(value, (tuple, list)) or not value:
        raise unsupported(call, f"input {place} must be a tuple of tensors, not {_told(value)}")
    items = [_tensor(call, place, item) for item in value]
    same_dtype(call, *items)
    return items


def float_tensor(call: Call, place: int) -> np.ndarray:
    """A tensor of float16, float32 or float64."""
    value = tensor(call, place)
    if value.dtype.kind != "f":
        raise unsupported(call, f"input {place} is {value.dtype}; only float16, float32 and float64 are computed")
    return value


def index_tensor(call: Call, place: int) -> np.ndarray:
    """A tensor of whole numbers."""
    value = tensor(call, place)
    if value.dtype.kind not in "iu":
        raise unsupported(call, f"input {place} is {value.dtype}; indices are whole numbers")
    return value


def same_dtype(call: Call, *values: np.ndarray) -> None:
    """Most operators take one dtype; what NumPy would promote silently is an error."""
    dtypes = [str(value.dtype) for value in values]
    if len(set(dtypes)) > 1:
        raise unsupported(call, f"inputs are {' and '.join(dict.fromkeys(dtypes))}; they must be of one dtype")


def in_one_dtype(call: Call, *values: np.ndarray) -> list[np.ndarray]:
    """Tensors in the dtype of the result, where MindSpore's operator takes several: booleans and whole numbers become
    floats, narrow floats wide ones. Raises UnsupportedCall where a value would lose more than that."""
    if len({value.dtype for value in values}) > 1:
        target = np.dtype(call.type.dtype.lower()) if isinstance(call.type, TensorType) else None
        if target is None or not all(_widens(value.dtype, target) for value in values):
            same_dtype(call, *values)
        return [value.astype(target, copy=False) for value in values]
    return list(values)


def _widens(given: np.dtype, target: np.dtype) -> bool:
    return np.can_cast(given, target, "safe") or (given.kind in "iu" and target.kind == "f")


def integer(call: Call, place: int) -> int:
    return _integer(call, place, given(call, place))


def integers(call: Call, place: int) -> tuple[int, ...]:
    """A tuple of whole numbers; one number stands for a tuple of one."""
    value = given(call, place)
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist() if value.dtype.kind in "iu" else value
    if isinstance(value, (tuple, list)):
        return tuple(_integer(call, place, item) for item in value)
    return (_integer(call, place, value),)


def number(call: Call, place: int) -> int | float:
    """A Python number, or a tensor with one element."""
    value = given(call, place)
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        value = value.item()
    if not isinstance(value, (int, float)):
        raise unsupported(call, f"input {place} must be a number, not {_told(value)}")
    return value


def flag(call: Call, place: int) -> bool:
    value = given(call, place)
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        value = value.item()
    if not isinstance(value, (bool, int)):
        raise unsupported(call, f"input {place} must be true or false, not {_told(value)}")
    return bool(value)


def dtype(call: Call, place: int) -> np.dtype | None:
    """NumPy's dtype for MindSpore's number of one; None where the operator got none."""
    value = given(call, place)
    if value is None:
        return None
    found = _integer(call, place, value)
    if found not in DTYPE_IDS:
        raise unsupported(call, f"dtype number {found} has no NumPy type; there are {sorted(DTYPE_IDS)}")
    return np.dtype(DTYPE_IDS[found])


def dim(call: Call, place: int, rank: int) -> int:
    """A dim of a tensor with `rank` dims, counted from the front. Raises IndexError for one outside."""
    return _dim(call, integer(call, place), rank)


def dims(call: Call, place: int, rank: int) -> tuple[int, ...]:
    """Dims of a tensor with `rank` dims, counted from the front; no number is all of them, as in MindSpore's
    reductions. Raises IndexError for one outside, UnsupportedCall for one named twice."""
    if given(call, place) is None:
        return tuple(range(rank))
    found = tuple(_dim(call, value, rank) for value in integers(call, place))
    if len(set(found)) != len(found):
        raise unsupported(call, f"dims {found} name one twice")
    return found or tuple(range(rank))


def only(call: Call, what: str, value: Any, *known: Any) -> None:
    """Raise UnsupportedCall unless the value is one of those the kernel computes."""
    if value not in known:
        raise unsupported(call, f"{what} is {value!r}; only {' and '.join(map(repr, known))} is computed")


def in_range(call: Call, indices: np.ndarray, length: int, what: str) -> None:
    """Raise IndexError unless all indices are in [0, length)."""
    if indices.size and (indices.min() < 0 or indices.max() >= length):
        outside = indices[(indices < 0) | (indices >= length)]
        raise IndexError(
            f"{call.op}: {what} {outside.flat[0]} is outside [0, {length}); so are {outside.size} of {indices.size}"
        )


def in_dtype(call: Call, values: np.ndarray, target: np.dtype) -> np.ndarray:
    """Whole numbers in a narrower dtype. Raises OverflowError where one does not fit."""
    limits = np.iinfo(target)
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        extreme = values.max() if values.max() > limits.max else values.min()
        raise OverflowError(f"{call.op}: {extreme} does not fit into {target}, [{limits.min}, {limits.max}]")
    return values.astype(target)


def _tensor(call: Call, place: int, value: Any) -> np.ndarray:
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not isinstance(value, np.ndarray):
        raise unsupported(call, f"input {place} must be a tensor, not {_told(value)}")
    return value


def _integer(call: Call, place: int, value: Any) -> int:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    try:
        return operator.index(value)
    except TypeError:
        raise unsupported(call, f"input {place} must be a whole number, not {_told(value)}") from None


def _dim(call: Call, value: int, rank: int) -> int:
    if not -max(rank, 1) <= value < max(rank, 1):
        raise IndexError(f"{call.op}: dim {value} is outside [-{rank}, {rank}) of a tensor with {rank} dims")
    return value % max(rank, 1)


def _told(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a tensor {value.dtype}{list(value.shape)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a tuple of {len(value)}"
    return repr(value)
