"""Rules about ranks that hold the others up.

In: a View. Out: Findings. A rank with a long step is often a victim: it stands in a collective and waits. The cause is
the rank that comes late, and it is the one that waits *least*. So a rank is slow where it computes (or is free) more
than 5 % longer than the median of its group, and waits less than they do. 5 % is the rule of thumb of msprof-analyze's
cluster guide for a spread in computing time (mstt, msprof_analyze/cluster_analyse).

>>> [(one.rule, one.rank) for one in slow_ranks(view)]  # doctest: +SKIP
[('slow_rank_computes', 11)]
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msparallel.finding import Evidence
from msparallel.profiling.finding import Finding, percent, ranks_text, time_text
from msparallel.profiling.recipe_changes import moved_layer
from msparallel.profiling.slow_operators import slower_operators
from msparallel.profiling.steps import RankTime
from msparallel.profiling.view import View

SPREAD = 0.05
MOST_SHOWN = 5
EMPTY_PCT = 60.0
"""MindSpore's MinddataProfilingAnalyzer warns where the queue before the device is empty more often."""


def slow_ranks(view: View) -> list[Finding]:
    """Ranks that compute longer, or come late, in their group."""
    found: list[Finding] = []
    for group in view.groups.values():
        if len(group) < 2:
            continue
        found += _slow_in(view, group)
    return found


def _slow_in(view: View, group: Sequence[RankTime]) -> list[Finding]:
    computes, free = _middle(group, "computing_us"), _middle(group, "free_us")
    waits = median(time.waits_us + time.bubble_us for time in group)
    step = median(time.step_us for time in group)
    found: list[tuple[float, Finding]] = []
    for time in group:
        more, later = time.computing_us - computes, time.free_us - free
        own = time.waits_us + time.bubble_us
        if more > SPREAD * computes and more >= later:
            excess, made = more, _computes
        elif later > SPREAD * step and later > more:
            excess, made = later, _comes_late
        else:
            continue
        held_up = own <= waits - 0.3 * excess or waits < 0.01 * step
        if held_up:
            found.append((excess, made(view, time, group, excess)))
        elif made is _computes and own > 0.7 * waits:
            found.append((excess, _unpunished(time, group, excess)))
    found.sort(key=lambda pair: -pair[0])
    return [one for _, one in found[:MOST_SHOWN]]


def _middle(group: Sequence[RankTime], name: str) -> float:
    """Of a part over a group; of two ranks the smaller one is the measure."""
    values = [getattr(time, name) for time in group]
    return min(values) if len(values) == 2 else median(values)


def _others(time: RankTime, group: Sequence[RankTime]) -> list[RankTime]:
    return [other for other in group if other.rank != time.rank]


def _waiting_text(view: View, time: RankTime, group: Sequence[RankTime]) -> tuple[str, list[Evidence]]:
    """How long it waits and how long the others do, with evidence."""
    others = _others(time, group)
    own = time.waits_us + time.bubble_us
    theirs = median(other.waits_us + other.bubble_us for other in others)
    text = f"It waits {time_text(own)} a step for messages, the others {time_text(theirs)}."
    most = max(others, key=lambda other: other.waits_us + other.bubble_us)
    places = [time.place, most.place]
    blamed = next((one for one in view.measured.waiting if one.rank == time.rank and one.blamed_ms > 0), None)
    if blamed is not None:
        text += (f" It entered {blamed.last_in:,} of {blamed.collectives:,} collectives last; the others waited "
                 f"{time_text(blamed.blamed_ms * 1e3)} for it.")  # fmt: skip
        places += [blamed.worst] if blamed.worst is not None else []
    return text, places


def _computes(view: View, time: RankTime, group: Sequence[RankTime], excess: float) -> Finding:
    middle = time.computing_us - excess
    ranks = {other.rank for other in _others(time, group)}
    own = next((one for one in view.measured.operators if one.rank == time.rank), None)
    others = [one for one in view.measured.operators if one.rank in ranks]
    why = slower_operators(own, others, steps=view.steps)
    waiting, places = _waiting_text(view, time, group)
    power = [one for one in view.measured.power if one.low]
    hint = " Clocks fall in a power trace of this folder: look at clock_falls first." if power else ""
    return Finding(
        rule="slow_rank_computes", severity="warning", rank=time.rank, ranks=(time.rank,),
        root_cause=f"Rank {time.rank} computes {time_text(time.computing_us)} a step, the median of {_size(group)} is "
                   f"{time_text(middle)}: {percent(excess / middle)} more.{why} {waiting}",
        remedy="Operators all slower alike: the device's clock, temperature or a second process on it (npu-smi info). "
               "A few slower, or more of them: its share of the data, as longer sequences or more tokens for its "
               f"experts. Or take its node out of the job.{hint}",
        gain=view.share(excess), evidence=tuple(places),
    )  # fmt: skip


