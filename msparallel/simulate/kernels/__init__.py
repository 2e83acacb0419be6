"""MindSpore's primitives in NumPy: one kernel each.

In: a Call. Out: the operator's values. `KERNELS` has every primitive that can run; collectives are the cluster's own.
Kernels of operators that write to kept values (`WRITES`) give the new values, in the order of the inputs they write to.

>>> KERNELS["Add"](Call("Add", (np.ones(2), np.ones(2)), {}, TensorType("Float64", (2,))))
array([2., 2.])
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from msparallel.simulate.kernels import (
    activations,
    attention,
    elementwise,
    gathering,
    losses,
    normalization,
    optimizers,
    paged,
    products,
    reductions,
    shaping,
    sorting,
    state,
)
from msparallel.simulate.kernels.call import Call, Kernel, UnsupportedCall, Value

__all__ = ["KERNELS", "RESULT_FIRST", "WRITES", "Call", "Kernel", "UnsupportedCall", "Value"]

_MODULES = (
    *(elementwise, reductions, shaping, gathering, products, normalization, activations),
    *(attention, paged, sorting, losses),
    *(state, optimizers),
)


def _finished(kernel: Kernel) -> Kernel:
    """Tensors without dims as arrays; infinities and NaN without warnings, since they are results as on a device."""

    @functools.wraps(kernel)
    def run(call: Call) -> Value:
        with np.errstate(all="ignore"):
            return _arrays(kernel(call))

    return run


def _arrays(value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(map(_arrays, value))
    return np.asarray(value) if isinstance(value, np.generic) else value


KERNELS: Mapping[str, Kernel] = {op: _finished(kernel) for module in _MODULES for op, kernel in module.KERNELS.items()}
WRITES: Mapping[str, tuple[int, ...]] = {
    **{"Assign": (0,), "AssignAdd": (0,), "AdamWeightDecay": (0, 1, 2)},
    "ReshapeAndCache": (2, 3),
}
"""Primitive -> its inputs that it writes to."""
RESULT_FIRST = frozenset({"ReshapeAndCache"})
"""Primitives that write to kept values and give something else: their kernels give the result, then the new values."""
