"""Weights and optimizer state cut over data_parallel."""

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


def shard_needs_data_parallel(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard needs data_parallel above 1: it is data_parallel that the weights are cut over."""
    replicas = derive.degree(recipe, "dp")
    if replicas is None or not recipe.parallel.optimizer_shard or replicas > 1:
        return
    parts = {SHARD: None, SIZE: None, THRESHOLD: None}
    yield Finding(
        key=SHARD,
        message="Without effect: weights and optimizer state are cut over data_parallel, which is 1. Leave it "
        "out, or raise "
        "data_parallel.",
        tries=itertools.chain([parts], degree_changes(recipe, "parallel.data_parallel", [2, 4, 8])),
    )


def shard_needs_operator_mode(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard needs semi_auto_parallel or auto_parallel: MindSpore's engine does the cutting."""
    mode = recipe.parallel.mode
    if recipe.parallel.optimizer_shard and mode not in ("semi_auto_parallel", "auto_parallel"):
        yield Finding(
            key=SHARD,
            message=f"Weights are cut by MindSpore's auto-parallel engine, which {mode} does not use.",
            tries=[{"parallel.mode": "semi_auto_parallel"}, {SHARD: None, SIZE: None, THRESHOLD: None}],
        )


def shard_size_within_data_parallel(recipe: Recipe) -> Iterator[Finding]:
    """optimizer_shard_size divides data_parallel; MindSpore ignores a size that does not, and refuses a larger one."""
    replicas, size = derive.degree(recipe, "dp"), recipe.parallel.optimizer_shard_size
    if replicas is None or size is None or not recipe.parallel.optimizer_shard or replicas == 1 or replicas % size == 0:
        return
    yield Finding(
        key=SIZE,
        message=f"data_parallel {replicas} is not a multiple of {size} ({replicas} % {size} = {replicas % size}).",
        tries=[*({SIZE: count} for count in nearby(size, divisors(replicas)) if count > 1), {SIZE: None}],
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
    shard_needs_data_parallel,
    shard_needs_operator_mode,
    shard_size_within_data_parallel,
    shard_level3_without_pipeline,
    shard_details_need_shard,
)
