"""Degrees, nodes and devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Changes, Finding, arithmetic, divisors, multiples_near, nearby, with_batch

MAX_DEVICES = 4096
"""Largest device_num of mindspore.set_auto_parallel_context (its documentation, 2.9)."""


def one_auto(recipe: Recipe) -> Iterator[Finding]:
    """At most one degree is `auto`: it takes the devices that the others leave."""
    automatic = [key for key in derive.DEGREES if getattr(recipe.parallel, key) == "auto"]
    if len(automatic) > 1:
        yield Finding(
            key=f"parallel.{automatic[-1]}",
            message=f"{' and '.join(automatic)} are `auto`; only one degree of a recipe can take what the others "
            "leave.",
            tries=({f"parallel.{key}": 1 for key in automatic if key != kept} for kept in automatic),
        )


def auto_needs_devices(recipe: Recipe) -> Iterator[Finding]:
    """`auto` needs cluster.devices_per_node, and the other degrees must divide the devices."""
    automatic = [key for key in derive.DEGREES if getattr(recipe.parallel, key) == "auto"]
    if len(automatic) != 1:
        return
    key, devices, machine = f"parallel.{automatic[0]}", derive.stated_devices(recipe), derive.hardware(recipe)
    others = {name: getattr(recipe.parallel, name) for name in derive.DEGREES if name != automatic[0]}
    product = math.prod(others.values())
    if devices is None:
        full = machine.devices_per_node if machine else 8
        yield Finding(
            key=key,
            message="`auto` takes the devices that the other degrees leave, but the recipe does not say how many "
            "there are: "
            "state cluster.devices_per_node (and cluster.nodes).",
            tries=[
                {"cluster.devices_per_node": full}, {"cluster.devices_per_node": product}, {key: 1},
                *({"cluster.devices_per_node": n} for n in (8, 4, 2, 1)),
            ],
        )  # fmt: skip
    elif devices % product:
        told = " x ".join(f"{name} {degree}" for name, degree in others.items() if degree > 1)
        yield Finding(
            key=key,
            message=f"`auto` takes the devices that the other degrees leave, but {devices} devices are not "
            "divisible by "
            f"{told} = {product} ({devices} % {product} = {devices % product}).",
            tries=itertools.chain(
                _degree_sets(recipe, devices),
                ({"cluster.nodes": 1, "cluster.devices_per_node": count} for count in multiples_near(devices, product)),
            ),
        )


def degrees_match_devices(recipe: Recipe) -> Iterator[Finding]:
    """data_parallel x context_parallel x model_parallel x pipeline_stages = nodes x devices_per_node."""
    grid, devices = derive.mesh(recipe), derive.stated_devices(recipe)
    if grid is None or devices is None or grid.size == devices:
        return
    cluster = recipe.cluster
    yield Finding(
        key="cluster.devices_per_node",
        message=f"{cluster.nodes or 1} node{'s' * ((cluster.nodes or 1) > 1)} x {cluster.devices_per_node} devices = "
        f"{devices}, but the degrees ask for {grid.size} ({arithmetic(grid)}). Both must be the same number.",
        tries=itertools.chain(_cluster_for(recipe, grid.size), _degree_sets(recipe, devices)),
    )


def degrees_match_nodes(recipe: Recipe) -> Iterator[Finding]:
    """The devices that the degrees ask for are the same number on every node."""
    grid, nodes = derive.mesh(recipe), recipe.cluster.nodes
    if grid is None or nodes is None or recipe.cluster.devices_per_node is not None or grid.size % nodes == 0:
        return
    yield Finding(
        key="cluster.nodes",
        message=f"{arithmetic(grid)}: {grid.size} devices cannot be spread evenly over {nodes} nodes "
        f"({grid.size} % {nodes} = {grid.size % nodes}).",
        tries=({"cluster.nodes": count} for count in nearby(nodes, divisors(grid.size))),
    )


def devices_fit_hardware(recipe: Recipe) -> Iterator[Finding]:
    """A node has no more devices than its hardware."""
    machine, cluster = derive.hardware(recipe), derive.nodes_and_devices(recipe)
    if machine is None or cluster is None or cluster[1] <= machine.devices_per_node:
        return
    nodes, per_node = cluster
    stated = recipe.cluster.devices_per_node is not None
    yield Finding(
        key="cluster.devices_per_node" if stated else "cluster.nodes",
        message=f"{per_node} devices on a node, but one {machine.name} node has {machine.devices_per_node}.",
        tries=itertools.chain(
            _cluster_for(recipe, nodes * per_node), _degree_sets(recipe, nodes * machine.devices_per_node)
        ),
    )


def devices_within_mindspore(recipe: Recipe) -> Iterator[Finding]:
    """MindSpore's device_num goes up to 4096."""
    grid = derive.mesh(recipe)
    if grid is not None and grid.size > MAX_DEVICES:
        largest = max(derive.DEGREES, key=lambda key: getattr(grid, derive.DEGREES[key]))
        yield Finding(
            key=f"parallel.{largest}",
            message=f"{arithmetic(grid)}: {grid.size} devices; MindSpore's device_num goes up to {MAX_DEVICES}.",
            tries=_degree_sets(recipe, derive.stated_devices(recipe) or 8),
        )


def _cluster_for(recipe: Recipe, devices: int) -> Iterator[Changes]:
    """Nodes and devices for the degrees as they are."""
    machine, nodes = derive.hardware(recipe), recipe.cluster.nodes or 1
    full = machine.devices_per_node if machine else 8
    per_node = recipe.cluster.devices_per_node
    if nodes == 1:
        yield {"cluster.devices_per_node": devices}
    if devices % (per_node or full) == 0:
        yield {"cluster.nodes": devices // (per_node or full)}
    if devices % nodes == 0:
        yield {"cluster.devices_per_node": devices // nodes}
    for count in (full, *nearby(full, divisors(devices, full))):
        if devices % count == 0:
            yield {"cluster.nodes": devices // count, "cluster.devices_per_node": count}


def _degree_sets(recipe: Recipe, devices: int) -> Iterator[Changes]:
    """Degrees for the devices as they are: data_parallel takes the change first, then the others are lowered."""
    degrees = {key: getattr(recipe.parallel, key) for key in derive.DEGREES}
    whole = {key: 1 if degree == "auto" else degree for key, degree in degrees.items()}
    automatic = [key for key, degree in degrees.items() if degree == "auto"]
    for key in [*automatic, "data_parallel", "pipeline_stages", "model_parallel", "context_parallel"]:
        wanted, rest = divmod(devices, math.prod(degree for name, degree in whole.items() if name != key))
        if not rest and wanted:
            yield from with_batch(recipe, {f"parallel.{key}": wanted})
    for lowered in ("model_parallel", "pipeline_stages", "context_parallel"):
        for degree in nearby(whole[lowered], divisors(devices)):
            others = math.prod(d for name, d in whole.items() if name not in (lowered, "data_parallel"))
            wanted, rest = divmod(devices, others * degree)
            if not rest and wanted:
                yield from with_batch(recipe, {f"parallel.{lowered}": degree, "parallel.data_parallel": wanted})
    for model in nearby(whole["model_parallel"], divisors(devices)):
        yield from with_batch(
            recipe,
            {"parallel.model_parallel": model, "parallel.pipeline_stages": 1, "parallel.context_parallel": 1,
             "parallel.data_parallel": devices // model},
        )  # fmt: skip


RULES = (
    one_auto,
    auto_needs_devices,
    degrees_match_devices,
    degrees_match_nodes,
    devices_fit_hardware,
    devices_within_mindspore,
)
