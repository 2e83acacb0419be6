"""Steps of each rank as one mean, in groups that do the same work.

In: `StepPart`s, and a mesh where a recipe tells one. Out: `RankTime`s, and what of them does not add up. The first
profiled step is left out where it is half as long again as the others, since it compiles and warms up.

>>> times, notes = rank_times(measured.steps, mesh=None)  # doctest: +SKIP
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from msparallel.finding import Evidence
from msparallel.mesh import Mesh
from msparallel.profiling.finding import percent
from msparallel.profiling.measured import StepPart

WARM_UP = 1.5
"""Times the median of the other steps."""
ALL = "all ranks"


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Mean microseconds of a rank's steps; computing, waits, bubble and free add up to the step.

    Attributes:
        group: ranks of one group do the same work: a pipeline stage, or all.
        place: its longest step.
    """

    rank: int
    steps: int
    group: str
    computing_us: float
    waits_us: float
    bubble_us: float
    free_us: float
    overlapped_us: float
    preparing_us: float
    place: Evidence

    @property
    def step_us(self) -> float:
        return self.computing_us + self.waits_us + self.bubble_us + self.free_us

    def share(self, part_us: float) -> float:
        return part_us / self.step_us


NO_STAGES = "Nothing tells pipeline stages here, so all ranks are compared with each other; --recipe does."


def rank_times(parts: Sequence[StepPart], mesh: Mesh | None) -> tuple[tuple[RankTime, ...], list[str]]:
    """One mean for each rank, by rank; and notes on how they came about."""
    by_rank: dict[int, list[StepPart]] = defaultdict(list)
    for part in parts:
        by_rank[part.rank].append(part)
    warm, found = 0, []
    for rank, own in sorted(by_rank.items()):
        if len(own) > 2 and own[0].step_us > WARM_UP * median(part.step_us for part in own[1:]):
            own, warm = own[1:], warm + 1
        found.append(_mean(rank, own, mesh))
    notes = [f"The first step of {warm} rank{'s' * (warm > 1)} is left out: it took more than {WARM_UP} times the "
             "median of the others."] if warm else []  # fmt: skip
    if len(found) > 1 and len({time.group for time in found}) == 1 and found[0].group == ALL:
        notes.append(NO_STAGES)
    return tuple(found), notes


def _mean(rank: int, parts: Sequence[StepPart], mesh: Mesh | None) -> RankTime:
    count = len(parts)
    group = parts[0].group or ALL
    if mesh is not None and mesh.pp > 1:
        group = f"stage {mesh.coordinates(rank)['pp']}"
    elif mesh is not None:
        group = ALL
    return RankTime(
        rank=rank, steps=count, group=group,
        computing_us=sum(part.computing_us for part in parts) / count,
        waits_us=sum(part.waits_us for part in parts) / count,
        bubble_us=sum(part.bubble_in_step_us for part in parts) / count,
        free_us=sum(part.free_us for part in parts) / count,
        overlapped_us=sum(part.overlapped_us for part in parts) / count,
        preparing_us=sum(part.preparing_us for part in parts) / count,
        place=max(parts, key=lambda part: part.step_us).place,
    )  # fmt: skip


def in_groups(times: Sequence[RankTime]) -> dict[str, list[RankTime]]:
    """Group -> its ranks."""
    found: dict[str, list[RankTime]] = defaultdict(list)
    for time in times:
        found[time.group].append(time)
    return dict(found)


TOLERANCE = 0.01


@dataclass(frozen=True)
class Check:
    """Rows whose parts contradict each other, and the first of them with the numbers."""

    rule: str
    count: int
    told: str
    place: Evidence


def contradictions(parts: Sequence[StepPart]) -> list[Check]:
    """Sums that the profilers themselves promise.

    Computing + communication that is not overlapped + free is the step (both profilers cut it so); torch_npu's Stage +
    Bubble is the same. MindSpore's Stage spans collectives alone, so it may be less, never more. Overlapped and not
    overlapped communication are all of it.
    """
    longer, halves = [], []
    for part in parts:
        stated = None if not part.stage_us else part.stage_us + part.bubble_us
        if stated is not None and stated > part.step_us * (1 + TOLERANCE):
            longer.append((part, f"Computing {part.computing_us:,.0f} + not overlapped {part.exposed_us:,.0f} + Free "
                                 f"{part.free_us:,.0f} = {part.step_us:,.0f} us, but Stage + Bubble is "
                                 f"{stated:,.0f} us, {percent(stated / part.step_us - 1)} more"))  # fmt: skip
        both = part.overlapped_us + part.exposed_us
        if part.communication_us is not None and abs(both - part.communication_us) > TOLERANCE * part.step_us:
            halves.append((part, f"Overlapped {part.overlapped_us:,.0f} + not overlapped {part.exposed_us:,.0f} = "
                                 f"{both:,.0f} us, but Communication is {part.communication_us:,.0f} us"))  # fmt: skip
    return [Check(rule, len(rows), rows[0][1], rows[0][0].place)
            for rule, rows in (("parts_are_not_the_step", longer), ("halves_are_not_the_whole", halves))
            if rows]  # fmt: skip
