"""The fastest strategies that fit, of all that the rules allow on a number of devices.

In: a Workload whose model, sequence and software stay, a hardware profile and a Space. Out: a Search: how many
combinations there are, how many are legal, how many fit; the fastest setting of each of the best meshes; what does not
fit, in families.

It is complete over the space without asking everything of everything:

1. A rule that refuses a mesh refuses all its settings (`rules.refusal`).
2. Memory grows with the size of a micro-batch, all else equal: what a stage keeps of a replica's sequences grows. So
   bisection finds the sizes that fit, begun where a strategy like it ended. Where a step has very few micro-batches
   each size is asked (`_steady`).
3. Recomputing more never makes a step faster: of levels that fit and differ in nothing else, the lowest is timed.
4. The others are timed in the order of a lower bound (`floor_s`). Once the bound of the next is above the last place,
   all that follow are.

>>> found = search(work, load_hardware("atlas_900_a2"), Space(devices=64, devices_per_node=8, global_batch_size=64))
>>> found.legal, str(found.candidates[0].work.mesh)
(15828, 'pp4 x dp2 x tp8 (64)')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from msparallel.hardware import Hardware
from msparallel.mesh import Mesh
from msparallel.planner.estimate import Estimate, estimate, fits, limit_bytes
from msparallel.planner.layer_time import layer_time
from msparallel.planner.memory import StageMemory, fullest_stage
from msparallel.planner.search.rules import Refusal, refusal
from msparallel.planner.search.space import Space, combinations, meshes, strategies, with_batch
from msparallel.planner.step_time import step_time
from msparallel.planner.workload import Workload

Setting = tuple[str, str | int | bool]
"""A key of the recipe's `parallel` section and its value."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a legal strategy needs: the fullest stage of it."""

    work: Workload
    stage: StageMemory


@dataclass(kw_only=True)
class StrategyFamily:
    """Strategies that have something in common.

    Attributes:
        legal, fitting: how many.
        lightest: the one that needs least, of those that were asked; of all, where none fits.
    """

    legal: int = 0
    fitting: int = 0
    lightest: Need | None = None

    def add(self, other: StrategyFamily) -> None:
        """Count the strategies of another one too."""
        self.legal += other.legal
        self.fitting += other.fitting
        if other.lightest is not None:
            self.see(other.lightest)

    def see(self, need: Need) -> None:
        """Keep the lighter one."""
        if self.lightest is None or need.stage.high_bytes < self.lightest.stage.high_bytes:
            self.lightest = need


@dataclass(frozen=True, kw_only=True)
class Search:
    """Attributes:
    combinations: meshes of the devices times the values of every setting, before any rule is asked.
    legal, fitting: how many of them are.
    timed: strategies whose time was worked out; no other can be among the best.
    candidates: fastest first, each the best setting of its mesh.
    families: by (pipeline_stages, model_parallel).
    settings: by one setting.
    refusals: why a rule refuses whole meshes -> how many meshes.
    """

    work: Workload
    hardware: Hardware
    space: Space
    combinations: int
    legal: int
    fitting: int
    timed: int
    candidates: tuple[Estimate, ...]
    families: dict[tuple[int, int], StrategyFamily]
    settings: dict[Setting, StrategyFamily]
    refusals: dict[Refusal, int]


