"""Why strategies are not among those that a search found, and what would let them in.

In: a Search. Out: Rejections: settings that a rule refuses, and families of legal strategies of which none fits, each
with the numbers of the lightest one and the cheapest change that makes it fit. The change is looked for: first among
the settings next to it, then with a shorter sequence, then with more devices.

>>> for rejection in rejections(found):
...     print(rejection.what, "-", rejection.reason, "-", rejection.change)
model_parallel 16 - 8 key and value heads cannot be split over 16 devices, at most over 8 - model_parallel 8
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msparallel.hardware import Hardware
from msparallel.planner.estimate import fits, limit_bytes
from msparallel.planner.memory import GIB
from msparallel.planner.search.search import Need, Search, StrategyFamily
from msparallel.planner.workload import Workload
from msparallel.recipe.rules.devices import MAX_DEVICES

SHORTEST = 128
"""Tokens; a shorter sequence is not proposed."""


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Attributes:
    settings: key of the recipe -> value that all of the family have.
    rule: of `recipe/rules/`; "memory" where the rules hold and no device has room.
    count: meshes that a rule refuses, or strategies that do not fit.
    change: the cheapest that lets one in; empty where none was found.
    needs_bytes: of the lightest strategy's fullest stage, at the high end of its band; 0 where a rule refuses.
    """

    settings: dict[str, Any]
    rule: str
    count: int
    reason: str
    change: str
    needs_bytes: int = 0

    @property
    def what(self) -> str:
        """The settings in words."""
        return " ".join(f"{key} {_value(value)}" for key, value in self.settings.items())


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def rejections(found: Search) -> list[Rejection]:
    """Families without room first, the largest before the smaller; then single settings; then what rules refuse."""
    return [*_families(found), *_settings(found), *_refused(found)]


def _families(found: Search) -> Iterator[Rejection]:
    without = {key: family for key, family in found.families.items() if not family.fitting and family.legal}
    for (pp, tp), family in sorted(without.items(), key=lambda pair: -pair[1].legal):
        settings = {"pipeline_stages": pp, "model_parallel": tp}
        yield _without_room(found, settings, family, _neighbour(found, pp, tp))


def _settings(found: Search) -> Iterator[Rejection]:
    if not found.fitting:
        return
    for (key, value), family in found.settings.items():
        others = [other for (name, other), its in found.settings.items() if name == key and its.fitting]
        if not family.fitting and family.legal and others:
            yield _without_room(found, {key: value}, family, f"{key} {_value(others[0])}")


def _without_room(found: Search, settings: dict[str, Any], family: StrategyFamily, neighbour: str) -> Rejection:
    need = family.lightest
    assert need is not None, "a family of legal strategies has a lightest one"
    changes = [neighbour, halved_sequence(need.work, found.hardware), doubled_replicas(need.work, found.hardware)]
    return Rejection(
        settings=settings,
        rule="memory",
        count=family.legal,
        reason=need_text(need, found.hardware),
        change=", or ".join(change for change in changes if change),
        needs_bytes=need.stage.high_bytes,
    )


def need_text(need: Need, hardware: Hardware) -> str:
    """What the lightest of a family needs, and of what."""
    stage, work = need.stage, need.work
    gib = {
        "weights": stage.weights_bytes,
        "gradients": stage.gradients_bytes,
        "optimizer": stage.optimizer_bytes,
        "activations": stage.activations_bytes,
        "other": stage.other_bytes,
    }
    largest = sorted(gib, key=lambda name: -gib[name])[:2]
    told = " and ".join(f"{name} {gib[name] / GIB:.1f}" for name in largest)
    place = f"stage {stage.stage} " if work.mesh.pp > 1 else "a device "
    limit = limit_bytes(hardware, work.devices_per_node)
    return (
        f"{place}needs {stage.high_bytes / GIB:.1f} GiB of {limit / GIB:.4g} even as {work.mesh}, "
        f"recompute {work.recompute}, optimizer shard {work.optimizer_shard}, micro-batch {work.micro_batch_size} "
        f"({told})"
    )


def _neighbour(found: Search, pp: int, tp: int) -> str:
    """The nearest family with room, on the same devices."""
    with_room = [key for key, family in found.families.items() if family.fitting]
    if not with_room:
        return ""
    nearest = min(with_room, key=lambda key: (abs(math.log2(key[0] / pp)) + abs(math.log2(key[1] / tp)), key))
    parts = [(name, there) for name, here, there in
             (("pipeline_stages", pp, nearest[0]), ("model_parallel", tp, nearest[1])) if here != there]  # fmt: skip
    return " with ".join(f"{name} {value}" for name, value in parts)


def halved_sequence(work: Workload, hardware: Hardware) -> str:
    """Half the sequence, or a half of that, with which a strategy has room."""
    length = work.seq_length // 2
    while length >= SHORTEST and length % (work.mesh.cp * work.mesh.tp) == 0:
        if fits(replace(work, seq_length=length), hardware):
            return f"train.seq_length={length}"
        length //= 2
    return ""


def doubled_replicas(work: Workload, hardware: Hardware) -> str:
    """Twice the replicas, or twice that, over which the same strategy shares its state out."""
    for factor in (2, 4, 8, 16, 32):
        mesh = replace(work.mesh, dp=work.mesh.dp * factor)
        if mesh.size > MAX_DEVICES:
            return ""
        shared = work.optimizer_shard if work.optimizer_shard != "none" else "level2"
        per_node = min(hardware.devices_per_node, mesh.size)
        tried = replace(work, mesh=mesh, optimizer_shard=shared, devices_per_node=per_node,
                        micro_batch_num=max(work.micro_batch_num // factor, mesh.pp))  # fmt: skip
        if fits(tried, hardware):
            batch = "" if tried.global_batch_size == work.global_batch_size else (
                f" and a global batch of {tried.global_batch_size}")  # fmt: skip
            return f"{mesh.size} devices (data_parallel {mesh.dp}, optimizer shard {shared}{batch})"
    return ""


def _refused(found: Search) -> Iterator[Rejection]:
    for refused, count in found.refusals.items():
        yield Rejection(
            settings={refused.key: refused.value},
            rule=refused.rule,
            count=count,
            reason=refused.reason,
            change=refused.change,
        )
