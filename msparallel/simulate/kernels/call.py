"""What a kernel gets and gives.

In: an operator with its values. Out: `Call`, and the error of a kernel that cannot do what is asked.

>>> softmax(Call("Softmax", (np.zeros((2, 4), np.float32), (-1,)), {}, TensorType("Float32", (2, 4)))).sum()
2.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from msparallel.compile.graph import TensorType, Type

Value: TypeAlias = "np.ndarray | int | float | bool | str | None | tuple[Value, ...]"
"""A tensor, a plain constant, or a tuple of values, as MindSpore's primitive takes or gives them."""


class UnsupportedCall(Exception):
    """An operator with values or attributes that its kernel does not compute; the text says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operator about to run.

    Attributes:
        op: MindSpore's primitive.
        inputs: in the primitive's order. Kernels never write into them: other ranks may read the same array.
        attributes: of the primitive.
        type: of the result, as MindSpore inferred it; what a kernel gives is checked against it.
    """

    op: str
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    type: Type

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result, where it is one tensor."""
        assert isinstance(self.type, TensorType), "only of operators that give one tensor"
        return self.type.shape


Kernel: TypeAlias = Callable[[Call], Value]
