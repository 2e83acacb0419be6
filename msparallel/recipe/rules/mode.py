"""What each of MindSpore's parallel modes can do, and where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from msparallel.mesh import Mesh
from msparallel.plan import DEFAULT_SEARCH_MODE
from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Changes, Finding, arithmetic, divisors, nearby, with_batch, without_effect

MODE = "parallel.mode"
OPERATOR_MODES = ("semi_auto_parallel", "auto_parallel")
"""Modes in which MindSpore's engine cuts operators."""
_SERVER = 8  # devices of a server, as MindSpore's device manager counts them


def stand_alone_is_one_device(recipe: Recipe) -> Iterator[Finding]:
    """stand_alone runs on one device: every degree is 1."""
    grid = derive.mesh(recipe)
    if grid is None or recipe.parallel.mode != "stand_alone" or grid.size == 1:
        return
    yield Finding(
        key=MODE if recipe.stated(MODE) else _stated_degree(recipe, grid),
        message=f"stand_alone is one device, but the degrees ask for {grid.size} ({arithmetic(grid)}). "
        "data_parallel runs replicas, also on CPU; semi_auto_parallel runs every strategy, on Ascend.",
        tries=_modes(recipe, grid),
    )


def replica_modes_are_data_parallel(recipe: Recipe) -> Iterator[Finding]:
    """data_parallel and hybrid_parallel modes cut nothing but the batch: the other degrees are 1."""
    grid, mode = derive.mesh(recipe), recipe.parallel.mode
    if grid is None or mode not in ("data_parallel", "hybrid_parallel") or grid.size == grid.dp:
        return
    others = [key for key, axis in derive.DEGREES.items() if key != "data_parallel" and getattr(grid, axis) > 1]
    told = " and ".join(f"{key} {getattr(grid, derive.DEGREES[key])}" for key in others)
    yield Finding(
        key=f"parallel.{others[0]}",
        message=f"In mode {mode} every device holds the whole model, but {told} would cut it. semi_auto_parallel "
        "does that.",
        tries=_modes(recipe, grid),
    )


def operator_modes_need_ascend(recipe: Recipe) -> Iterator[Finding]:
    """semi_auto_parallel and auto_parallel need Ascend: MindSpore refuses them on CPU."""
    machine, mode = derive.hardware(recipe), recipe.parallel.mode
    grid = derive.mesh(recipe)
    if machine is None or grid is None or mode not in OPERATOR_MODES or machine.target != "CPU":
        return
    yield Finding(
        key=MODE if recipe.stated(MODE) else "cluster.hardware",
        message=f"MindSpore runs {mode} on Ascend only (on CPU it stops with `Invalid backend: CPU`). Name the "
        "machine in "
        "cluster.hardware: validate, show and plan work without one. On this CPU mode data_parallel trains replicas.",
        tries=itertools.chain(
            ({"cluster.hardware": name} for name in ("atlas_800t_a2", "atlas_900_a3")),
            (
                {"cluster.hardware": name, "cluster.devices_per_node": None}
                for name in ("atlas_800t_a2", "atlas_900_a3")
            ),
            _modes(recipe, grid),
        ),
    )


def operator_modes_need_devices(recipe: Recipe) -> Iterator[Finding]:
    """semi_auto_parallel and auto_parallel need more than one device."""
    grid, mode = derive.mesh(recipe), recipe.parallel.mode
    if grid is not None and grid.size == 1 and mode in OPERATOR_MODES:
        yield Finding(
            key=MODE,
            message=f"One device has nothing to cut in {mode}; it trains in mode stand_alone.",
            tries=_modes(recipe, grid),
        )


def device_number_suits_mindspore(recipe: Recipe) -> Iterator[Finding]:
    """In semi_auto_parallel and auto_parallel the devices are 1, 2, 4 or a multiple of 8."""
    grid = derive.mesh(recipe)
    if grid is None or recipe.parallel.mode not in OPERATOR_MODES or grid.size in (1, 2, 4) or grid.size % _SERVER == 0:
        return
    yield Finding(
        key=_largest_odd_degree(grid),
        message=f"MindSpore's device_num must be 1, 2, 4 or a multiple of 8 in {recipe.parallel.mode}, not {grid.size} "
        f"({arithmetic(grid)}).",
        tries=_regular_meshes(recipe, grid),
    )


def search_needs_power_of_two(recipe: Recipe) -> Iterator[Finding]:
    """recursive_programming needs a power of two of devices."""
    grid, parallel = derive.mesh(recipe), recipe.parallel
    if grid is None or parallel.mode != "auto_parallel" or grid.size & (grid.size - 1) == 0 or grid.size % _SERVER:
        return
    if (parallel.search_mode or DEFAULT_SEARCH_MODE) == "recursive_programming":
        yield Finding(
            key="parallel.search_mode" if parallel.search_mode else MODE,
            message=f"The search recursive_programming needs a power of two of devices, not {grid.size} "
            f"({arithmetic(grid)}).",
            tries=itertools.chain([{"parallel.search_mode": "sharding_propagation"}], _regular_meshes(recipe, grid)),
        )


