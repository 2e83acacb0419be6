"""run_1node.sh and run_multinode.sh share the cores of a processor out among its workers, as `run` and `launch` do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.pure
CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def threads(repo, tmp_path):
    """What a stand-in for msrun finds in OMP_NUM_THREADS."""
    for name, text in (
        ("msrun", '#!/bin/sh\necho "threads ${OMP_NUM_THREADS:-as MindSpore wants}"\n'),
        ("msparallel", f'#!/bin/sh\nexec {sys.executable} -c "from msparallel.cli.main import main; main()" "$@"\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(repo)}
    environment.pop("OMP_NUM_THREADS", None)

    def call(script: str, *words: str, **variables: str) -> str:
        done = subprocess.run(
            ["bash", str(repo / "launch" / script), *words],
            capture_output=True,
            text=True,
            env={**environment, **variables},
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    return call


def test_workers_on_a_processor_share_its_cores(threads):
    assert threads("run_1node.sh", "gpt_tiny_dp2_cpu") == f"threads {max(1, CORES // 2)}"
    words = ["gpt_tiny_dp4_cpu", "cluster.nodes=4", "cluster.devices_per_node=1"]
    assert threads("run_multinode.sh", "3", "192.0.2.1", "8118", *words) == f"threads {CORES}"
    assert threads("run_1node.sh", "gpt_tiny_dp4_cpu", OMP_NUM_THREADS="7") == "threads 7"


def test_workers_on_devices_take_what_msrun_binds_them_to(threads):
    assert (
        threads("run_multinode.sh", "1", "192.0.2.1", "8118", "llama2_13b_dp4_tp4_pp2") == "threads as MindSpore wants"
    )
