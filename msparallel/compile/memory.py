"""How much memory a compilation takes, before it is tried.

In: a Plan. Out: bytes of one process. The front end holds every layer of the model, whichever stage the rank is on;
micro-batches share one graph.
"""

from __future__ import annotations

from msparallel.plan import Plan

BASE_BYTES = 550 * 2**20
"""MindSpore imported, an empty network compiled."""
LAYER_BYTES = 50 * 2**20
"""One layer, forward and backward, once."""


def compile_memory_bytes(plan: Plan) -> int:
    """Estimate for one rank."""
    return BASE_BYTES + LAYER_BYTES * plan.shape.num_layers
