"""What `supervise` refuses before anything is started."""

from __future__ import annotations

import json

import pytest
from tiny_recipe import run, write_recipe

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "words, told",
    [
        (["llama2_13b_dp4_tp4_pp2"], "name them with --hosts FILE"),
        (["llama2_7b_dp2_tp2_pp2"], "needs 8 x Ascend 910B on this machine"),
        (["qwen3_8b_serve_tp1"], "no `train` section"),
        (["quickstart", "--python", "-c"], "is no program"),
        (["quickstart", "--remote-shell", "-x"], "names no program"),
        (["quickstart", "--remote-shell", "nosuchprogram"], "there is no program nosuchprogram on PATH"),
        (["quickstart", "--workdir", "x"], "give the whole path"),
        (["quickstart", "--workdir", "/"], "train.output_dir=/shared/output"),
        (["quickstart", "supervise.on_node_fault=ignore"], "on_node_fault"),
        (["quickstart", "supervise.hang_timeout_s=0"], "hang_timeout_s"),
    ],
)
def test_refused(tmp_path, words, told):
    done = run("supervise", *words, cwd=tmp_path)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_too_few_hosts(tmp_path):
    path = write_recipe(tmp_path, parallel__mode="data_parallel", parallel__data_parallel=2,
                        train__micro_batch_size=2, cluster__nodes=2, cluster__devices_per_node=1)  # fmt: skip
    (tmp_path / "hosts.txt").write_text("node0 192.0.2.1\n")
    done = run("supervise", path, "--hosts", tmp_path / "hosts.txt", "--json")
    assert done.returncode == 2 and json.loads(done.stdout)["problems"][0]["rule"] == "host_list"
