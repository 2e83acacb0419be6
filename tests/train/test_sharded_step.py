"""The step that MindSpore's engine cuts, compiled for a simulated Ascend: the global norm counts every value once.

What the engine inserts is read from the compiled graph: below each sum of squares a division by the number of ranks
that hold the same slice, and before the root an AllReduce over the stage and one over the stages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

SMALL = [
    *("model.num_layers=4", "model.hidden_size=64", "model.num_heads=4", "model.num_kv_heads=4", "model.head_dim=16"),
    *("model.ffn_size=128", "model.vocab_size=256", "train.seq_length=32", "train.micro_batch_size=1"),
]


def compiled(repo: Path, work: Path, rank: int, *words: str) -> dict:
    script = repo / "tests" / "train" / "compile_sharded.py"
    environment = {**os.environ, "PYTHONPATH": str(repo), "GLOG_v": "3"}
    done = subprocess.run(
        [sys.executable, str(script), str(rank), str(work), *words, *SMALL],
        capture_output=True,
        text=True,
        env=environment,
        cwd=work,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_norm(report: dict) -> None:
    assert report["norms"] and report["norm_sum_is_reduced"]
    for name, norm in report["norms"].items():
        assert norm["divided_by"] == norm["ranks_with_this_slice"], name
    for name, (shape, bounds, _) in report["slices"].items():
        local = [stop - start for start, stop in bounds]
        assert local == report["norms"][name]["local"] and all(b[1] <= n for b, n in zip(bounds, shape, strict=True))


def test_pipeline_with_optimizer_shard(repo, tmp_path):
    """dp2 x tp2 x pp2, optimizer shard over everything: every slice is held once in its stage."""
    shard = ["parallel.optimizer_shard=true", "parallel.optimizer_shard_threshold_kib=0"]
    words = ["llama2_7b_dp2_tp2_pp2", "train.global_batch_size=8", *shard]
    report = compiled(repo, tmp_path, 5, *words)
    check_norm(report)
    assert report["added_over"] == [2, 4]
    assert {norm["ranks_with_this_slice"] for norm in report["norms"].values()} == {1}
    assert not any("embed_tokens" in name or "layers.0" in name for name in report["norms"])
    shape, bounds, cut_by = report["slices"]["lm_head.weight"]
    assert shape == [256, 64] and bounds[0] == [128, 192] and cut_by[0] == ["tp", "optimizer_shard"]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 7])
@pytest.mark.parametrize(
    ("words", "borders", "micro_batches"),
    [
        (["parallel.virtual_stages=2"], 3, 4),
        (["parallel.virtual_stages=2", "parallel.optimizer_shard=level2", "parallel.recompute=full"], 3, 4),
        (["parallel.virtual_stages=2", "parallel.pipeline_schedule=gpipe"], 3, 4),
        (["parallel.virtual_stages=2"], 3, 3),  # no multiple of the stages
    ],
    ids=["interleaved", "interleaved_shard_recompute", "interleaved_gpipe", "interleaved_odd"],
)
def test_schedules(repo, tmp_path, rank, words, borders, micro_batches):
    """dp2 x tp2 x pp2: over every border goes each micro-batch forward and its gradient back."""
    recipe = ["llama2_7b_dp2_tp2_pp2", f"train.global_batch_size={2 * micro_batches}"]
    report = compiled(repo, tmp_path, rank, *recipe, *words)
    check_norm(report)
    assert Counter(report["transfers"]) == {"Send": borders * micro_batches, "Receive": borders * micro_batches}


def test_accumulation_without_shard(repo, tmp_path):
    """dp4 x tp2: matrices are held by 4 ranks, norms by 8."""
    words = ["llama2_7b_dp2_tp2_pp2", "parallel.data_parallel=4", "parallel.pipeline_stages=1"]
    report = compiled(repo, tmp_path, 3, *words, "train.global_batch_size=8")
    check_norm(report)
    assert report["added_over"] == [8]
    copies = {name.rpartition(".layers.")[2]: n["ranks_with_this_slice"] for name, n in report["norms"].items()}
    assert copies["0.self_attn.q_proj.weight"] == 4 and copies["0.input_layernorm.weight"] == 8
