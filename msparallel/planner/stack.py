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
    fused_matrices: queries, keys and values are one matrix, gate and up another.
    skips_masked_keys: fused attention computes only what a causal mask leaves; otherwise all pairs.
    experts_cut_by_tp: tp cuts the width of each expert; otherwise ranks of tp hold different experts or share rows.
    dropless_pads: experts without a capacity compute as many rows as there are tokens, for each expert.
    transfers_wait: a stage computes nothing while it sends to or receives from the next one.
    """

    name: str
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    fused_matrices: bool = True
    skips_masked_keys: bool = True
    experts_cut_by_tp: bool = True
    dropless_pads: bool = False
    transfers_wait: bool = True


MSPARALLEL = Stack(
    name="msparallel",
    weight_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    fused_matrices=False,
    skips_masked_keys=False,
    experts_cut_by_tp=False,
    dropless_pads=True,
    transfers_wait=False,
)
"""Weights, gradients and AdamW's two moments in float32 (`planner/shards.py`)."""
