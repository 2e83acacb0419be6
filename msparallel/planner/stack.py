"""How training software keeps its state: bytes a parameter, and which ranks share them out.

In: nothing. Out: a Stack for each software whose runs are planned or compared with.

>>> MSPARALLEL.weight_bytes + MSPARALLEL.gradient_bytes + MSPARALLEL.optimizer_bytes
16
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Attributes:
    weight_bytes, gradient_bytes, optimizer_bytes: of one parameter, before anything is shared out. Master copies of
        weights are the optimizer's.
    """

    name: str
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float


MSPARALLEL = Stack(name="msparallel", weight_bytes=4, gradient_bytes=4, optimizer_bytes=8)
"""Weights, gradients and AdamW's two moments in float32 (`planner/shards.py`)."""
