"""What a replay comes to, in numbers.

In: a Replay. Out: Measures. The window is from the first submission to the end of the last job; capacity is all devices
over it.

    utilisation            useful device-seconds / capacity. Useful is work that counts: not what an eviction threw
                           away, not restarts. The sum over all jobs is devices x duration_s, under every policy.
    without_inference      the same, of useful work of all classes but inference
    wait                   from submission to the first start (of the first replica); p95 is the smallest wait that 95 %
                           of the jobs do not exceed
    turnaround             from submission to the end
    speed of a queue       mean over its jobs of the shortest possible turnaround / the turnaround: 1 where nobody
                           waits. A job of replicas is fastest with all of them at once.
    fairness               Jain's index of the speeds of queues, (sum x)^2 / (n sum x^2): 1 where all are alike, 1/n
                           where one has everything (Jain, Chiu, Hawe, DEC-TR-301, 1984)

All work is done in the end, so a queue's share of device-hours is the trace's, whatever the policy; fairness is a
matter of when.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from msparallel.schedule.queue.job import KINDS, SPARE_KIND
from msparallel.schedule.queue.replay import JobEnd, Replay

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Seconds from submission."""

    jobs: int
    mean_s: float
    median_s: float
    p95_s: float
    longest_s: float
    turnaround_mean_s: float


@dataclass(frozen=True, kw_only=True)
class QueueMeasures:
    """Attributes:
    speed: mean of shortest turnaround / turnaround.
    device_h: useful.
    """

    jobs: int
    wait_mean_s: float
    speed: float
    device_h: float


@dataclass(frozen=True, kw_only=True)
class Measures:
    """One policy's. Device-hours by class (`useful_h`, `lost_h`, `restart_h`) or by reason (`idle_h`).

    Attributes:
        makespan_s: the window.
        waits: by class, and `all`.
    """

    policy: str
    utilisation: float
    without_inference: float
    makespan_s: float
    capacity_h: float
    evictions: int
    fairness: float
    waits: dict[str, Waits]
    queues: dict[str, QueueMeasures]
    useful_h: dict[str, float]
    lost_h: dict[str, float]
    restart_h: dict[str, float]
    idle_h: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(replay: Replay) -> Measures:
    """Of a replay with at least one job."""
    capacity = replay.cluster.devices * replay.end_s
    useful = sum(replay.useful.values())
    queues = {name: _queue([end for end in replay.jobs if end.job.queue == name])
              for name in sorted({end.job.queue for end in replay.jobs})}  # fmt: skip
    kinds = [kind for kind in KINDS if any(end.job.kind == kind for end in replay.jobs)]
    return Measures(
        policy=replay.policy,
        utilisation=useful / capacity,
        without_inference=(useful - replay.useful[SPARE_KIND]) / capacity,
        makespan_s=replay.end_s,
        capacity_h=capacity / HOUR_S,
        evictions=sum(end.evictions for end in replay.jobs),
        fairness=jain([queue.speed for queue in queues.values()]),
        waits={"all": _waits(replay.jobs), **{kind: _waits(end for end in replay.jobs if end.job.kind == kind)
                                              for kind in kinds}},
        queues=queues,
        useful_h=_hours(replay.useful, kinds), lost_h=_hours(replay.lost, kinds),
        restart_h=_hours(replay.restart, kinds), idle_h=_hours(replay.idle, replay.idle),
    )  # fmt: skip


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index of positive values.

    >>> jain([1, 1]), jain([1, 0])
    (1.0, 0.5)
    """
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that `part` of the ascending values do not exceed.

    >>> quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.95)
    (2, 4)
    """
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _hours(seconds: dict[str, float], names: Iterable[str]) -> dict[str, float]:
    return {name: seconds[name] / HOUR_S for name in names}


def _waits(ends: Iterable[JobEnd]) -> Waits:
    ends = list(ends)
    waits = sorted(end.wait_s for end in ends)
    return Waits(
        jobs=len(ends), mean_s=sum(waits) / len(waits), median_s=quantile(waits, 0.5), p95_s=quantile(waits, 0.95),
        longest_s=waits[-1], turnaround_mean_s=sum(end.end_s - end.submit_s for end in ends) / len(ends),
    )  # fmt: skip


def _queue(ends: list[JobEnd]) -> QueueMeasures:
    speeds = [min(1.0, end.job.duration_s / (end.end_s - end.submit_s)) for end in ends]
    return QueueMeasures(
        jobs=len(ends), wait_mean_s=sum(end.wait_s for end in ends) / len(ends), speed=sum(speeds) / len(speeds),
        device_h=sum(end.job.devices * end.job.duration_s for end in ends) / HOUR_S,
    )  # fmt: skip
