"""The replay against queueing theory: sample paths exactly, means within a few per cent.

Formulas as in any textbook (Kleinrock, Queueing Systems 1 and 2): Pollaczek-Khinchine for one server, Erlang C for
several, Cobham for priorities without preemption, and preemptive resume. Lindley's recursion, for several servers that
of Kiefer and Wolfowitz, gives every job's wait from the same draws.
"""

from __future__ import annotations

import heapq
import math
import random
from statistics import fmean

import pytest

from msparallel.schedule.queue.job import Cluster, Job
from msparallel.schedule.queue.policies import POLICIES
from msparallel.schedule.queue.replay import Replay, replay

pytestmark = pytest.mark.pure
JOBS = 25_000
"""Of one stream. The mean wait of a pair of them has a standard deviation of some 2 %."""
ONE = Cluster(nodes=1, devices_per_node=1)


def streams(
    seed: int, rate: float, *, count: int = JOBS, fixed: bool = False, urgent: float = 0.0, **rest
) -> list[list[Job]]:
    """Poisson arrivals; durations exponential or 1; a part of the jobs urgent. Two streams of mirrored draws, whose
    common mean is nearer to the expectation than that of twice as many free ones."""
    return [_stream(random.Random(seed), rate, count, mirrored, fixed, urgent, rest) for mirrored in (False, True)]


def _stream(
    draw: random.Random, rate: float, count: int, mirrored: bool, fixed: bool, urgent: float, rest: dict
) -> list[Job]:
    def exponential() -> float:
        part = draw.random()
        return -math.log(max(1e-300, part if mirrored else 1 - part))

    now, jobs = 0.0, []
    for line in range(count):
        now += exponential() / rate
        duration = 1.0 if fixed else max(1e-9, exponential())
        jobs.append(Job(name=str(line), line=line, submit_s=now, nodes=1, devices_per_node=1, duration_s=duration,
                        priority=int(draw.random() < urgent), **rest))  # fmt: skip
    return jobs


def waits(found: Replay) -> list[float]:
    return [end.wait_s for end in found.jobs]


def kiefer_wolfowitz(jobs: list[Job], servers: int) -> list[float]:
    """Waits in order of submission, first come first served."""
    free_at, result = [0.0] * servers, []
    for job in jobs:
        start = max(job.submit_s, heapq.heappop(free_at))
        heapq.heappush(free_at, start + job.duration_s)
        result.append(start - job.submit_s)
    return result


def erlang_c(load: float, servers: int) -> float:
    """Chance to wait."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


def agree(found: list[float], expected: list[float], most: float = 1e-6) -> bool:
    return len(found) == len(expected) and max(abs(a - b) for a, b in zip(found, expected, strict=True)) < most


@pytest.mark.parametrize("fixed", [False, True], ids=["M/M/1", "M/D/1"])
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_device(load, fixed):
    found = []
    for jobs in streams(8, load, fixed=fixed):
        found.append(waits(replay(jobs, ONE, POLICIES["fifo"])))
        assert agree(found[-1], kiefer_wolfowitz(jobs, 1))
    square = 1.0 if fixed else 2.0
    assert fmean(map(fmean, found)) == pytest.approx(load * square / (2 * (1 - load)), rel=0.05)


@pytest.mark.parametrize("nodes", [1, 4])
def test_several_devices_wait_as_erlang_says(nodes):
    """Jobs of one device do not see on which node it is."""
    servers, load = 4, 2.6
    cluster = Cluster(nodes=nodes, devices_per_node=servers // nodes)
    found = []
    for jobs in streams(1, load):
        found.append(waits(replay(jobs, cluster, POLICIES["fifo"])))
        assert agree(found[-1], kiefer_wolfowitz(jobs, servers))
    assert fmean(map(fmean, found)) == pytest.approx(erlang_c(load, servers) / (servers - load), rel=0.05)
    chance = fmean(wait > 1e-9 for stream in found for wait in stream)
    assert chance == pytest.approx(erlang_c(load, servers), rel=0.05)


def test_little():
    """Mean number in line = rate x mean wait: the line is seen by the watch, the wait by the result."""
    jobs = streams(5, 0.6, count=5000)[0]
    area, last = 0.0, (0.0, 0)

    def watch(state, decision):
        nonlocal area, last
        if decision is None:
            area += (state.now - last[0]) * last[1]
            last = (state.now, len(state.firm.waiting))

    found = replay(jobs, ONE, POLICIES["fifo"], watch=watch)
    assert area == pytest.approx(sum(waits(found)), rel=1e-6)


@pytest.mark.parametrize("name", ["fifo", "backfill", "priority", "preempt", "reclaim"])
def test_where_nothing_can_pass_every_policy_is_fifo(name):
    jobs = streams(7, 0.5, count=5000)[0]
    assert agree(waits(replay(jobs, ONE, POLICIES[name])), kiefer_wolfowitz(jobs, 1))


def test_priority_without_preemption_waits_as_cobham_says():
    load, urgent = 0.6, 0.3
    found = [replay(jobs, ONE, POLICIES["priority"]) for jobs in streams(2, load, urgent=urgent)]
    left = load * 2.0 / 2  # of the run that is met: rate x mean square / 2
    high = load * urgent
    for priority, expected in ((1, left / (1 - high)), (0, left / ((1 - high) * (1 - load)))):
        mean = fmean(end.wait_s for part in found for end in part.jobs if end.job.priority == priority)
        assert mean == pytest.approx(expected, rel=0.05), priority


def test_preemption_that_loses_nothing_is_preemptive_resume():
    """With a checkpoint at every moment the urgent jobs see a queue of their own."""
    load, urgent = 0.6, 0.3
    both = streams(4, load, urgent=urgent, checkpoint_interval_s=1e-7)
    found = [replay(jobs, ONE, POLICIES["preempt"]) for jobs in both]
    high = load * urgent
    for priority, expected in ((1, 1 / (1 - high)), (0, 1 / ((1 - high) * (1 - load)))):
        mean = fmean(end.end_s - end.submit_s for part in found for end in part.jobs if end.job.priority == priority)
        assert mean == pytest.approx(expected, rel=0.05), priority
    for jobs, part in zip(both, found, strict=True):
        alone = [job for job in jobs if job.priority]
        assert agree([end.wait_s for end in part.jobs if end.job.priority], kiefer_wolfowitz(alone, 1))
        assert sum(part.lost.values()) < 1e-2


def test_work_lost_at_random_moments_is_half_an_interval():
    """Evictions come at moments that know nothing of checkpoints: the mean loss is half the interval, as in the
    usual account of checkpoint intervals (Young, CACM 17(9), 1974)."""
    draw, interval = random.Random(1), 10.0
    jobs = [Job(name="long", submit_s=0, nodes=1, devices_per_node=1, duration_s=2e6, checkpoint_interval_s=interval,
                restart_s=3.0, line=0)]  # fmt: skip
    now = 0.0
    for line in range(1, 8001):
        now += 100 + draw.expovariate(1 / 50)
        jobs.append(Job(name=str(line), submit_s=now, nodes=1, devices_per_node=1, duration_s=1.0, priority=1,
                        line=line))  # fmt: skip
    found = replay(jobs, ONE, POLICIES["preempt"])
    evictions = found.jobs[0].evictions
    assert evictions == 8000
    assert found.lost["training"] / evictions == pytest.approx(interval / 2, rel=0.05)
    assert found.restart["training"] == pytest.approx(3.0 * evictions)
