"""A run's `log.jsonl`, followed while it grows.

In: its path, again and again. Out: Log: what runs, the last losses, evaluations. The file may be cut in the middle of a
line, replaced (a resumed run writes it anew up to its checkpoint), be gone for a while, or hold anything: lines that
are no record are counted and left out. Of a long log only the end is read, at most MOST_BYTES, and its first line.
The format is that of msparallel/train/log.py.

>>> tail = LogTail(Path("output/quickstart/log.jsonl"))
>>> tail.read().train[-1].loss  # doctest: +SKIP
3.624
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from msparallel.monitor.run_files import json_object, number, open_regular, time_of, whole

MOST_BYTES = 8 * 1024 * 1024
"""Read at a time; about 50,000 records."""
MOST_LINE = 1024 * 1024
KEPT_RECORDS = 512
KEPT_EVALUATIONS = 64


@dataclass(frozen=True, kw_only=True)
class TrainRecord:
    """A `train` record; loss None where it was not finite."""

    step: int
    time_s: float
    loss: float | None
    tokens_per_s: float | None
    grad_norm: float | None
    learning_rate: float | None


@dataclass(kw_only=True)
class Log:
    """Attributes:
    start: the last `start` record; empty where there was none.
    evaluations: (step, loss), the last ones.
    ended_step: of the `end` record, None while the run has not ended.
    time_s: of the last record.
    starts: how often the log says that the run was started.
    bad_lines: lines that are no record.
    """

    start: dict[str, Any] = field(default_factory=dict)
    train: deque[TrainRecord] = field(default_factory=lambda: deque(maxlen=KEPT_RECORDS))
    evaluations: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KEPT_EVALUATIONS))
    ended_step: int | None = None
    time_s: float | None = None
    starts: int = 0
    bad_lines: int = 0


class LogTail:
    """The log of one run."""

    def __init__(self, path: Path):
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._log, self._offset, self._inode, self._rest, self._skips = Log(), 0, 0, b"", False

    def read(self) -> Log:
        """All that is known now; what was known before stays where the file is gone."""
        with contextlib.suppress(OSError):  # not there, or a network file system went away: it is read next time
            file = open_regular(self._path)
            if file is not None:
                with file:
                    self._follow(file, os.fstat(file.fileno()))
        return self._log

    def _follow(self, file: BinaryIO, told: os.stat_result) -> None:
        if told.st_ino != self._inode or told.st_size < self._offset:
            self._forget()
            self._inode = told.st_ino
        if told.st_size - self._offset > MOST_BYTES:
            if not self._offset:
                self._take(file.read(MOST_LINE).partition(b"\n")[0])
            self._offset, self._rest, self._skips = told.st_size - MOST_BYTES, b"", True
        file.seek(self._offset)
        data = file.read(MOST_BYTES)
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._skips and lines:  # the rest of a line whose beginning was not read
            del lines[0]
            self._skips = False
        for line in lines:
            if line.strip():
                self._take(line)
        if len(self._rest) > MOST_LINE:
            self._log.bad_lines += not self._skips
            self._rest, self._skips = b"", True

    def _take(self, line: bytes) -> None:
        record = json_object(line) if len(line) <= MOST_LINE else None
        event, time_s = (record or {}).get("event"), time_of((record or {}).get("time"))
        if record is None or not isinstance(event, str) or time_s is None:
            self._log.bad_lines += 1
            return
        log, step = self._log, whole(record.get("step"))
        log.time_s = time_s
        if event == "start":
            log.start, log.ended_step, log.starts = record, None, log.starts + 1
        elif step is None:
            log.bad_lines += 1
        elif event == "train":
            numbers = {key: number(record.get(key)) for key in ("loss", "tokens_per_s", "grad_norm", "learning_rate")}
            log.train.append(TrainRecord(step=step, time_s=time_s, **numbers))
        elif event == "eval":
            if (loss := number(record.get("eval_loss"))) is not None:
                log.evaluations.append((step, loss))
        elif event == "end":
            log.ended_step = step
