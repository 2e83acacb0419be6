"""Faults done for real to a run of two workers: each is told, the run goes on, and the losses are those of a run that
nothing happened to, bit by bit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from inject import QUICK, STEPS, Run, checkpoints, ends, incident, kill, losses, recipe, stand_in
from tiny_recipe import output, run, write_recipe

pytestmark = pytest.mark.msrun


def damage(folder: Path) -> Path:
    """Change one byte in the middle of the newest checkpoint's weights."""
    newest = checkpoints(folder)[0]
    path = newest / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return newest


def steal_port(run: Run, attempt: int) -> socket.socket:
    """Listen on the scheduler's port after the launcher has looked and before the scheduler does."""
    run.wait(f"attempt {attempt}", lambda: f"Attempt {attempt}: " in run.told)
    line = next(line for line in run.told.splitlines() if line.startswith(f"Attempt {attempt}: "))
    port = int(line.rsplit("port ", 1)[1].rstrip("."))
    run.wait("the scheduler", lambda: any("MS_ROLE=MS_SCHED" in words for words in run.processes().values()))
    thief = socket.socket()
    thief.bind(("0.0.0.0", port))
    thief.listen()
    return thief


def test_one_run_survives_a_kill_a_lost_scheduler_a_hang_a_damaged_checkpoint_and_a_stolen_port(tmp_path, undisturbed):
    supervised = Run(tmp_path, recipe(tmp_path, STEPS), *QUICK, "--json")
    kill(supervised.training(1)[1])
    supervised.training(2)
    kill(supervised.scheduler())
    kill(supervised.training(3)[1], signal.SIGSTOP)
    pids = supervised.training(4, beyond=22)
    damaged = damage(tmp_path)
    kill(pids[0])
    with steal_port(supervised, 5):
        supervised.wait("attempt 6", lambda: "Attempt 6: " in supervised.told)
    code, document = supervised.finish()
    assert code == 0, supervised.told
    assert ends(document) == ["worker_killed", "scheduler_killed", "hang", "worker_killed", "port_taken", "done"]
    assert document["gave_up"] is None
    attempts = document["attempts"]
    assert [one["rank"] for one in attempts] == [1, None, 1, 0, None, None]
    assert [one["action"] for one in attempts] == ["retry", "retry", "retry", "retry", "other_port", "done"]
    assert all(before["to_step"] >= after["from_step"] for before, after in zip(attempts, attempts[1:], strict=False))
    assert all(one["to_step"] >= one["from_step"] + 12 for one in attempts[:4])

    # What a damaged checkpoint held is still there, and the run went on from the one before it.
    step = int(damaged.name[5:])
    assert attempts[4]["from_step"] == step - 10
    assert (damaged.parent / f"{damaged.name}.damaged1" / "model.safetensors").is_file()
    assert f"{damaged.name}.damaged1" in supervised.told and "sha256 differs" in supervised.told

    first = incident(document, 1)
    assert first["fault"]["kind"] == "worker_killed" and "SIGKILL" in first["fault"]["text"]
    assert first["diagnosis"]["problem"] == "" and "findings" in first["diagnosis"]
    kept = {path.name for path in (Path(attempts[0]["incident"]) / "logs").iterdir()}
    assert {"worker_0.log", "worker_1.log", "scheduler.log", "msrun_0.log"} <= kept
    assert "state T" in incident(document, 3)["fault"]["text"]

    assert document["result"]["losses"] == undisturbed == losses(tmp_path)
    assert supervised.left() == []


def test_a_full_disk_is_given_up_with_what_to_free(tmp_path, undisturbed):
    disk = tmp_path / "output"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk]
    mounted = subprocess.run(words, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        old = disk / "tiny.old1"
        old.mkdir()
        (old / "model.safetensors").write_bytes(bytes(400 * 1024))
        supervised = Run(tmp_path, recipe(tmp_path, STEPS), *QUICK, "supervise.min_free_disk_gib=0", "--json")
        supervised.training(1)
        filler = disk / "filler"
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
        with suppress(OSError):  # it is full
            while os.write(descriptor, bytes(4096)):
                continue
        os.close(descriptor)
        code, document = supervised.finish()
        assert code == 1
        assert ends(document) == ["disk_full"] and document["result"] is None
        assert "tiny.old1" in document["gave_up"] and "Free some space" in document["gave_up"]
        assert supervised.left() == []
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        again = Run(tmp_path, recipe(tmp_path, STEPS), *QUICK, "supervise.min_free_disk_gib=0", "--json")
        code, document = again.finish()
        assert code == 0, again.told
        assert document["attempts"][0]["from_step"] >= 10
        assert document["result"]["losses"] == undisturbed
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


ILL = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 92.1        {cool:<18}0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3161 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | {health:<14}| 95.0        {hot:<18}0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3161 / 65536         |
+===========================+===============+====================================================+
"""


@pytest.mark.parametrize(
    "health, hot, words, kind, told",
    [
        ("Alarm", 41, [], "device_alarm", "npu-smi info -t health"),
        ("OK", 96, ["supervise.max_temperature_c=90"], "device_hot", "fan and air duct"),
    ],
)
def test_an_ill_device_stops_the_run_and_is_not_retried(tmp_path, health, hot, words, kind, told):
    there = stand_in(tmp_path, "npu-smi", ILL.format(cool=40, health=health, hot=hot).splitlines())
    supervised = Run(tmp_path, recipe(tmp_path, STEPS), *QUICK, *words, "--json", env=there)
    code, document = supervised.finish()
    assert code == 1 and ends(document) == [kind], supervised.told
    assert "NPU 1" in document["attempts"][0]["text"] and told in document["gave_up"]
    assert incident(document, 1)["devices"]["0"][1]["temperature_c"] == hot
    assert supervised.left() == []


def test_a_supervisor_that_is_killed_leaves_nothing_and_goes_on_when_it_is_started_again(tmp_path, undisturbed):
    path = recipe(tmp_path, STEPS)
    supervised = Run(tmp_path, path, *QUICK, "--json")
    supervised.training(1)
    second = run("supervise", path)
    assert second.returncode == 1 and "Another process is supervising here" in second.stderr
    kill(supervised.process.pid)
    supervised.process.wait()
    assert supervised.left(seconds=30) == []
    again = Run(tmp_path, path, *QUICK, "--json")
    code, document = again.finish()
    assert code == 0 and ends(document) == ["done"], again.told
    assert document["attempts"][0]["from_step"] >= 10
    assert document["result"]["losses"] == undisturbed


def test_wrong_input_is_given_up_at_once(tmp_path):
    path = recipe(tmp_path, STEPS, data__corpus=str(tmp_path / "none.txt"))
    began = time.monotonic()
    supervised = Run(tmp_path, path, *QUICK, "--json")
    code, document = supervised.finish()
    assert code == 2 and ends(document) == ["bad_input"], supervised.told
    assert "none.txt" in document["attempts"][0]["text"]
    assert time.monotonic() - began < 60
    assert not (output(tmp_path) / "checkpoints").exists()


def test_a_supervisor_that_is_told_to_end_ends_everything(tmp_path):
    supervised = Run(tmp_path, write_recipe(tmp_path, train__steps=100_000, train__checkpoint_interval=100_000))
    supervised.wait("training", lambda: (beat := supervised.beat(0)) and beat.phase == "step")
    kill(supervised.process.pid, signal.SIGTERM)
    assert supervised.process.wait(timeout=60) == 130
    assert supervised.left(seconds=1) == [] and "Interrupted." in supervised.told
