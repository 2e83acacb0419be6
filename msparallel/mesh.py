"""The grid of devices with named axes, in MindSpore's rank order.

In: the degree of each axis. Out: rank <-> coordinates, and the ranks of every communication group.
MindSpore lays pipeline stages out as contiguous blocks of ranks; inside a stage the order is dp, cp, tp, tp innermost.

>>> mesh = Mesh(pp=2, dp=2, tp=2)
>>> mesh.coordinates(5)
{'pp': 1, 'dp': 0, 'cp': 0, 'tp': 1}
>>> mesh.groups("tp")
[[0, 1], [2, 3], [4, 5], [6, 7]]
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

AXES = ("pp", "dp", "cp", "tp")


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Degrees of the axes; 1 means that the axis is off."""

    pp: int = 1
    dp: int = 1
    cp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            if getattr(self, axis) < 1:
                raise ValueError(f"axis {axis} has degree {getattr(self, axis)}; degrees are at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        """Degrees in rank order, outermost first."""
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def degrees(self) -> dict[str, int]:
        """Axis -> degree, in rank order."""
        return dict(zip(AXES, self.shape, strict=True))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.shape)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Place of a rank on every axis. Raises IndexError for a rank outside the mesh."""
        if not 0 <= rank < self.size:
            raise IndexError(f"rank {rank} is outside 0..{self.size - 1} of {self}")
        result: dict[str, int] = {}
        for axis in reversed(AXES):
            rank, result[axis] = divmod(rank, getattr(self, axis))
        return {axis: result[axis] for axis in AXES}

    def rank(self, **coordinates: int) -> int:
        """Inverse of `coordinates`; an axis that is not given counts as 0."""
        result = 0
        for axis in AXES:
            result = result * getattr(self, axis) + coordinates.get(axis, 0)
        return result

    def groups(self, *axes: str) -> list[list[int]]:
        """Ranks that differ only on `axes`, group by group; every rank is in exactly one."""
        others = [axis for axis in AXES if axis not in axes]
        inner = [axis for axis in AXES if axis in axes]
        return [
            [
                self.rank(**dict(zip(others, outside, strict=True)), **dict(zip(inner, inside, strict=True)))
                for inside in itertools.product(*(range(getattr(self, axis)) for axis in inner))
            ]
            for outside in itertools.product(*(range(getattr(self, axis)) for axis in others))
        ]

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """The group over `axes` that holds `rank`."""
        place = self.coordinates(rank)
        return next(g for g in self.groups(*axes) if self.rank(**place) in g)

    def __str__(self) -> str:
        on = [f"{axis}{getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return f"{' x '.join(on) or 'one device'} ({self.size})"
