"""Rules about where a step goes on all ranks: waiting, bubble, idle devices, data, and sums that contradict each other.

In: a View. Out: Findings. The gain of each is the part of the step itself: what would be saved if all of it went.
"""

from __future__ import annotations

from collections import defaultdict

from msparallel.finding import Evidence
from msparallel.profiling.finding import Finding, percent, time_text
from msparallel.profiling.rank_rules import EMPTY_PCT
from msparallel.profiling.recipe_changes import bubble_candidates, larger_batches, waiting_candidates
from msparallel.profiling.steps import contradictions
from msparallel.profiling.view import View

MUCH_WAITING, MUCH_BUBBLE, MUCH_FREE = 0.10, 0.05, 0.10
"""Of a step: below it there is more to gain elsewhere."""
MUCH_DATA = 0.05
_GET_NEXT = ("GetNext", "DynamicGetNextV2", "DynamicGetNext", "InitDataSetQueue")


def waiting(view: View, explained: float) -> list[Finding]:
    """Computation that stands still for messages.

    Args:
        explained: share of a step that waits for slow ranks and links, which other findings tell.
    """
    share = view.share(view.mean("waits_us")) if view.times else None
    if share is None or share - explained < MUCH_WAITING:
        return []
    axis, told = busiest_axis(view)
    hidden = view.mean("overlapped_us")
    whole = hidden + view.mean("waits_us") + view.mean("bubble_us")
    changes: tuple[str, ...] = ()
    planned = None
    if view.recipes is not None and view.plan is not None and view.estimate is not None:
        changes, planned = view.recipes.best(waiting_candidates(view.plan, axis))
    most = max(view.times, key=lambda time: time.waits_us)
    part = f" {percent(explained)} of the step is waiting for a slow rank or link." if explained > 0 else ""
    return [Finding(
        rule="waits_for_messages", severity="warning", rank=most.rank,
        root_cause=f"Computation waits for messages {percent(share)} of a step; {percent(hidden / whole)} of all "
                   f"communication runs behind computation.{told}{part}",
        remedy=_REMEDIES.get(axis, _REMEDIES[""]), gain=share - explained, evidence=(most.place,),
        changes=changes, planned=planned,
    )]  # fmt: skip


_REMEDIES = {
    "dp": "parallel.overlap_gradients, optimizer_shard level1 instead of level2 or level3, more micro-batches a step.",
    "tp": "A smaller parallel.model_parallel, inside a server only; parallel.sequence_parallel.",
    "cp": "A smaller parallel.context_parallel, or the other context_parallel_algo.",
    "ep": "A smaller parallel.expert_parallel, inside a server where it can be.",
    "": "parallel.overlap_gradients, a smaller model_parallel, more micro-batches a step; communication.json with "
        "--recipe tells which axis it is.",
}  # fmt: skip


def busiest_axis(view: View) -> tuple[str, str]:
    """The axis of the mesh whose collectives take longest, and a sentence; ("", "") where groups are not known."""
    times = axis_times(view)
    if not times:
        return "", ""
    axis = max(times, key=lambda name: times[name][0])
    elapsed, waited = times[axis]
    return axis, (f" Collectives of {axis} take longest: {time_text(elapsed)} a step on each rank, "
                  f"{percent(waited / elapsed) if elapsed else '0%'} of it waiting for others.")  # fmt: skip


def axis_times(view: View) -> dict[str, tuple[float, float]]:
    """Axis of the mesh -> (elapsed, waited) microseconds a step, mean of the ranks; behind computation or not."""
    if view.plan is None or not view.measured.waiting:
        return {}
    mesh, steps = view.plan.mesh, max(1, view.measured.communication_steps)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in view.measured.waiting:
        for group, (elapsed, waited) in one.by_group.items():
            if len(group) < 2 or group[-1] >= mesh.size:
                continue
            places = [mesh.coordinates(rank) for rank in group]
            axis = "+".join(name for name in places[0] if len({place[name] for place in places}) > 1)
            sums[axis][0] += elapsed
            sums[axis][1] += waited
    ranks = len(view.measured.waiting)
    return {axis: (elapsed * 1e3 / steps / ranks, waited * 1e3 / steps / ranks)
            for axis, (elapsed, waited) in sorted(sums.items())}  # fmt: skip


def bubble(view: View) -> list[Finding]:
    """Ranks that stand in the pipeline's bubble."""
    share = view.share(view.mean("bubble_us")) if view.times else None
    if share is None or share < MUCH_BUBBLE:
        return []
    changes: tuple[str, ...] = ()
    planned = None
    told = ""
    if view.recipes is not None and view.plan is not None and view.estimate is not None:
        changes, planned = view.recipes.best(bubble_candidates(view.plan))
        told = f" {view.plan.mesh.pp} stages have {view.plan.micro_batch_num} micro-batches."
    most = max(view.times, key=lambda time: time.bubble_us)
    return [Finding(
        rule="bubble", severity="warning", rank=most.rank,
        root_cause=f"Ranks receive from other stages, and wait for it, {percent(share)} of a step; rank {most.rank} "
                   f"most, {time_text(most.bubble_us)}.{told}",
        remedy="More micro-batches (a smaller train.micro_batch_size), parallel.virtual_stages, fewer pipeline_stages; "
               "stages of equal work (uneven_stages).",
        gain=share, evidence=(most.place,), changes=changes, planned=planned,
    )]  # fmt: skip


