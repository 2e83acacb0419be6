"""Weights for a proof: drawn from seed and name, large enough that every part of a model counts.

In: a seed. Out: `read`, as `weights/source.py` has it. What training begins with would be no proof: matrices so
small that attention looks at all keys alike, norms of ones, biases of zeros.

>>> DrawnWeights().read("model.norm.weight", whole=(64,)).shape
(64,)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from msparallel.weights.hugging_face import EMBEDDING

SPREAD = 1.5
"""Times 1 / sqrt(inputs) is a matrix's standard deviation."""


class DrawnWeights:
    """All values are representable in float16, so that holding them in 16 bits changes none."""

    def __init__(self, seed: int = 1):
        self._seed = seed

    def read(
        self, name: str, bounds: Sequence[tuple[int, int]] | None = None, whole: Sequence[int] | None = None
    ) -> np.ndarray:
        """A parameter or a part of it, float32; `whole` must be given."""
        assert whole is not None, "drawn values need a shape"
        key = np.array([self._seed, zlib.crc32(name.encode())], np.uint64)
        values = np.random.Generator(np.random.Philox(key=key)).standard_normal(tuple(whole), np.float32)
        if len(whole) == 1:
            values = values * 0.2 + (0.0 if name.endswith(".bias") else 1.0)
        elif name != EMBEDDING:
            values = values * (SPREAD / math.sqrt(whole[-1]))
        values = values.astype(np.float16).astype(np.float32)
        return values if bounds is None else values[tuple(slice(*bound) for bound in bounds)]