def search(
    work: Workload, hardware: Hardware, space: Space, *, top: int = 5, only: Iterable[Mesh] | None = None
) -> Search:
    """The best of a space.

    Args:
        work: its strategy and batch are replaced.
        top: how many meshes to return.
        only: the meshes to look at; left out: all of the space's devices.
    """
    total, refusals = 0, Counter[Refusal]()
    families: dict[tuple[int, int], StrategyFamily] = {}
    settings: dict[Setting, StrategyFamily] = {}
    works: list[Workload] = []
    for mesh in meshes(space) if only is None else only:
        total += combinations(work, space, mesh)
        refused = refusal(work, space, mesh)
        if refused is not None:
            refusals[refused] += 1
            continue
        family = families.setdefault((mesh.pp, mesh.tp), StrategyFamily())
        guesses = dict.fromkeys(space.recompute, 1)
        for levels in strategies(work, space, mesh):
            less: list[int] = []
            for chosen, sizes in levels:
                guess = max(guesses[chosen.recompute], len(less))
                fitting, found = _fitting(chosen, space, sizes, guess, hardware)
                works += [with_batch(chosen, space, size) for size in fitting if size not in less]
                guesses[chosen.recompute], less = len(fitting), fitting
                family.add(found)
                for key in ("recompute", "optimizer_shard", "sequence_parallel"):
                    settings.setdefault((key, getattr(chosen, key)), StrategyFamily()).add(found)
    candidates, timed = _fastest(works, hardware, top)
    return Search(
        work=work,
        hardware=hardware,
        space=space,
        combinations=total,
        legal=sum(family.legal for family in families.values()),
        fitting=sum(family.fitting for family in families.values()),
        timed=timed,
        candidates=candidates,
        families=families,
        settings=settings,
        refusals=dict(refusals),
    )


def _fitting(
    work: Workload, space: Space, sizes: list[int], guess: int, hardware: Hardware
) -> tuple[list[int], StrategyFamily]:
    """Sizes of the micro-batch with which a strategy fits. `guess`: how many may be expected to."""
    family, limit = StrategyFamily(legal=len(sizes)), limit_bytes(hardware, work.devices_per_node)

    def has_room(size: int) -> bool:
        need = _need(with_batch(work, space, size))
        family.see(need)
        return need.stage.high_bytes <= limit

    steady = _steady(work, space, sizes)
    low, high = 0, len(steady)  # the first `low` fit, those from `high` on do not
    probe, first = max(min(guess, high) - 1, 0), True
    while low < high:
        room = has_room(steady[probe])
        low, high = (probe + 1, high) if room else (low, probe)
        probe, first = (low if room else high - 1) if first else (low + high) // 2, False
    found = steady[:low] + [size for size in sizes[len(steady) :] if has_room(size)]
    family.fitting = len(found)
    return found, family


def _steady(work: Workload, space: Space, sizes: list[int]) -> list[int]:
    """Sizes over which memory grows. Beyond them a step has a single micro-batch, whose gradients are not summed, or so
    few that fewer are under way in interleaved stages than there could be, and fewer casts of weights with them."""
    sequences, stages = space.global_batch_size // work.mesh.dp, work.mesh.pp
    least = 2 * stages if work.virtual_stages > 1 or stages == 1 else stages
    return [size for size in sizes if sequences // size >= least]


def _need(work: Workload) -> Need:
    return Need(work=work, stage=fullest_stage(work))


def _fastest(works: Iterable[Workload], hardware: Hardware, top: int) -> tuple[tuple[Estimate, ...], int]:
    """The best setting of each of the best meshes, and how many were timed."""
    best: dict[tuple[object, ...], tuple[float, Workload]] = {}
    timed, last_place = 0, float("inf")
    for floor, _, work in sorted((floor_s(work, hardware), number, work) for number, work in enumerate(works)):
        if floor > last_place:
            break
        step = step_time(work, hardware).step_s
        timed += 1
        key = (*work.mesh.shape, work.expert_parallel)
        better = step < best.get(key, (float("inf"),))[0]
        if better and fits(work, hardware):
            best[key] = (step, work)
            if len(best) >= top:
                last_place = sorted(step for step, _ in best.values())[top - 1]
    ranked = sorted(best.values(), key=lambda pair: pair[0])[:top]
    return tuple(estimate(work, hardware) for _, work in ranked), timed


def floor_s(work: Workload, hardware: Hardware) -> float:
    """Less than any step of a strategy takes: all layers and their messages, spread evenly over the stages, with the
    bubble of even stages. Embedding, head, messages between stages, gradients and the update come on top."""
    stages, layer = work.mesh.pp, layer_time(work, hardware)
    stage_s = work.shape.num_layers / stages * (layer.forward.seconds + layer.again.seconds + layer.backward.seconds)
    return stage_s * (work.micro_batch_num + (stages - 1) / work.virtual_stages)
