"""Faults that are done to a supervised run while it goes on, and what is looked at afterwards. Tests import this.

In: a recipe and what to do to each attempt. Out: the document of `supervise --json`, stderr, and the run's files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiny_recipe import arguments, environment, output, write_recipe

from msparallel.launch.marked import MARK
from msparallel.launch.status import Beat

STEPS = 600
WAIT_S = 240.0
QUICK = ("supervise.restart_delay_s=0.2", "supervise.hang_timeout_s=8.0")


def recipe(folder: Path, steps: int, **changes: Any) -> Path:
    """Two workers on this processor, a checkpoint every 10 steps."""
    changes = {
        "train__micro_batch_size": 1,
        "train__steps": steps,
        "train__eval_interval": steps,
        "train__checkpoint_interval": 10,
        "train__sample_tokens": 0,
        **changes,
    }
    return write_recipe(folder, parallel__mode="data_parallel", parallel__data_parallel=2, **changes)


class Run:
    """`msparallel supervise` in a process of its own."""

    def __init__(
        self,
        folder: Path,
        *words: object,
        env: dict[str, str] | None = None,
        before: Sequence[str] = (),
        **options: Any,
    ):
        self.folder, self.logs = folder, output(folder) / "logs"
        self._err = (folder / "stderr").open("wb")
        self.process = subprocess.Popen(
            [*before, *arguments("supervise", *words)],
            env={**(env or environment()), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=self._err,
            **options,
        )

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Exit code and document."""
        out, _ = self.process.communicate(timeout=WAIT_S)
        self._err.close()
        return self.process.returncode, json.loads(out)

    @property
    def told(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def wait(self, what: str, seen: Callable[[], Any]) -> Any:
        """The first true value of `seen`; fails where the run ends before."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if value := seen():
                return value
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"{what} did not come\n{self.told}")

    def training(self, attempt: int, beyond: int = 12) -> dict[int, int]:
        """Rank -> pid, once both ranks of an attempt have done `beyond` steps more than its checkpoint had."""
        self.wait(f"attempt {attempt}", lambda: f"Attempt {attempt}: " in self.told)
        line = next(line for line in self.told.splitlines() if line.startswith(f"Attempt {attempt}: "))
        start = int(line.split("from step ")[1].split()[0]) if "from step " in line else 0

        def ready() -> dict[int, int] | None:
            pids = self.pids()
            steps = [beat.step for rank in (0, 1) if (beat := self.beat(rank)) and beat.phase != "start"]
            alive = len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids.values())
            return pids if alive and len(steps) == 2 and min(steps) >= start + beyond else None

        return self.wait(f"step {start + beyond} of attempt {attempt}", ready)

    def beat(self, rank: int) -> Beat | None:
        try:
            return Beat(**json.loads((self.logs / f"rank_{rank}.beat").read_bytes()))
        except (OSError, ValueError):
            return None

    def pids(self) -> dict[int, int]:
        found = {}
        for path in self.logs.glob("rank_*.json"):
            try:
                state = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            found[state["rank"]] = state["pid"]
        return found

    def processes(self) -> dict[int, list[str]]:
        """Pid -> words of the environment, of every process that carries the mark of this run."""
        found, wanted = {}, f"{MARK}={output(self.folder)}#"
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(word.startswith(wanted) for word in words):
                found[int(folder.name)] = words
        return found

    def scheduler(self) -> int:
        return next(pid for pid, words in self.processes().items() if "MS_ROLE=MS_SCHED" in words)

    def left(self, seconds: float = 10.0) -> list[str]:
        """Command lines of processes of this run that are still there after a while."""
        deadline = time.monotonic() + seconds
        while (there := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in there]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def losses(folder: Path) -> list[float]:
    """Of every step that the log tells of, in order; each must stand there once."""
    records = [json.loads(line) for line in (output(folder) / "log.jsonl").read_text().splitlines()]
    trained = [(record["step"], record["loss"]) for record in records if record["event"] == "train"]
    assert [step for step, _ in trained] == list(range(1, len(trained) + 1))
    return [loss for _, loss in trained]


def checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((output(folder) / "checkpoints").glob("step_" + "[0-9]" * 6), reverse=True)


def ends(document: dict[str, Any]) -> list[str]:
    return [one["end"] for one in document["attempts"]]


def incident(document: dict[str, Any], attempt: int) -> dict[str, Any]:
    """incident.json of an attempt (from 1)."""
    folder = Path(document["attempts"][attempt - 1]["incident"])
    return json.loads((folder / "incident.json").read_text())


def stand_in(folder: Path, name: str, lines: Sequence[str]) -> dict[str, str]:
    """An environment whose PATH begins with a program that prints these lines."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    there = environment()
    return {**there, "PATH": f"{program.parent}{os.pathsep}{there['PATH']}"}
