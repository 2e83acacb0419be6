"""Weights and optimizer state cut over the devices that hold them alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Finding, degree_changes, divisors, nearby, without_effect

SHARD, SIZE, THRESHOLD = (
    "parallel.optimizer_shard",
    "parallel.optimizer_shard_size",
    "parallel.optimizer_shard_threshold_kib",
)


def shard_needs_copies(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard needs data_parallel or context_parallel above 1: it cuts what several devices hold alike."""
    copies = _copies(recipe)
    if copies is None or not recipe.parallel.optimizer_shard or copies > 1:
        return
    parts = {SHARD: None, SIZE: None, THRESHOLD: None}
    yield Finding(
        key=SHARD,
        message="No two devices hold the same part of a matrix: data_parallel x context_parallel is 1, so there is "
        "nothing to cut but norms. Leave it out, or raise data_parallel.",
        tries=itertools.chain([parts], degree_changes(recipe, "parallel.data_parallel", [2, 4, 8])),
    )


def _copies(recipe: Recipe) -> int | None:
    """Devices that hold the same part of a matrix."""
    grid = derive.mesh(recipe)
    return None if grid is None else grid.dp * grid.cp


def shard_needs_operator_mode(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard needs semi_auto_parallel or auto_parallel: MindSpore's engine does the cutting."""
    mode = recipe.parallel.mode
    if recipe.parallel.optimizer_shard and mode not in ("semi_auto_parallel", "auto_parallel"):
        yield Finding(
            key=SHARD,
            message=f"Weights are cut by MindSpore's auto-parallel engine, which {mode} does not use.",
            tries=[{"parallel.mode": "semi_auto_parallel"}, {SHARD: None, SIZE: None, THRESHOLD: None}],
        )


def shard_size_divides_copies(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard_size is above 1 and divides data_parallel x context_parallel. MindSpore takes 1, and whatever is
    too large, for all copies, and leaves weights whole at a size that does not divide."""
    copies, size = _copies(recipe), recipe.parallel.optimizer_shard_size
    if copies is None or size is None or not recipe.parallel.optimizer_shard or copies == 1:
        return
    if size > 1 and copies % size == 0:
        return
    broken = (
        f"MindSpore takes 1 for all {copies} copies."
        if size == 1
        else f"data_parallel x context_parallel = {copies} is not a multiple of {size} ({copies} % {size} = "
        f"{copies % size})."
    )
    yield Finding(
        key=SIZE,
        message=broken,
        tries=[*({SIZE: count} for count in nearby(size, divisors(copies)) if count > 1), {SIZE: None}],
    )


def shard_level3_without_pipeline(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard level3 is not compiled on the last stage of a pipeline."""
    stages = derive.degree(recipe, "pp")
    if recipe.parallel.optimizer_shard != "level3" or stages is None or stages == 1:
        return
    yield Finding(
        key=SHARD,
        message=f"With pipeline_stages {stages}, MindSpore does not compile level3 on the last stage: it cuts the LM "
        "head's gradient, and keeps the sum over micro-batches whole. level2 cuts the same and gathers weights once.",
        tries=[{SHARD: "level2"}, {SHARD: "level1"}],
    )


def shard_details_need_shard(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard_size and optimizer_shard_threshold_kib belong to optimizer_shard."""
    if recipe.parallel.optimizer_shard:
        return
    for key in (SIZE, THRESHOLD):
        if recipe.value(key) is not None:
            yield without_effect(key, "optimizer_shard is off", {SIZE: None, THRESHOLD: None}, {SHARD: True})


RULES = (
    shard_needs_copies,
    shard_needs_operator_mode,
    shard_size_divides_copies,
    shard_level3_without_pipeline,
    shard_details_need_shard,
)
