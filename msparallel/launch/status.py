"""What each worker says about itself, in a file that the launcher reads.

In: a worker's changes of state. Out: `rank_N.json` {rank, pid, state, time, text, exit_code} and, read from them, the
first failure; `rank_N.beat`, where the rank is in the run, written over at every step.

>>> WorkerStatus(logs, rank=1).failed("disk full", exit_code=1)
>>> first_failure(read_states(logs, range(2))).rank
1
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from msparallel.launch.marked import runs

PHASES = ("start", "compile", "step", "evaluate", "checkpoint", "end")
"""What a rank is busy with; `compile` is all before its first step is done."""


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """Attributes:
    state: running, done, failed, or killed (it stopped running without a word).
    time: Unix seconds at which the state began.
    text: why it failed, for a person.
    exit_code: of the worker's failure: 2 where input was wrong, otherwise 1.
    """

    rank: int
    pid: int
    state: Literal["running", "done", "failed", "killed"]
    time: float
    text: str = ""
    exit_code: int = 0

    @property
    def failed(self) -> bool:
        return self.state in ("failed", "killed")

    @property
    def done(self) -> bool:
        return self.state == "done"


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STATE_BYTES = 8192
"""Of every state, filled up with blanks."""


class WorkerStatus:
    """The file of this process."""

    def __init__(self, logs: Path, rank: int):
        self._path, self._rank = logs / f"rank_{rank}.json", rank
        self._write("running")

    def done(self) -> None:
        self._write("done")

    def failed(self, text: str, exit_code: int) -> None:
        self._write("failed", text, exit_code)

    def _write(self, state: Literal["running", "done", "failed"], text: str = "", exit_code: int = 0) -> None:
        value = WorkerState(
            rank=self._rank, pid=os.getpid(), state=state, time=time.time(), text=text, exit_code=exit_code
        )
        record = json.dumps(asdict(value)).encode()
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_bytes(record.ljust(_STATE_BYTES))
            partial.replace(self._path)
        except OSError as error:
            if error.errno not in _NO_SPACE or not self._path.exists():
                raise
            # A full disk is a reason to fail that must be told: over the first state, which has the room.
            if len(record) > _STATE_BYTES:
                record = json.dumps(asdict(replace(value, text=text[: _STATE_BYTES // 8]))).encode()
            with self._path.open("r+b") as file:
                file.write(record.ljust(_STATE_BYTES))


@dataclass(frozen=True, kw_only=True)
class Beat:
    """Where a rank is.

    Attributes:
        step: optimizer steps done since the beginning of the run.
        phase: one of PHASES.
        time: Unix seconds at which it got there.
        step_s: seconds that the last step took, None before the first.
        loss: of the last step, None before the first.
    """

    rank: int
    step: int
    phase: str
    time: float
    step_s: float | None = None
    loss: float | None = None


_BEAT_BYTES = 256
_TEAR_S = 0.1


class Heartbeat:
    """The beat of this process: one record of fixed length, written over in place, so that a step costs a system call
    and no metadata; who reads on the same machine sees it at once, also on a network file system."""

    def __init__(self, logs: Path, rank: int):
        self._rank = rank
        self._file = os.open(logs / f"rank_{rank}.beat", os.O_WRONLY | os.O_CREAT, 0o644)
        self(0, "start")

    def __call__(self, step: int, phase: str, step_s: float | None = None, loss: float | None = None) -> None:
        """Say where the rank is. A disk that is full is told by the log and the checkpoint, not by this."""
        beat = Beat(rank=self._rank, step=step, phase=phase, time=time.time(), step_s=step_s, loss=_finite(loss))
        record = json.dumps(asdict(beat)).encode().ljust(_BEAT_BYTES - 1) + b"\n"
        try:
            os.pwrite(self._file, record, 0)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def read_beats(logs: Path, ranks: Iterable[int]) -> list[Beat]:
    """Beats of the ranks that have one. A record that is being written is left out this time."""
    beats = []
    for rank in ranks:
        try:
            data = (logs / f"rank_{rank}.beat").read_bytes()[:_BEAT_BYTES]
            beats.append(Beat(**json.loads(data)))
        except (FileNotFoundError, ValueError, TypeError):
            continue
    return beats


def read_states(logs: Path, ranks: Iterable[int]) -> list[WorkerState]:
    """States of the ranks that have started; one that says `running` and does not run was killed."""
    states = []
    for rank in ranks:
        path = logs / f"rank_{rank}.json"
        if not path.exists():
            continue
        state = _read(path)
        if state.state == "running" and not runs(state.pid):
            # It may have written its last word between the two looks.
            state = _read(path)
            if state.state == "running":
                state = replace(state, state="killed", time=_last_sign(logs, rank))
        states.append(state)
    return states


def _read(path: Path) -> WorkerState:
    """A state; once more where one was being written over another."""
    try:
        return WorkerState(**json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        time.sleep(_TEAR_S)
        return WorkerState(**json.loads(path.read_text(encoding="utf-8")))


def first_failure(states: Iterable[WorkerState]) -> WorkerState | None:
    """The failure that began first. A killed worker counts before the others' complaints that it is gone."""
    failures = [state for state in states if state.failed]
    return min(failures, key=lambda state: (state.state != "killed", state.time), default=None)


def _last_sign(logs: Path, rank: int) -> float:
    log = logs / f"worker_{rank}.log"
    return log.stat().st_mtime if log.exists() else time.time()
