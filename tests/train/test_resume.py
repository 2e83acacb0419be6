"""Going on from a checkpoint: every rank reads what it wrote."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from msparallel.errors import UserError
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.train import prepare as preparing
from msparallel.train import resume
from msparallel.train.checkpoint import Checkpoint
from msparallel.train.run import run_recipe, store

pytestmark = pytest.mark.pure


class Stopped(Exception):
    """Ends the run where its data would be opened."""


def test_every_rank_goes_on_from_its_own_slices(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOG_v", "3")  # the run sets both
    monkeypatch.setenv("MS_OM_PATH", str(tmp_path))
    plan = resolve(load_recipe("llama2_7b_dp2_tp2_pp2", [f"train.output_dir={tmp_path}"]))
    barrier = threading.Barrier(plan.world_size)

    def write(rank: int) -> None:
        checkpoints = store(plan, rank=rank, barrier=barrier.wait)
        checkpoints.write(1, {"model": {"w": np.full(2, rank, np.float32)}, "optimizer": {}}, {})

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(plan.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def read(plan, checkpoint):
        found.append(checkpoint.arrays("model")["w"].tolist())
        raise Stopped

    found: list[list[float]] = []
    monkeypatch.setattr(preparing, "prepare", read)
    for rank in range(plan.world_size):
        with pytest.raises(Stopped):
            run_recipe(plan, rank)
    assert found == [[rank, rank] for rank in range(plan.world_size)]


def test_another_loss_scale_than_the_restored_one_is_refused(tmp_path):
    def plan(*overrides):
        return resolve(load_recipe("llama2_7b_dp2_tp2_pp2", ["train.dtype=float16", *overrides]))

    fixed, dynamic = plan("train.loss_scale=1024"), plan()
    assert resume.identity(dynamic) == resume.identity(plan("train.loss_scale=dynamic"))
    parts = {"identity": resume.identity, "cutting": resume.cutting, "free": resume.free_choices}
    state = {name: part(fixed) for name, part in parts.items()}
    checkpoint = Checkpoint(path=tmp_path, step=1, state=state, ranks=8, parameters={}, folder=tmp_path)
    assert resume.check_matches(checkpoint, fixed) == []
    with pytest.raises(UserError, match="train.loss_scale: 1024 in the checkpoint, dynamic now"):
        resume.check_matches(checkpoint, dynamic)
