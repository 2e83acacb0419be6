"""MindSpore's primitives in NumPy: one kernel each.

In: a Call. Out: the operator's values. `KERNELS` has every primitive that can run; collectives are the cluster's own.
Kernels of operators that write to kept values (`WRITES`) give the new values, in the order of the inputs they write to.
"""

from __future__ import annotations

from collections.abc import Mapping

from msparallel.simulate.kernels.call import Call, Kernel, UnsupportedCall, Value

__all__ = ["KERNELS", "WRITES", "Call", "Kernel", "UnsupportedCall", "Value"]

KERNELS: Mapping[str, Kernel] = {}
WRITES: Mapping[str, tuple[int, ...]] = {"Assign": (0,), "AssignAdd": (0,), "AdamWeightDecay": (0, 1, 2)}
"""Primitive -> its inputs that it writes to."""
