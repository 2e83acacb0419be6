"""Operators on values that MindSpore keeps between steps; those that write give the new value."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import index_tensor, tensor, unsupported
from msparallel.simulate.kernels.call import Call, Kernel
from msparallel.simulate.kernels.elementwise import exact


def same(call: Call) -> np.ndarray:
    """The value itself."""
    return tensor(call, 0)


def assign(call: Call) -> np.ndarray:
    """(kept value, new value)."""
    return _written(call)[1]


def assign_add(call: Call) -> np.ndarray:
    """(kept value, what is added to it)."""
    return exact(call, np.add, *_written(call))


def float_status(call: Call) -> np.ndarray:
    """A device's overflow flags, all 0: as of a step without overflow, which is the one that is run. Infinities
    themselves are seen in the values."""
    return np.zeros_like(index_tensor(call, 0))


def _written(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """The kept value, and the other in its dtype and shape."""
    kept, value = tensor(call, 0), tensor(call, 1)
    if not np.can_cast(value.dtype, kept.dtype, "safe"):
        raise unsupported(call, f"a value {value.dtype} is written to one of {kept.dtype}")
    try:
        whole = np.broadcast_to(value, kept.shape)
    except ValueError:
        raise unsupported(call, f"a value {value.shape} is written to one of shape {kept.shape}") from None
    return kept, whole.astype(kept.dtype, copy=False)


KERNELS: dict[str, Kernel] = {
    "Load": same,
    "TensorMove": same,
    "Assign": assign,
    "AssignAdd": assign_add,
    "NPUGetFloatStatusV2": float_status,
    "NPUClearFloatStatusV2": float_status,
}