def _searches(recipe: Recipe, search_mode: str) -> bool:
    """Whether MindSpore searches a training step in this way; no search runs on CPU."""
    machine, parallel = derive.hardware(recipe), recipe.parallel
    if machine is None or machine.target == "CPU" or recipe.train is None or parallel.mode != "auto_parallel":
        return False
    return (parallel.search_mode or DEFAULT_SEARCH_MODE) == search_mode


_OWN_STRATEGIES: tuple[Changes, ...] = (
    {MODE: "semi_auto_parallel"},
    {MODE: "semi_auto_parallel", "parallel.search_mode": None},
)


def search_needs_flash(recipe: Recipe) -> Iterator[Finding]:
    """recursive_programming needs flash attention: beside the plain form it cuts the loss's tensors differently."""
    if not _searches(recipe, "recursive_programming") or derive.attention(recipe) != "plain":
        return
    flash = {"model.attention": "auto"}
    yield Finding(
        key="model.attention",
        message="Beside the plain form of attention recursive_programming cuts the tokens' losses and their weights "
        "differently, and MindSpore refuses the result. Flash attention compiles.",
        tries=[flash, {**flash, "train.dtype": "bfloat16"}, {**flash, "train.dtype": "float16"}, *_OWN_STRATEGIES],
    )


def search_needs_dense_model(recipe: Recipe) -> Iterator[Finding]:
    """recursive_programming needs a model without experts: it has no strategy for how tokens reach them."""
    experts = derive.number(recipe, "num_experts")
    if experts and _searches(recipe, "recursive_programming"):
        yield Finding(
            key="parallel.search_mode" if recipe.parallel.search_mode else MODE,
            message=f"recursive_programming has no strategy for how tokens reach {experts} experts, and MindSpore "
            "stops. semi_auto_parallel takes the blocks' own strategies.",
            tries=_OWN_STRATEGIES,
        )


