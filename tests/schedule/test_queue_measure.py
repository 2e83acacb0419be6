"""Numbers of a replay, the synthetic trace, the picture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from msparallel.errors import RunError, UserError
from msparallel.schedule.queue.draw import binned, draw_replays
from msparallel.schedule.queue.job import Cluster, Job
from msparallel.schedule.queue.measure import jain, measure, quantile
from msparallel.schedule.queue.policies import POLICIES
from msparallel.schedule.queue.replay import replay
from msparallel.schedule.queue.synthetic import SIZES, synthetic_trace

pytestmark = pytest.mark.pure
ONE, EIGHT = Cluster(nodes=1, devices_per_node=8), Cluster(nodes=8, devices_per_node=8)


def job(name: str, submit_s: float, devices: int, duration_s: float, **rest) -> Job:
    return Job(name=name, submit_s=submit_s, nodes=1, devices_per_node=devices, duration_s=duration_s, line=ord(name),
               **rest)  # fmt: skip


def test_every_number_of_a_small_case():
    """a holds all of the node for an hour, then b half of it for an hour; c, inference, the other half."""
    jobs = [job("a", 0, 8, 3600, queue="x"), job("b", 0, 4, 3600, queue="y"),
            job("c", 1800, 4, 1800, queue="y", kind="inference")]  # fmt: skip
    found = measure(replay(jobs, ONE, POLICIES["fifo"]))
    assert found.makespan_s == 7200 and found.capacity_h == 16
    assert found.utilisation == pytest.approx(14 / 16) and found.without_inference == pytest.approx(12 / 16)
    assert found.useful_h == {"training": 12, "inference": 2}
    assert found.idle_h == {"nobody waits": 2, "too few are free": 0, "free but scattered": 0}
    every, training = found.waits["all"], found.waits["training"]
    assert (every.jobs, every.mean_s, every.median_s, every.p95_s) == (3, 1800, 1800, 3600)
    assert (training.jobs, training.mean_s, training.median_s, training.longest_s) == (2, 1800, 0, 3600)
    assert training.turnaround_mean_s == (3600 + 7200) / 2
    assert found.queues["x"].speed == 1 and found.queues["y"].speed == pytest.approx((0.5 + 0.5) / 2)
    assert found.fairness == pytest.approx(1.5**2 / (2 * 1.25))
    assert json.loads(json.dumps(found.to_json()))["queues"]["y"]["device_h"] == 6


def test_useful_work_is_the_traces_under_every_policy():
    jobs = synthetic_trace(3, EIGHT, load=0.7, standby_load=0.4, days=4)
    work = sum(job.devices * job.duration_s for job in jobs) / 3600
    for policy in POLICIES.values():
        found = measure(replay(jobs, EIGHT, policy))
        assert sum(found.useful_h.values()) == pytest.approx(work)
        parts = [found.useful_h, found.lost_h, found.restart_h, found.idle_h]
        assert sum(sum(part.values()) for part in parts) == pytest.approx(found.capacity_h)
        assert 0 < found.without_inference < found.utilisation <= 1


def test_checkpoints_more_often_lose_less():
    """The same jobs with an interval that divides the other one: what one keeps, the other keeps too, at a first
    eviction; over a whole trace evictions differ, so the sums are compared with room."""
    lost = []
    for interval_s in (7200.0, 1800.0, 300.0):
        jobs = [replace(job, checkpoint_interval_s=interval_s) for job in synthetic_trace(2, EIGHT, load=0.8)]
        lost.append(sum(measure(replay(jobs, EIGHT, POLICIES["preempt"])).lost_h.values()))
    assert lost[0] > lost[1] > lost[2] > 0


def test_jain_and_quantiles():
    assert jain([1, 1, 1]) == 1 and jain([1, 0, 0, 0]) == 0.25
    values = list(range(1, 101))
    assert quantile(values, 0.95) == 95 and quantile(values, 0.5) == 50 and quantile([7], 0.95) == 7


@pytest.mark.parametrize("seed", range(4))
def test_the_synthetic_trace_is_what_it_says(seed):
    jobs = synthetic_trace(seed, EIGHT, load=0.5, standby_load=0.25, days=14)
    assert jobs == synthetic_trace(seed, EIGHT, load=0.5, standby_load=0.25, days=14)
    capacity = EIGHT.devices * 14 * 86_400
    work = {kind: sum(job.devices * job.duration_s for job in jobs if job.kind == kind) / capacity
            for kind in ("training", "inference")}  # fmt: skip
    assert 0.5 <= work["training"] < 0.58 and 0.25 <= work["inference"] < 0.29
    training = [job for job in jobs if job.kind == "training"]
    assert {job.devices for job in training} <= set(SIZES) and all(job.gang for job in training)
    assert all(300 <= job.duration_s <= 48 * 3600 <= 2 * 48 * 3600 + job.limit_s for job in training)
    assert all(job.duration_s <= job.limit_s <= 2 * job.duration_s + 1 for job in training)
    working = sum(8 <= job.submit_s % 86_400 / 3600 < 20 for job in training) / len(training)
    assert working > 0.65
    weekend = sum(job.submit_s // 86_400 % 7 >= 5 for job in training) / len(training)
    assert weekend < 0.2
    assert all(not job.gang and job.devices_per_node == 1 for job in jobs if job.kind == "inference")
    assert len({job.name for job in jobs}) == len(jobs)


@pytest.mark.parametrize("cluster", [Cluster(nodes=1, devices_per_node=1), Cluster(nodes=3, devices_per_node=4)])
def test_the_synthetic_trace_fits_any_cluster(cluster):
    jobs = synthetic_trace(1, cluster, days=1)
    for policy in POLICIES.values():
        assert len(replay(jobs, cluster, policy).jobs) == len(jobs)


def test_a_synthetic_trace_without_end_is_refused():
    with pytest.raises(UserError, match="366 days of these loads on 524,288 devices are more than 500,000"):
        synthetic_trace(1, Cluster(nodes=65_536, devices_per_node=8), days=366)


def test_curves_keep_what_they_average():
    jobs = synthetic_trace(1, EIGHT, days=2)
    found = replay(jobs, EIGHT, POLICIES["standby"])
    until = found.end_s * 1.1
    moments, held = binned(found, until, bins=50)
    assert len(moments) == 50 and max(map(sum, zip(*held, strict=True))) <= EIGHT.devices + 1e-9
    seconds = sum(map(sum, held)) * until / 50
    assert seconds == pytest.approx(EIGHT.devices * found.end_s - sum(found.idle.values()))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_picture(tmp_path, count):
    jobs = synthetic_trace(1, EIGHT, days=1)
    replays = [replay(jobs, EIGHT, policy) for policy in list(POLICIES.values())[:count]]
    file = tmp_path / "q.png"
    draw_replays(file, [(found, measure(found)) for found in replays], r"a trace $\frac{$ of 队列 " + "x" * 300)
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RunError, match="cannot be written"):
        draw_replays(tmp_path / "no" / "q.png", [(found, measure(found)) for found in replays], "t")
