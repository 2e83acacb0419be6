"""A made-up trace: training that people submit while they work, and inference that can wait.

In: a seed, offered loads, days. Out: Jobs. Nothing in it was measured; the parameters are plausible for a shared
cluster of one group and stand below, so that whoever has better ones can change them.

- Training: jobs are drawn until their work is `load` of what the cluster can do in these days. Each is a gang; its size
  is drawn from SIZES, its duration is log-normal (median 2 h, sigma 1.2, from 5 min to 48 h). One in five is urgent
  (priority 10). It writes a checkpoint every 30 min and needs 5 min to restart. Its user asks for up to twice the time
  that it takes. Moments of submission follow HOURS on weekdays, a fifth of that at weekends. The trace begins on a
  Monday at midnight.
- Inference: batch jobs of one-device replicas that are no gang; 4 to 32 replicas, log-normal with a median of 1 h. They
  are drawn until their work is `standby_load`. A replica that gives way loses the requests it is at (a checkpoint every
  minute) and needs 3 min to load its model. They come evenly over day and night.

Sizes are cut to the cluster. The same seed gives the same trace.

>>> jobs = synthetic_trace(1, Cluster(nodes=8, devices_per_node=8))
>>> jobs == synthetic_trace(1, Cluster(nodes=8, devices_per_node=8))
True
"""

from __future__ import annotations

import math
import random

from msparallel.errors import UserError
from msparallel.schedule.queue.job import Cluster, Job
from msparallel.schedule.queue.trace import MOST_PIECES

DAYS, LOAD, STANDBY_LOAD = 14, 0.45, 0.35
"""Defaults."""
SIZES = {1: 25, 2: 15, 4: 15, 8: 25, 16: 13, 32: 7}
"""Devices of a training job -> how often, percent."""
HOURS = (1,) * 8 + (4, 8, 10, 10, 6, 8, 10, 10, 10, 8, 6, 4) + (3, 2, 2, 1)
"""How many training jobs come in each hour of a weekday, against each other."""
WEEKEND = 0.2

_DAY_S, _HOUR_S = 86_400, 3_600


def synthetic_trace(
    seed: int, cluster: Cluster, *, load: float = LOAD, standby_load: float = STANDBY_LOAD, days: int = DAYS
) -> list[Job]:
    """Jobs by submission. Loads are parts of the cluster's device-seconds in these days; up to one job more is drawn.

    Raises:
        UserError: that would be more than MOST_PIECES gangs and replicas.
    """
    draw = random.Random(seed)
    capacity = cluster.devices * days * _DAY_S
    jobs: list[Job] = []
    pieces = 0
    for word, part, make in (("train", load, _training), ("infer", standby_load, _inference)):
        work, number = 0.0, 0
        while work < part * capacity:
            number += 1
            jobs.append(make(draw, f"{word}_{number}", cluster, days))
            work += jobs[-1].devices * jobs[-1].duration_s
            pieces += len(jobs[-1].pieces)
            if pieces > MOST_PIECES:
                raise UserError(f"{days} days of these loads on {cluster.devices:,} devices are more than "
                                f"{MOST_PIECES:,} gangs and replicas, the most that is replayed. Ask for fewer days, "
                                "a smaller cluster or less load.")  # fmt: skip
    return sorted(jobs, key=lambda job: (job.submit_s, job.name))


def _training(draw: random.Random, name: str, cluster: Cluster, days: int) -> Job:
    size = draw.choices(list(SIZES), list(SIZES.values()))[0]
    node = cluster.devices_per_node
    nodes, share = (1, size) if size <= node else (min(cluster.nodes, -(-size // node)), node)
    duration_s = _duration_s(draw, 2 * _HOUR_S, 1.2)
    return Job(
        name=name, submit_s=_working_moment(draw, days), nodes=nodes, devices_per_node=share, duration_s=duration_s,
        queue="train", priority=10 if draw.random() < 0.2 else 0, checkpoint_interval_s=1800.0, restart_s=300.0,
        estimate_s=float(math.ceil(duration_s * draw.uniform(1.0, 2.0))),
    )  # fmt: skip


def _inference(draw: random.Random, name: str, cluster: Cluster, days: int) -> Job:
    replicas = min(cluster.devices, draw.choice((4, 8, 16, 32)))
    return Job(
        name=name, submit_s=float(draw.randrange(days * _DAY_S)), nodes=replicas, devices_per_node=1,
        duration_s=_duration_s(draw, _HOUR_S, 0.8), kind="inference", queue="serve", gang=False,
        checkpoint_interval_s=60.0, restart_s=180.0,
    )  # fmt: skip


def _duration_s(draw: random.Random, median_s: float, sigma: float) -> float:
    """Whole seconds, from 5 min to 48 h."""
    return float(round(min(48 * _HOUR_S, max(300, draw.lognormvariate(math.log(median_s), sigma)))))


def _working_moment(draw: random.Random, days: int) -> float:
    weights = [WEEKEND if day % 7 >= 5 else 1.0 for day in range(days)]
    day = draw.choices(range(days), weights)[0]
    hour = draw.choices(range(24), HOURS)[0]
    return float(day * _DAY_S + hour * _HOUR_S + draw.randrange(_HOUR_S))