def propagation_spreads_batch(recipe: Recipe) -> Iterator[Finding]:
    """With sharding_propagation data_parallel is 1 or all devices of a stage: it does not repeat the batch."""
    grid = derive.mesh(recipe)
    if grid is None or not _searches(recipe, "sharding_propagation") or grid.dp in (1, grid.size // grid.pp):
        return
    stage = grid.size // grid.pp
    yield Finding(
        key="parallel.search_mode",
        message=f"sharding_propagation has no strategy for a batch that is cut over data_parallel {grid.dp} of a "
        f"stage's {stage} devices; data_parallel must be 1 or {stage}.",
        tries=[{"parallel.search_mode": "recursive_programming"}, *_OWN_STRATEGIES],
    )


def groups_fit_servers(recipe: Recipe) -> Iterator[Finding]:
    """A communication group has the same 1, 2, 4 or 8 places on every server of 8: MindSpore creates no others."""
    grid = derive.mesh(recipe)
    if grid is None or recipe.parallel.mode not in OPERATOR_MODES or grid.size % _SERVER or grid.size > 4096:
        return
    if all(degree & (degree - 1) == 0 for degree in grid.shape):
        return  # powers of two always fit
    found = infeasible_group(grid)
    if found is None:
        return
    axes, ranks = found
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    keys = [key for key, axis in derive.DEGREES.items() if axis in axes]
    odd = [key for key in keys if (degree := getattr(grid, derive.DEGREES[key])) & (degree - 1)]
    yield Finding(
        key=f"parallel.{(odd or keys)[-1]}",
        message=f"{arithmetic(grid)}: the ranks {shown} would be one group over {' x '.join(keys)}. Of a server's "
        "8 devices MindSpore groups 1, 2, 4 or all, the same on every server.",
        tries=_regular_meshes(recipe, grid),
    )


def search_mode_needs_auto(recipe: Recipe) -> Iterator[Finding]:
    """search_mode belongs to auto_parallel."""
    if recipe.parallel.search_mode is not None and recipe.parallel.mode != "auto_parallel":
        yield without_effect(
            "parallel.search_mode", f"mode {recipe.parallel.mode} does not search", {MODE: "auto_parallel"}
        )


def strategy_files_need_engine(recipe: Recipe) -> Iterator[Finding]:
    """Strategy files belong to semi_auto_parallel and auto_parallel."""
    if recipe.parallel.mode in OPERATOR_MODES:
        return
    files = ("parallel.strategy_load_file", "parallel.strategy_save_file")
    for key in files:
        if recipe.value(key) is not None:
            yield without_effect(
                key,
                f"operators have no strategies in mode {recipe.parallel.mode}",
                dict.fromkeys(files),
                {MODE: "semi_auto_parallel"},
            )


def load_file_needs_propagation(recipe: Recipe) -> Iterator[Finding]:
    """strategy_load_file belongs to sharding_propagation: elsewhere strategies are the blocks' own, or all searched."""
    parallel, key = recipe.parallel, "parallel.strategy_load_file"
    if recipe.value(key) is None or parallel.mode not in OPERATOR_MODES:
        return
    propagation: Changes = {MODE: "auto_parallel", "parallel.search_mode": "sharding_propagation"}
    if parallel.mode == "semi_auto_parallel":
        yield without_effect(key, "in semi_auto_parallel the blocks' own strategies go before a file's", propagation)
    elif (parallel.search_mode or DEFAULT_SEARCH_MODE) == "recursive_programming":
        yield without_effect(key, "recursive_programming finds every strategy by itself", propagation)


def infeasible_group(grid: Mesh) -> tuple[tuple[str, ...], list[int]] | None:
    """First group inside a stage that MindSpore cannot create on Ascend, with its axes."""
    stage = grid.size // grid.pp
    stages = min(grid.pp, math.lcm(stage, _SERVER) // stage)  # later stages lie on servers as these do
    few = Mesh(pp=stages, dp=grid.dp, cp=grid.cp, tp=grid.tp)
    inside = [axis for axis in ("tp", "cp", "dp") if getattr(grid, axis) > 1]
    for count in range(1, len(inside) + 1):
        for axes in itertools.combinations(inside, count):
            for ranks in few.groups(*axes):
                if not feasible_group(ranks):
                    return axes, ranks
    return None


def feasible_group(group: list[int]) -> bool:
    """MindSpore's own test of a group on Ascend (device_manager.cc, CheckDeviceList)."""
    servers: dict[int, list[int]] = {}
    for rank in group:
        servers.setdefault(rank // _SERVER, []).append(rank % _SERVER)
    places = next(iter(servers.values()))
    if any(other != places for other in servers.values()):
        return False
    if len(places) == 2:
        first, second = places
        return second - first == 4 or (first < 4) == (second < 4)
    if len(places) == 4:
        whole_half = places[3] - places[0] == 3 and (places[0] == 0 or places[3] == 7)
        return whole_half or (places[3] % 4 == places[1] % 4 and places[2] % 4 == places[0] % 4)
    return len(places) in (1, 8)


def _modes(recipe: Recipe, grid: Mesh) -> Iterator[Changes]:
    """Other modes that might run the degrees, then degrees that might run in this mode."""
    for mode in ("stand_alone", "data_parallel", "semi_auto_parallel", "auto_parallel"):
        if mode != recipe.parallel.mode:
            yield {MODE: mode}
    whole = {f"parallel.{key}": 1 for key in derive.DEGREES}
    yield from with_batch(recipe, {**whole, MODE: "data_parallel", "parallel.data_parallel": grid.size})
    yield from with_batch(recipe, {**whole, MODE: "data_parallel", "parallel.data_parallel": grid.dp})
    yield from with_batch(recipe, {**whole, MODE: "stand_alone"})
    for name in ("atlas_800t_a2", "atlas_900_a3"):
        yield {MODE: "semi_auto_parallel", "cluster.hardware": name}


def _stated_degree(recipe: Recipe, grid: Mesh) -> str:
    return next(f"parallel.{key}" for key, axis in derive.DEGREES.items() if getattr(grid, axis) > 1)


def _largest_odd_degree(grid: Mesh) -> str:
    odd = [key for key, axis in derive.DEGREES.items() if (degree := getattr(grid, axis)) & (degree - 1)]
    return f"parallel.{odd[0]}"


def _regular_meshes(recipe: Recipe, grid: Mesh) -> Iterator[Changes]:
    """Odd degrees replaced by powers of two, one after the other, nearest first."""
    odd = [key for key, axis in derive.DEGREES.items() if (degree := getattr(grid, axis)) & (degree - 1)]
    choices = [[1 << power for power in nearby_powers(getattr(grid, derive.DEGREES[key]))] for key in odd]
    for degrees in itertools.product(*choices):
        changes = {f"parallel.{key}": degree for key, degree in zip(odd, degrees, strict=True)}
        yield from with_batch(recipe, changes)
    if len(odd) == 1:
        for degree in nearby(getattr(grid, derive.DEGREES[odd[0]]), divisors(4096)):
            yield from with_batch(
                recipe, {f"parallel.{odd[0]}": degree, "cluster.devices_per_node": None, "cluster.nodes": None}
            )


def nearby_powers(degree: int) -> list[int]:
    """Exponents of the powers of two around a number, nearest first.

    >>> nearby_powers(6)
    [3, 2, 1, 0, 4]
    """
    low = degree.bit_length() - 1
    order = [low + 1, low] if degree * degree > (1 << low) * (2 << low) else [low, low + 1]
    return [*order, *(power for power in range(low - 1, -1, -1)), low + 2]


RULES = (
    stand_alone_is_one_device,
    replica_modes_are_data_parallel,
    operator_modes_need_ascend,
    operator_modes_need_devices,
    device_number_suits_mindspore,
    search_needs_power_of_two,
    search_needs_flash,
    search_needs_dense_model,
    propagation_spreads_batch,
    groups_fit_servers,
    search_mode_needs_auto,
    strategy_files_need_engine,
    load_file_needs_propagation,
)
