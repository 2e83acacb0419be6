"""The agent with a part of one process: it says what happens, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_recipe import environment, output, write_recipe

from msparallel.launch.agent import mark_of
from msparallel.launch.marked import MARK, marked
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.cpu
LONG = {"train__steps": 100_000, "train__eval_interval": 100_000, "train__checkpoint_interval": 100_000}


class Agent:
    def __init__(self, path: Path, *words: object):
        self.path = path
        line = [sys.executable, "-m", "msparallel.launch.agent", path, *words, "--master-port", "8118"]
        self.process = subprocess.Popen(
            [str(word) for word in line], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.events: list[dict[str, Any]] = []

    def read(self, until=lambda event: False) -> dict[str, Any] | None:
        """The first event that is looked for; all are kept. The lease is renewed by each."""
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if until(self.events[-1]):
                return self.events[-1]
            if self.process.poll() is None and not self.process.stdin.closed:
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()
        return None

    def training(self) -> int:
        """Pid of the rank, once it has done steps."""

        def steps(event: dict[str, Any]) -> bool:
            return event["event"] == "ranks" and any((rank["step"] or 0) > 2 for rank in event["ranks"])

        return self.read(steps)["ranks"][0]["pid"]

    def end(self) -> int:
        """Exit code, once all is read."""
        self.read()
        return self.process.wait(timeout=60)

    def of(self, kind: str) -> dict[str, Any]:
        return next(event for event in self.events if event["event"] == kind)

    @property
    def mark(self) -> str:
        return mark_of(resolve(load_recipe(self.path)), 0)

    def left(self) -> list[int]:
        deadline = time.monotonic() + 10
        while (there := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [process.pid for process in there]


def test_a_part_that_comes_to_its_end(tmp_path):
    agent = Agent(write_recipe(tmp_path))
    assert agent.end() == 0, agent.events
    assert [agent.events[0]["event"], agent.events[-1]["event"]] == ["started", "done"]
    assert agent.of("started")["ranks"] == [0] and agent.of("disk")["free_bytes"] > 0
    assert len(agent.of("done")["result"]["losses"]) == 6 and agent.left() == []
    last = [event for event in agent.events if event["event"] == "ranks"][-1]["ranks"][0]
    assert (last["rank"], last["step"], last["phase"]) == (0, 6, "end")
    again = Agent(agent.path)
    assert again.end() == 0 and again.of("done")["result"]["finished_before"] is True


@pytest.mark.parametrize("how", ["stop", "end of input", "SIGTERM", "stopped worker"])
def test_nothing_is_left_when_it_is_told_to_end(tmp_path, how):
    agent = Agent(write_recipe(tmp_path, **LONG))
    pid = agent.training()
    if how == "SIGTERM":
        agent.process.terminate()
    elif how == "end of input":
        agent.process.stdin.close()
    else:
        if how == "stopped worker":
            os.kill(pid, signal.SIGSTOP)
        agent.process.stdin.write(b"stop\n")
        agent.process.stdin.flush()
    assert agent.end() == 1
    assert agent.of("failed")["how"] == "lease" and agent.of("stopped")["left"] == []
    assert agent.left() == [] and not Path(f"/proc/{pid}").exists()


def test_nothing_is_left_when_it_is_killed(tmp_path):
    agent = Agent(write_recipe(tmp_path, **LONG))
    agent.training()
    agent.process.kill()
    agent.process.wait()
    assert agent.left() == []


def test_a_killed_worker_is_told_and_an_orphan_of_an_earlier_attempt_is_ended(tmp_path):
    path = write_recipe(tmp_path, **LONG)
    orphan = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: f"{output(tmp_path)}#0"})
    agent = Agent(path)
    os.kill(agent.training(), signal.SIGKILL)
    assert agent.end() == 1 and orphan.wait(timeout=10) == -signal.SIGTERM
    assert [process["pid"] for process in agent.of("started")["ended"]] == [orphan.pid]
    failed = agent.of("failed")
    assert (failed["how"], failed["rank"]) == ("killed", 0) and "SIGKILL" in failed["text"]
    assert agent.of("stopped")["left"] == [] and agent.left() == []


def test_a_second_agent_of_the_same_part_starts_nothing(tmp_path):
    first = Agent(write_recipe(tmp_path, **LONG))
    first.training()
    second = Agent(first.path)
    assert second.end() == 1
    assert [event["event"] for event in second.events] == ["failed"] and second.of("failed")["how"] == "busy"
    assert "Another process is training here" in second.of("failed")["text"]
    (lock,) = output(tmp_path).parent.glob(".tiny.0.lock")
    lock.unlink()  # as `rm -rf output` under a run does
    third = Agent(first.path)
    assert third.end() == 1 and "Another process is training here (process" in third.of("failed")["text"]
    assert first.process.poll() is None and first.left() != []
    first.process.stdin.close()
    assert first.end() == 1


@pytest.mark.parametrize(
    "words, told",
    [
        (["train.steps=0"], "steps"),
        (["data.corpus=/no/such/file.txt"], "/no/such/file.txt"),
        (["--node-rank", "1"], "has 1 nodes, 0 to 0"),
    ],
)
def test_wrong_input_is_told(tmp_path, words, told):
    agent = Agent(write_recipe(tmp_path), *words)
    assert agent.end() == 2
    assert agent.of("failed")["how"] == "input" and told in agent.of("failed")["text"]
    assert not (output(tmp_path) / "checkpoints").exists()
