"""Operators on values that MindSpore keeps between steps; those that write give the new value."""

from __future__ import annotations

import numpy as np

from msparallel.simulate.kernels.arguments import same_dtype, tensor, unsupported
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


def _written(call: Call) -> tuple[np.ndarray, np.ndarray]:
    kept, value = tensor(call, 0), tensor(call, 1)
    same_dtype(call, kept, value)
    if kept.shape != value.shape:
        raise unsupported(call, f"a value {value.shape} is written to one of shape {kept.shape}")
    return kept, value


KERNELS: dict[str, Kernel] = {"Load": same, "TensorMove": same, "Assign": assign, "AssignAdd": assign_add}
