"""Measures of replays -> what the terminal shows.

In: Measures by policy. Out: lines not wider than the terminal; the first says that it is a simulation.

>>> span(45), span(5400), span(100_000), span(1_000_000)
('45 s', '90.0 min', '27.8 h', '11.6 d')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msparallel.cli.columns import fit, table
from msparallel.errors import printable
from msparallel.schedule.queue.job import KINDS
from msparallel.schedule.queue.policies import POLICIES

if TYPE_CHECKING:
    from msparallel.schedule.queue.job import Cluster, Job
    from msparallel.schedule.queue.measure import Measures


def replays_text(
    source: str, cluster: Cluster, jobs: Sequence[Job], found: Sequence[Measures], width: int
) -> str:
    """All of it."""
    counts = Counter(job.kind for job in jobs)
    kinds = ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if counts[kind])
    lines = [*fit(f"Simulation, not a measurement: {source}", width, 4),
             f"{len(jobs):,} job{'s' * (len(jobs) > 1)} ({kinds}) on {cluster} = {cluster.devices}", ""]  # fmt: skip
    rows = [("policy", "utilisation", "without inference", "makespan", "evictions", "fairness")]
    rows += [(m.policy, f"{m.utilisation:.1%}", f"{m.without_inference:.1%}", span(m.makespan_s), f"{m.evictions:,}",
              f"{m.fairness:.3f}") for m in found]  # fmt: skip
    lines += [*table(rows, width, right=range(1, 6)), ""]
    lines += fit("Utilisation: useful device-seconds / all device-seconds from the first submission to the last end. "
                 "Fairness: Jain's index of how fast queues get on, 1 where all are alike.", width, 2)  # fmt: skip
    lines += ["", "Waiting, from submission to start", *table(_waits(found), width, right=range(2, 8)), ""]
    lines += ["Device-hours", *table(_hours(found), width, right=range(1, 8)), ""]
    rows = [("policy", *found[0].idle_h), *(_hours_row(m, m.idle_h.values()) for m in found)]
    lines += ["Of them idle, seen from the first in line", *table(rows, width, right=range(1, 4))]
    if len(found[0].queues) > 1:
        lines += ["", "Queues", *table(_queues(found), width, right=range(2, 6))]
    lines += ["", *(line for m in found for line in fit(f"  {m.policy}: {POLICIES[m.policy].text}", width))]
    return printable("\n".join(lines))


def span(seconds: float) -> str:
    """A duration in one unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 3 * 86_400 else f"{seconds / 86_400:.1f} d"


def _waits(found: Sequence[Measures]) -> list[tuple[str, ...]]:
    rows = [("policy", "class", "jobs", "mean", "median", "p95", "longest", "turnaround, mean")]
    for m in found:
        kinds = list(m.waits)[1:] if len(m.waits) == 2 else list(m.waits)
        for kind in kinds:
            w = m.waits[kind]
            times = (w.mean_s, w.median_s, w.p95_s, w.longest_s, w.turnaround_mean_s)
            rows.append((m.policy if kind == kinds[0] else "", kind, f"{w.jobs:,}", *map(span, times)))
    return rows


def _hours(found: Sequence[Measures]) -> list[tuple[str, ...]]:
    kinds = list(found[0].useful_h)
    rows = [("policy", *kinds, "lost", "restart", "idle")]
    for m in found:
        parts = (*m.useful_h.values(), sum(m.lost_h.values()), sum(m.restart_h.values()), sum(m.idle_h.values()))
        rows.append(_hours_row(m, parts))
    return rows


def _hours_row(m: Measures, parts: Iterable[float]) -> tuple[str, ...]:
    places = 0 if m.capacity_h >= 1000 else 1
    return m.policy, *(f"{hours:,.{places}f}" for hours in parts)


def _queues(found: Sequence[Measures]) -> list[tuple[str, ...]]:
    rows = [("policy", "queue", "jobs", "wait, mean", "speed", "useful device-hours")]
    for m in found:
        for number, (name, queue) in enumerate(m.queues.items()):
            rows.append((m.policy if not number else "", name, f"{queue.jobs:,}", span(queue.wait_mean_s),
                         f"{queue.speed:.2f}", f"{queue.device_h:,.0f}"))  # fmt: skip
    return rows
