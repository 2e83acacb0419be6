"""One long run, twenty kills: any process of it, at any moment after its last checkpoint moved on."""

from __future__ import annotations

import json
import random
import subprocess
import time

import pytest
from inject import QUICK, Run, checkpoints, ends, kill, losses, recipe
from tiny_recipe import arguments, environment, output

from msparallel.train.checkpoint import CheckpointStore

pytestmark = [pytest.mark.msrun, pytest.mark.slow, pytest.mark.timeout(5400)]
KILLS, STEPS, SEED = 20, 4000, 20
VICTIMS = ("rank 0", "rank 1", "scheduler", "msrun", "part", "agent")
KINDS = ("worker_killed", "scheduler_killed", "agent_lost", "worker_failed", "start_failed")


def victim(run: Run, name: str, pids: dict[int, int]) -> int:
    """Pid of a process of the run."""
    if name.startswith("rank"):
        return pids[int(name[-1])]
    if name == "scheduler":
        return run.scheduler()
    words = {"msrun": b"--worker_num", "part": b"launch.agent_part\0", "agent": b"launch.agent\0"}[name]
    done = subprocess.run(["pgrep", "-f", str(run.folder)], capture_output=True, text=True, check=True)
    for pid in map(int, done.stdout.split()):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        if words in line and line.split(b"\0")[0].endswith((b"python", b"python3", b"python3.11", b"python3.12")):
            return pid
    raise AssertionError(f"there is no {name}")


def test_twenty_kills_in_a_row(tmp_path, tmp_path_factory):
    alone = tmp_path_factory.mktemp("alone")
    environ = {**environment(), "OMP_NUM_THREADS": "1"}
    subprocess.run(arguments("run", recipe(alone, STEPS)), env=environ, check=True, capture_output=True)
    draw = random.Random(SEED)
    supervised = Run(tmp_path, recipe(tmp_path, STEPS), *QUICK, "supervise.max_restarts=50", "--json")
    done = []
    for number in range(1, KILLS + 1):
        pids = supervised.training(number, beyond=draw.randrange(11, 30))
        time.sleep(draw.random() * 0.3)
        name = draw.choice(VICTIMS)
        kill(victim(supervised, name, pids))
        done.append(name)
    code, document = supervised.finish()
    told = [(name, one["end"], one["to_step"]) for name, one in zip(done, document["attempts"], strict=False)]
    print(json.dumps(told))
    assert code == 0, supervised.told
    assert len(document["attempts"]) == KILLS + 1 and ends(document)[-1] == "done"
    assert set(ends(document)[:-1]) <= set(KINDS) and set(done) == set(VICTIMS)
    assert document["result"]["losses"] == losses(alone) == losses(tmp_path)
    assert supervised.left() == []
    assert not list((output(tmp_path) / "checkpoints").glob("*.damaged*")), "a kill damages no checkpoint"
    store = CheckpointStore(output(tmp_path) / "checkpoints")
    assert store.set_damaged_aside() == [] and store.newest().step == STEPS and len(checkpoints(tmp_path)) == 2