def data_pipeline(view: View) -> list[Finding]:
    """All ranks wait for data."""
    share, told, places = _data_share(view)
    starved = [one for one in view.measured.pipelines if one.empty_pct is not None and one.empty_pct > EMPTY_PCT]
    if starved:
        worst = max(starved, key=lambda one: one.empty_pct or 0.0)
        slow = f"; {worst.bottleneck} holds the others up" if worst.bottleneck else ""
        told.append(f"the queue that feeds rank {worst.rank} is empty {worst.empty_pct:.0f}% of the time{slow}")
        places.append(worst.place)
    everywhere = len(starved) > len(view.measured.pipelines) / 2
    if not told or (share is None or share < MUCH_DATA) and not everywhere:
        return []
    if share is None and view.times and everywhere:
        share = view.share(min(view.mean("free_us"), max(view.mean("preparing_us"), 0.0)))
    return [Finding(
        rule="waits_for_data", severity="warning",
        root_cause=f"The devices wait for data: {'; '.join(told)}.",
        remedy="num_parallel_workers and prefetch_size of the dataset, tokens prepared once instead of in every step "
               "(data.cache_dir on a local disk), more processors for each worker.",
        gain=share, evidence=tuple(places[:3]),
    )]  # fmt: skip


def _data_share(view: View) -> tuple[float | None, list[str], list[Evidence]]:
    """Share of a step that ranks wait for data, as files state it directly."""
    measured, share, told, places = view.measured, None, [], []
    waits = [(one.data_us / one.time_us, one) for one in measured.iterations if one.data_us]
    if waits and measured.iterations:
        share = sum(part for part, _ in waits) / len(measured.iterations)
        worst = max(waits, key=lambda pair: pair[0])[1]
        told.append(f"Data Aug Bound is {percent(share)} of an iteration")
        places.append(worst.place)
    rows = [(one, operator) for one in measured.operators for operator in one.operators if operator.type in _GET_NEXT]
    if rows and view.step_us:
        a_step = sum(operator.total_us for _, operator in rows) / len(measured.operators) / view.steps
        part = min(1.0, a_step / view.step_us)
        if part >= MUCH_DATA:
            share = max(share or 0.0, part)
            told.append(f"{rows[0][1].type} takes {time_text(a_step)} a step, {percent(part)}")
            places.append(rows[0][1].longest)
    prepares = view.share(view.mean("preparing_us")) if view.times else None
    if prepares is not None and prepares >= MUCH_DATA and (told or measured.pipelines):
        share = max(share or 0.0, prepares)
        most = max(view.times, key=lambda time: time.preparing_us)
        told.append(f"a step begins with {time_text(view.mean('preparing_us'))} before its first operator, "
                    f"{percent(prepares)}")  # fmt: skip
        places.append(most.place)
    return share, told, places


def free(view: View, explained: float) -> list[Finding]:
    """Devices that nobody gives work to.

    Args:
        explained: share of a step that waits for data, which `data_pipeline` tells.
    """
    share = view.share(view.mean("free_us")) if view.times else None
    if share is None or share - explained < MUCH_FREE:
        return []
    most = max(view.times, key=lambda time: time.free_us)
    places = [most.place]
    told = ""
    gaps = sorted((gap for one in view.measured.operators for gap in one.gaps), key=lambda gap: -gap.gap_us)
    if gaps:
        told = (f" The longest gap, {time_text(gaps[0].gap_us)} on rank {gaps[0].rank}, stands between "
                f"{gaps[0].before[:60]} and {gaps[0].after[:60]}.")  # fmt: skip
        places.append(gaps[0].place)
    changes: tuple[str, ...] = ()
    planned = None
    if view.recipes is not None and view.plan is not None and view.estimate is not None:
        changes, planned = view.recipes.best(larger_batches(view.plan))
    return [Finding(
        rule="devices_are_free", severity="warning", rank=most.rank,
        root_cause=f"Devices neither compute nor communicate {percent(share)} of a step, rank {most.rank} "
                   f"{time_text(most.free_us)}.{told} Preparing, as the profiler calls it, is "
                   f"{time_text(view.mean('preparing_us'))}.",
        remedy="The host launches too slowly or something stops it: graph mode instead of launching operator by "
               "operator, cores bound (msrun --bind_core True), no logging, checkpoint or print of a tensor inside the "
               "step; a larger train.micro_batch_size has fewer and longer launches.",
        gain=share - explained, evidence=tuple(places), changes=changes, planned=planned,
    )]  # fmt: skip


def sums(view: View) -> list[Finding]:
    """Rows whose parts do not add up: then no share of this profile is to be trusted."""
    found = []
    for check in contradictions(view.measured.steps):
        found.append(Finding(
            rule=check.rule, severity="warning",
            root_cause=f"{check.count} of {len(view.measured.steps)} steps do not add up: {check.told}.",
            remedy="The profile was cut, or written by another version: profile again, with whole steps (schedule with "
                   "warm-up), and export once.",
            evidence=(check.place,),
        ))  # fmt: skip
    return found
