"""A run of two workers under msrun, watched from its first word to its last."""

from __future__ import annotations

import subprocess
import time

import pytest
from tiny_recipe import arguments, environment, output, write_recipe

from msparallel.monitor.job import JobWatch
from msparallel.monitor.snapshot import job_troubles

pytestmark = pytest.mark.msrun


def test_step_loss_and_heartbeats_of_a_run_appear(tmp_path):
    steps = 60
    path = write_recipe(tmp_path, parallel__mode="data_parallel", parallel__data_parallel=2, train__steps=steps,
                        train__micro_batch_size=1, train__log_interval=1, train__checkpoint_interval=20,
                        train__eval_interval=20)  # fmt: skip
    watch = JobWatch(output(tmp_path))
    assert watch.at(time.time()).state == "not started"
    process = subprocess.Popen(arguments("run", path), env=environment(), stderr=subprocess.DEVNULL)
    seen = []
    try:
        while process.poll() is None:
            seen.append(watch.at(time.time()))
            time.sleep(0.1)
    finally:
        process.kill()
    assert process.wait() == 0
    last = watch.at(time.time())
    assert (last.state, last.step, last.steps, last.world_size) == ("done", steps, steps, 2)
    assert len(last.losses) == steps and last.checkpoint_step == steps and [s for s, _ in last.evaluations][-1] == steps
    at_work = [job for job in seen if job.state == "running" and job.losses and len(job.ranks) == 2]
    assert at_work, [job.state for job in seen]
    told = [job.step for job in at_work]
    assert told == sorted(told) and len(set(told)) > 1
    assert all(rank.age_s is not None and rank.age_s < 60 for job in at_work for rank in job.ranks)
    assert any(job.left_s for job in at_work) and any(job.tokens_per_s for job in at_work)
    assert not any(job_troubles(job) for job in seen if job.state != "not started")
