"""Which part of a whole parameter a rank holds.

In: nothing. Out: a Slice: the planner predicts it, the engine says it, a checkpoint stores it, a comparison joins them.

>>> Slice(shape=(32000, 4096), bounds=((16000, 32000), (0, 4096)), cut_by=(("tp",), ())).bounds[0]
(16000, 32000)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Which part of a parameter a rank holds.

    Attributes:
        shape: of the whole parameter.
        bounds: (start, stop) of each dim.
        cut_by: for each dim the axes of the mesh that cut it ("tp", "dp", ...), outermost first.
    """

    shape: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]
    cut_by: tuple[tuple[str, ...], ...]
