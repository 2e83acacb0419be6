"""First values of the parameters: drawn per parameter from (seed, name), not from one running generator.

So a value depends neither on the order in which cells are made nor on the strategy. In: a seed, a parameter's name,
its shape. Out: float32 values. Cells make matrices and biases as zeros and norms as ones; `draw_parameters` then fills
every matrix: normal with `init_std`, and 1 / sqrt(2 * num_layers) of that for the two matrices of a layer that write
into the residual stream, so that its variance does not grow with depth (Radford et al. 2019).

>>> normal_values(1, "lm_head.weight", (2, 2), 0.02).dtype
dtype('float32')
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from msparallel.model.shape import ModelShape

if TYPE_CHECKING:
    from msparallel.slice import Slice

RESIDUAL_OUTPUTS = ("o_proj", "down_proj")
"""Names of the matrices whose result is added to the residual stream."""


def normal_values(seed: int, name: str, shape: tuple[int, ...], std: float) -> np.ndarray:
    """The whole first value of one matrix.

    Args:
        seed: the job's seed.
        name: the parameter's full name.
        shape: its full shape; a rank which holds a slice draws the whole and cuts it.
        std: standard deviation.

    Returns:
        float32 array of `shape`.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, dtype=np.float32) * np.float32(std)


def initial_std(shape: ModelShape, name: str) -> float:
    """Standard deviation of the matrix called `name`."""
    if any(part in RESIDUAL_OUTPUTS for part in name.split(".")):
        return shape.init_std / math.sqrt(2 * shape.num_layers)
    return shape.init_std


def draw_parameters(model: nn.Cell, shape: ModelShape, seed: int) -> None:
    """Give every matrix of `model` its first value; the names must be final.

    In the modes semi_auto_parallel and auto_parallel MindSpore makes parameters without memory. Such a parameter is
    left alone here: only a compilation says which slice this rank holds, and `draw_slices` follows it.
    """
    for parameter in model.get_parameters():
        if parameter.ndim > 1 and not parameter.has_init:
            std = initial_std(shape, parameter.name)
            parameter.set_data(Tensor(normal_values(seed, parameter.name, parameter.shape, std), ms.float32))


def draw_slices(parameters: Iterable[ms.Parameter], slices: Mapping[str, Slice], shape: ModelShape, seed: int) -> None:
    """Give this rank's slice of every matrix the part of the whole first value that it is.

    MindSpore would call an initializer with the slice's shape, and all slices of a matrix would be equal.

    Args:
        parameters: of this rank's stage, as they are after the compilation.
        slices: which part of its whole each of them is.
    """
    for parameter in parameters:
        part = slices[parameter.name]
        if len(part.shape) > 1:
            whole = normal_values(seed, parameter.name, part.shape, initial_std(shape, parameter.name))
            mine = whole[tuple(slice(start, stop) for start, stop in part.bounds)]
            parameter.set_data(Tensor(np.ascontiguousarray(mine), ms.float32))
