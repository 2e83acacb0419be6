"""Whole tensors against slices: cut for every rank, put together again, compared.

In: whole arrays; what every rank holds of them and which part that is. Out: slices, whole arrays again, and how far two
sets of whole arrays are apart.

>>> part = cut(whole, {"w": Slice(shape=(4, 2), bounds=((2, 4), (0, 2)), cut_by=(("tp",), ()))})
>>> part["w"].shape
(2, 2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from msparallel.errors import RunError
from msparallel.slice import Slice

Arrays = Mapping[str, np.ndarray]
ZERO_SHARE = 1e-6
"""A gradient whose norm is below this share of the largest one is zero but for rounding (a key's bias, say, which
softmax takes away again)."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two sets of tensors, the first of them true.

    Attributes:
        relative: name -> norm of the difference over the norm of the true tensor.
        zero: names of tensors that are zero but for rounding; they are not among `relative`.
        absolute: name -> largest difference of one value.
    """

    relative: Mapping[str, float]
    zero: tuple[str, ...]
    absolute: Mapping[str, float]

    @property
    def max_relative(self) -> float:
        return max(self.relative.values(), default=0.0)

    @property
    def max_absolute(self) -> float:
        return max(self.absolute.values(), default=0.0)


def difference(true: Arrays, other: Arrays) -> Difference:
    """How far `other` is from `true`. Raises RunError where one has tensors that the other has not."""
    if unlike := sorted(true.keys() ^ other.keys()):
        raise RunError(
            f"The cluster and the single process do not hold the same parameters: {', '.join(unlike[:5])}"
            f"{' ...' if len(unlike) > 5 else ''} {'are' if len(unlike) > 1 else 'is'} in one of them only."
        )
    norms = {name: _norm(values) for name, values in true.items()}
    largest = max(norms.values(), default=0.0)
    zero = tuple(name for name, norm in norms.items() if norm <= ZERO_SHARE * largest)
    gaps = {name: np.asarray(other[name], np.float64) - true[name] for name in true}
    return Difference(
        relative={name: _norm(gaps[name]) / norms[name] for name in true if name not in zero},
        zero=zero,
        absolute={name: float(np.abs(gap).max(initial=0.0)) for name, gap in gaps.items()},
    )


def cut(whole: Arrays, slices: Mapping[str, Slice]) -> dict[str, np.ndarray]:
    """A rank's slices of whole tensors."""
    return {
        name: np.ascontiguousarray(whole[name][tuple(slice(start, stop) for start, stop in part.bounds)])
        for name, part in slices.items()
    }


def joined(
    held: Mapping[int, Arrays], slices: Mapping[int, Mapping[str, Slice]]
) -> tuple[dict[str, np.ndarray], float]:
    """Whole tensors from what every rank holds, and how far copies of one slice are apart.

    Raises RunError for a tensor of which no rank holds some part.
    """
    whole: dict[str, np.ndarray] = {}
    seen: dict[str, np.ndarray] = {}
    apart = 0.0
    for rank, parts in slices.items():
        for name, part in parts.items():
            values = held[rank][name]
            place = tuple(slice(start, stop) for start, stop in part.bounds)
            if name not in whole:
                whole[name], seen[name] = np.zeros(part.shape, values.dtype), np.zeros(part.shape, bool)
            known = seen[name][place]
            if known.any():
                apart = max(apart, float(np.abs(np.where(known, whole[name][place] - values, 0)).max(initial=0.0)))
            whole[name][place] = np.where(known, whole[name][place], values)
            seen[name][place] = True
    for name, covered in seen.items():
        if not covered.all():
            raise RunError(
                f"{name}: no rank holds {np.count_nonzero(~covered)} of its {covered.size} values, "
                f"the first at {np.argwhere(~covered)[0].tolist()}."
            )
    return whole, apart


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(values, np.float64).ravel()))
