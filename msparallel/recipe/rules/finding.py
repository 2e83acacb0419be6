"""What a rule yields, and values for it to propose.

In: a recipe that breaks a rule. Out: a `Finding`: key, sentence, and changes to try, nearest first. Whether a change
works is not the rule's business: `find_problems` applies each to the whole recipe and takes the first that passes.

>>> nearby(3, [1, 2, 4, 8])
[4, 2, 1, 8]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msparallel.mesh import AXES, Mesh
from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe

Changes = Mapping[str, Any]
"""`section.key` -> value; None takes the key away."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken rule.

    Attributes:
        key: the key that the user looks at first.
        message: the rule with its numbers.
        tries: changes that may mend it, nearest first; read only as far as the first that works.
    """

    key: str
    message: str
    tries: Iterable[Changes] = ()


Rule = Callable[[Recipe], Iterator[Finding]]


def nearby(value: int, options: Iterable[int]) -> list[int]:
    """Options by their distance from a value as a ratio, the larger first where two are equally far."""
    return sorted(set(options), key=lambda option: (abs(math.log(option) - math.log(value)), -option))


def divisors(number: int, limit: int = 4096) -> list[int]:
    """Divisors of a number up to a limit."""
    return [candidate for candidate in range(1, min(number, limit) + 1) if number % candidate == 0]


def multiples_near(value: int, step: int) -> list[int]:
    """The multiple of `step` above a value, the one below (if there is one), and the next two above."""
    below = value // step * step
    return [number for number in (below + step, below, below + 2 * step, below + 4 * step) if number]


def arithmetic(grid: Mesh) -> str:
    """Degrees above 1 and their product.

    >>> arithmetic(Mesh(pp=2, tp=4))
    'pipeline_stages 2 x model_parallel 4 = 8'
    """
    keys = {axis: key for key, axis in derive.DEGREES.items()}
    stated = [f"{keys[axis]} {getattr(grid, axis)}" for axis in AXES if getattr(grid, axis) > 1]
    told = " x ".join(stated) or "all degrees 1"
    return f"{told} = {grid.size}" if len(stated) > 1 else told


def degree_changes(recipe: Recipe, key: str, values: Iterable[int]) -> Iterator[Changes]:
    """A degree set to each of the values: alone, and with another degree that keeps the number of devices; each
    also with a batch that the new data_parallel divides."""
    grid = derive.mesh(recipe)
    if grid is None:
        return
    degrees = {f"parallel.{name}": getattr(grid, axis) for name, axis in derive.DEGREES.items()}
    for value in values:
        others = [
            name
            for name in ("parallel.data_parallel", "parallel.pipeline_stages", "parallel.model_parallel")
            if name != key
        ]
        for other in others:
            wanted, rest = divmod(degrees[key] * degrees[other], value)
            if not rest and wanted:
                yield from with_batch(recipe, {key: value, other: wanted})
        yield from with_batch(recipe, {key: value})


def with_batch(recipe: Recipe, changes: Changes) -> Iterator[Changes]:
    """The changes alone, then with a global batch or micro-batch count that comes out."""
    yield changes
    if recipe.train is None:
        return
    if recipe.train.global_batch_size is not None and recipe.parallel.micro_batch_num is not None:
        yield {**changes, "parallel.micro_batch_num": None}
    from msparallel.recipe.override import with_possible_values  # override reads derive, as this module does

    changed = with_possible_values(recipe, changes)
    grid = derive.mesh(changed) if changed else None
    if grid is None or recipe.train.global_batch_size is None:
        return
    micro = recipe.train.micro_batch_size or 1
    for total in multiples_near(recipe.train.global_batch_size, grid.dp * micro * grid.pp):
        yield {**changes, "train.global_batch_size": total}


def without_effect(key: str, reason: str, *more: Changes) -> Finding:
    """A setting that changes nothing, because of what another one says."""
    name = key.partition(".")[2]
    message = f"Without effect: {reason}. Leave {name} out, or change that."
    return Finding(key=key, message=message, tries=[{key: None}, *more])