def _comes_late(view: View, time: RankTime, group: Sequence[RankTime], excess: float) -> Finding:
    waiting, places = _waiting_text(view, time, group)
    prepares = median(other.preparing_us for other in _others(time, group))
    pipeline = next((one for one in view.measured.pipelines if one.rank == time.rank), None)
    starved = pipeline is not None and pipeline.empty_pct is not None and pipeline.empty_pct > EMPTY_PCT
    if starved or time.preparing_us - prepares > 0.5 * excess:
        told = f"its steps begin {time_text(time.preparing_us)} late, those of the others {time_text(prepares)}"
        if starved and pipeline is not None:
            told = f"the queue that feeds its device is empty {pipeline.empty_pct:.0f}% of the time"
            places.append(pipeline.place)
        return Finding(
            rule="slow_rank_waits_for_data", severity="warning", rank=time.rank, ranks=(time.rank,),
            root_cause=f"Rank {time.rank} waits for data: {told}. It is free {time_text(time.free_us)} a step, "
                       f"{time_text(excess)} more than the median of {_size(group)}. {waiting}",
            remedy="Look at its host: the disk that it reads, other jobs on its processors. num_parallel_workers and "
                   "prefetch_size of its dataset; tokens prepared before the run instead of in it.",
            gain=view.share(excess), evidence=tuple(places),
        )  # fmt: skip
    gap = next((gap for one in view.measured.operators if one.rank == time.rank for gap in one.gaps), None)
    stands = ""
    if gap is not None:
        stands = f" Its longest gap, {time_text(gap.gap_us)}, stands between {gap.before[:60]} and {gap.after[:60]}."
        places.append(gap.place)
    return Finding(
        rule="slow_rank_is_free", severity="warning", rank=time.rank, ranks=(time.rank,),
        root_cause=f"Rank {time.rank} neither computes nor communicates for {time_text(time.free_us)} a step, "
                   f"{time_text(excess)} more than the median of {_size(group)}: its host launches late.{stands} "
                   f"{waiting}",
        remedy="Look at its host: processors shared with other work, workers not bound to cores (msrun --bind_core "
               "True), a slow clock of the processor, garbage collection, logging or checkpoints inside the step.",
        gain=view.share(excess), evidence=tuple(places),
    )  # fmt: skip


def _unpunished(time: RankTime, group: Sequence[RankTime], excess: float) -> Finding:
    return Finding(
        rule="rank_computes_more", severity="info", rank=time.rank, ranks=(time.rank,),
        root_cause=f"Rank {time.rank} computes {time_text(excess)} a step more than the median of {_size(group)}, but "
                   "it waits for messages as long as they do: it does not hold them up.",
        remedy="Nothing yet. It holds the others up once they wait less.",
        evidence=(time.place,),
    )  # fmt: skip


def _size(group: Sequence[RankTime]) -> str:
    name = group[0].group
    return f"{len(group)} ranks" if name == "all ranks" else f"{len(group)} ranks of {name}"


def blamed_rank(view: View) -> list[Finding]:
    """The rank that others wait for in collectives, where no step trace tells it."""
    waiting = view.measured.waiting
    whole = sum(one.blamed_ms for one in waiting)
    if view.times or len(waiting) < 2 or whole <= 0:
        return []
    worst = max(waiting, key=lambda one: one.blamed_ms)
    elapsed = sum(one.elapsed_ms for one in waiting) / len(waiting)
    if worst.blamed_ms < 0.5 * whole or worst.blamed_ms < SPREAD * elapsed:
        return []
    steps = max(1, view.measured.communication_steps)
    places = (worst.worst,) if worst.worst is not None else ()
    return [Finding(
        rule="slow_rank_in_collectives", severity="warning", rank=worst.rank, ranks=(worst.rank,),
        root_cause=f"Rank {worst.rank} entered {worst.last_in:,} of {worst.collectives:,} collectives last; the others "
                   f"waited {time_text(worst.blamed_ms * 1e3)} for it, {percent(worst.blamed_ms / whole)} of all "
                   "waiting for a late rank.",
        remedy="Its step trace (step_trace_time.csv) tells whether it computes longer or launches late; profile that "
               "rank and one of the others.",
        gain=view.share(worst.blamed_ms * 1e3 / steps), evidence=places,
    )]  # fmt: skip


def uneven_stages(view: View) -> list[Finding]:
    """Pipeline stages of unequal work."""
    groups = {name: group for name, group in view.groups.items() if name.startswith("stage ")}
    if len(groups) < 2:
        return []
    means = {name: sum(time.computing_us for time in group) / len(group) for name, group in groups.items()}
    slow, fast = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    mean = sum(means.values()) / len(means)
    if means[slow] - means[fast] <= SPREAD * mean:
        return []
    changes, planned = (), None
    if view.recipes is not None and view.plan is not None and view.estimate is not None:
        changes, planned = view.recipes.best(moved_layer(view.plan, _place(slow), _place(fast)))
    group = groups[slow]
    return [Finding(
        rule="uneven_stages", severity="warning", rank=group[0].rank, ranks=tuple(time.rank for time in group),
        root_cause=f"{slow.capitalize()} computes {time_text(means[slow])} a step, {fast} "
                   f"{time_text(means[fast])}: the slowest stage sets the pace, and the others stand in the bubble.",
        remedy="parallel.stage_layers: fewer layers for the slow stage. The first stage has the embedding, the last "
               "one the logits and the loss.",
        gain=view.share(means[slow] - mean), evidence=(group[0].place, groups[fast][0].place),
        changes=changes, planned=planned,
    )]  # fmt: skip


def _place(name: str) -> int:
    digits = name.removeprefix("stage ")
    return int(digits) if digits.isdecimal() else 0


def slow_node(view: View, found: Sequence[Finding]) -> list[Finding]:
    """All slow ranks on one node: the node is slow, not eight devices."""
    ranks = sorted({one.rank for one in found if one.rule.startswith("slow_rank") and one.rank is not None})
    if view.plan is None or len(ranks) < 3:
        return []
    nodes = {rank // view.plan.devices_per_node for rank in ranks}
    if len(nodes) != 1 or len(view.times) <= view.plan.devices_per_node:
        return []
    node = nodes.pop()
    return [Finding(
        rule="slow_node", severity="warning", rank=ranks[0], ranks=tuple(ranks),
        root_cause=f"All slow ranks are on node {node}: {ranks_text(ranks)}.",
        remedy="Look at what its devices share: processors, memory, power supply, cooling, the disk.",
        gain=max((one.gain or 0.0 for one in found), default=0.0), evidence=found[0].evidence[:1],
    )]  # fmt: skip
