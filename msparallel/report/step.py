"""What the terminal and the page both say of a step's timeline.

In: a Span, a Timeline, seconds. Out: the pass that an operator belongs to, the ranks that are worth a row, a text.

>>> pass_of(span)  # whose path is "gradient of network.layers.3.mlp"
'backward'
"""

from __future__ import annotations

from typing import Literal, get_args

from msparallel.mesh import AXES, Mesh
from msparallel.simulate.timeline import Timeline
from msparallel.simulate.walk import Span

Pass = Literal["forward", "backward", "recompute", "update"]
PASSES: tuple[Pass, ...] = get_args(Pass)
UPDATE_CELLS = ("", "update", "optimizer")
"""First names of the cells that stand outside the network: the trainers' update, MindSpore's own training cells'
optimizer, and a training cell's own lines."""


def pass_of(span: Span) -> Pass:
    """By the marks that MindSpore's passes leave in a scope. What has no cell but a micro-batch are messages and copies
    of the forward pass, or adds up a micro-batch's gradients."""
    if span.path.startswith("gradient of "):
        return "backward"
    if span.path.startswith("recomputed "):
        return "recompute"
    if span.path.partition(".")[0] not in UPDATE_CELLS:
        return "forward"
    if span.micro is None:
        return "update"
    return "backward" if span.op.startswith("Assign") else "forward"


def micro_batch_count(timeline: Timeline) -> int:
    """Micro-batches of the step, as its operators are numbered."""
    return 1 + max((span.micro for span in timeline.spans if span.micro is not None), default=0)


def micro_of(span: Span, count: int) -> int | None:
    """Micro-batch of `count`; None for what belongs to none. Where a step has only one, MindSpore numbers nothing."""
    if span.micro is None and count == 1 and pass_of(span) != "update":
        return 0
    return span.micro


def shown_ranks(timeline: Timeline, most: int) -> list[int]:
    """All ranks where they are not more than `most`, else the first of each stage."""
    ranks = [times.rank for times in timeline.ranks]
    if len(ranks) <= most:
        return ranks
    first = {timeline.mesh.rank(pp=stage) for stage in range(timeline.mesh.pp)}
    return [rank for rank in ranks if rank in first]


def place_text(rank: int, mesh: Mesh) -> str:
    """Coordinates on the axes that are on.

    >>> place_text(5, Mesh(pp=2, dp=2, tp=2))
    'pp1 dp0 tp1'
    """
    place = mesh.coordinates(rank)
    return " ".join(f"{axis}{place[axis]}" for axis in AXES if getattr(mesh, axis) > 1)


def seconds_text(seconds: float) -> str:
    """
    >>> seconds_text(0.01234)
    '12.3 ms'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    raise AssertionError("the last unit takes everything")
