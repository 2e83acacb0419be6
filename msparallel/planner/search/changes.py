"""The smallest change after which something fits, found by looking for it.

In: a recipe's strategy that has no room, or a space in which nothing has. Out: Changes, each with the strategy that has
room then: other settings on the same mesh; more devices, a shorter sequence, another batch.

>>> [change.told for change in smallest_changes(work, load_hardware("atlas_900_a2"), space)]
['--devices 24', 'train.seq_length=512']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from msparallel.hardware import Hardware
from msparallel.mesh import Mesh
from msparallel.plan import Plan
from msparallel.planner.estimate import Estimate, estimate, fits
from msparallel.planner.search.overrides import overrides_of
from msparallel.planner.search.rejected import SHORTEST
from msparallel.planner.search.rules import engine_cuts, refusal
from msparallel.planner.search.space import Space, meshes, strategies, with_batch
from msparallel.planner.step_time import step_time
from msparallel.planner.workload import Workload
from msparallel.recipe.rules.devices import MAX_DEVICES
from msparallel.recipe.rules.finding import divisors


@dataclass(frozen=True, kw_only=True)
class Change:
    """Attributes:
    told: what to type.
    work: a strategy that fits then.
    """

    told: str
    work: Workload


def other_settings(plan: Plan, work: Workload, space: Space) -> tuple[dict[str, Any], Estimate] | None:
    """The fewest keys of a recipe that make it fit on its own mesh, the fastest of as many; None where none do."""
    tried: dict[int, list[tuple[dict[str, Any], Workload]]] = {}
    for levels in strategies(work, space, work.mesh):
        for chosen, sizes in levels:
            if chosen.expert_parallel != work.expert_parallel:
                continue
            for size in sizes:
                other = with_batch(chosen, space, size)
                changes = overrides_of(plan, other)
                tried.setdefault(len(changes), []).append((changes, other))
    for count in sorted(tried):
        roomy = [pair for pair in tried[count] if fits(pair[1], plan.hardware)]
        if roomy:
            changes, best = min(roomy, key=lambda pair: step_time(pair[1], plan.hardware).step_s)
            return changes, estimate(best, plan.hardware)
    return None


def smallest_changes(work: Workload, hardware: Hardware, space: Space) -> list[Change]:
    """One change of each kind, where one of that kind is enough: batch, devices, sequence."""
    found = [other_batch(work, hardware, space), more_devices(work, hardware, space),
             shorter_sequence(work, hardware, space)]  # fmt: skip
    return [change for change in found if change is not None]


def first_fit(work: Workload, hardware: Hardware, space: Space, only: Iterable[Mesh] | None = None) -> Workload | None:
    """Any strategy that fits: of each legal mesh the settings that take least memory are asked."""
    for mesh in meshes(space) if only is None else only:
        if refusal(work, space, mesh) is not None:
            continue
        lightest = _lightest(work, space, mesh)
        for other in lightest:
            if fits(other, hardware):
                return other
    return None


def _lightest(work: Workload, space: Space, mesh: Mesh) -> Iterator[Workload]:
    """Everything recomputed, the smallest micro-batch, no interleaving, the strongest shard."""
    frugal = replace(space, recompute=space.recompute[-1:], most_virtual_stages=1)
    lists = [(chosen, sizes[0]) for levels in strategies(work, frugal, mesh) for chosen, sizes in levels]
    strongest = {chosen.optimizer_shard for chosen, _ in lists}
    level = max(strongest, default="none", key=("none", "level1", "level2", "level3").index)
    for chosen, size in lists:
        if chosen.optimizer_shard == level:
            yield with_batch(chosen, space, size)


def other_batch(work: Workload, hardware: Hardware, space: Space) -> Change | None:
    """The nearest global batch that lets a mesh in which the batch alone keeps out."""
    batches: dict[int, list[Mesh]] = {}
    for mesh in meshes(space):
        refused = refusal(work, space, mesh)
        if refused is None or refused.rule not in ("batch_comes_out", "micro_batches_fill_pipeline"):
            continue
        least = mesh.dp * (mesh.pp if mesh.pp > 1 else 1)
        for total in {mesh.dp * (space.global_batch_size // mesh.dp + more) for more in (0, 1)} | {least}:
            if total >= least:
                batches.setdefault(total, []).append(mesh)
    size = space.global_batch_size
    for total in sorted(batches, key=lambda total: (abs(math.log(total / size)), -total)):
        found = first_fit(work, hardware, replace(space, global_batch_size=total), batches[total])
        if found is not None:
            return Change(told=f"--global-batch {total}", work=found)
    return None


def more_devices(work: Workload, hardware: Hardware, space: Space) -> Change | None:
    """The fewest devices on which something fits: whole nodes, or parts of one."""
    full = hardware.devices_per_node
    parts = [n for n in divisors(full) if n > space.devices]
    nodes = range(full * (space.devices // full + 1), MAX_DEVICES + 1, full)
    counts = sorted({*parts, *nodes})
    if not counts:
        return None
    low, high, found = 0, None, None
    for place in (2**power for power in range(len(counts).bit_length() + 1)):
        place = min(place, len(counts)) - 1
        found = first_fit(work, hardware, _with_devices(space, hardware, counts[place]))
        if found is not None:
            high = place
            break
        low = place + 1
        if place == len(counts) - 1:
            return None
    if high is None:
        return None
    for count in counts[low:high]:  # divisibility makes fewer devices fit where a few more do not
        fewer = first_fit(work, hardware, _with_devices(space, hardware, count))
        if fewer is not None:
            return Change(told=f"--devices {count}", work=fewer)
    assert found is not None
    return Change(told=f"--devices {counts[high]}", work=found)


def _with_devices(space: Space, hardware: Hardware, devices: int) -> Space:
    per_node = min(devices, hardware.devices_per_node)
    return replace(space, devices=devices, devices_per_node=per_node, engine=engine_cuts(hardware, devices))


def shorter_sequence(work: Workload, hardware: Hardware, space: Space) -> Change | None:
    """The longest sequence with which something fits, in steps of a sixteenth."""
    step = max(SHORTEST, work.seq_length // 16)
    for length in range(work.seq_length - step, 0, -step):
        found = first_fit(replace(work, seq_length=length), hardware, space)
        if found is not None:
            return Change(told=f"train.seq_length={length}", work=found)
    return None
