"""What ranks wrote into a run's `logs` and `checkpoints`, read while they write.

In: folders that may be half written, full of something else, or gone. Out: RankFile for each rank, the newest
checkpoint. A file that does not hold what it should is left out: it is looked at again a moment later. The formats are
those of msparallel/launch/status.py (`rank_N.json`, `rank_N.beat`) and msparallel/train/checkpoint.py.

>>> read_ranks(Path("output/gpt_tiny_dp2_cpu/logs"))[1].step  # doctest: +SKIP
20
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from msparallel.errors import printable, short
from msparallel.launch.status import PHASES

MOST_RANKS = 16_384
_MOST_BYTES = 64 * 1024
_NAME = re.compile(r"rank_(0|[1-9]\d{0,5})\.(json|beat)")
_STEP = re.compile(r"step_(\d{6,12})")
_STATES = ("running", "done", "failed", "killed")
_LATEST_S = 1e11
"""Unix seconds; the year 5138."""


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """Attributes:
    status: running, done, failed or killed as the rank wrote it; empty where there is no `rank_N.json`.
    status_s: Unix seconds at which that began.
    pid: on the machine of the rank.
    text: why it failed.
    phase, step, beat_s, step_s, loss: of its heartbeat; None where there is none.
    """

    rank: int
    status: str = ""
    status_s: float | None = None
    pid: int | None = None
    text: str = ""
    phase: str | None = None
    step: int | None = None
    beat_s: float | None = None
    step_s: float | None = None
    loss: float | None = None


def number(value: Any, least: float = -math.inf, most: float = math.inf) -> float | None:
    """A finite number in its range, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if least <= value <= most and abs(value) < 1e300 else None


def whole(value: Any, most: int = 10**12) -> int | None:
    """A whole number from 0 to `most`, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def time_of(value: Any) -> float | None:
    """Unix seconds, else None."""
    return number(value, 0.0, _LATEST_S)


def json_object(data: bytes) -> dict[str, Any] | None:
    """The object, None for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def open_regular(path: Path) -> BinaryIO | None:
    """A regular file, opened without a buffer; None for a folder, a pipe and the like. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would wait for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb", buffering=0)


def read_some(path: Path, most: int = _MOST_BYTES) -> bytes | None:
    """The first bytes of a regular file; None where it cannot be read (not there, a pipe, no permission)."""
    try:
        file = open_regular(path)
        if file is None:
            return None
        with file:
            return file.read(most)
    except OSError:
        return None


def read_ranks(logs: Path) -> dict[int, RankFile]:
    """Ranks that have said anything, in order; at most MOST_RANKS."""
    try:
        names = [entry.name for entry in os.scandir(logs)]
    except OSError:
        return {}
    found = sorted({int(match[1]) for name in names if (match := _NAME.fullmatch(name))})[:MOST_RANKS]
    ranks = {}
    for rank in found:
        state = json_object(read_some(logs / f"rank_{rank}.json") or b"") or {}
        beat = json_object(read_some(logs / f"rank_{rank}.beat") or b"") or {}
        if file := _rank(rank, state, beat):
            ranks[rank] = file
    return ranks


def _rank(rank: int, state: Mapping[str, Any], beat: Mapping[str, Any]) -> RankFile | None:
    status = state.get("state")
    status = status if isinstance(status, str) and status in _STATES else ""
    phase, step, beat_s = beat.get("phase"), whole(beat.get("step")), time_of(beat.get("time"))
    told = phase in PHASES and step is not None and beat_s is not None
    if not status and not told:
        return None
    text = state.get("text")
    return RankFile(
        rank=rank,
        status=status,
        status_s=time_of(state.get("time")),
        pid=whole(state.get("pid"), 2**31),
        text=short(printable(text), 2000) if isinstance(text, str) else "",
        phase=phase if told else None,
        step=step if told else None,
        beat_s=beat_s if told else None,
        step_s=number(beat.get("step_s"), 0.0) if told else None,
        loss=number(beat.get("loss")) if told else None,
    )


def newest_checkpoint(folder: Path) -> tuple[int, float] | None:
    """(step, Unix seconds at which it was written) of the newest whole checkpoint."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return None
    for step in sorted((int(match[1]) for name in names if (match := _STEP.fullmatch(name))), reverse=True)[:8]:
        try:
            return step, (folder / f"step_{step:06d}" / "state.json").stat().st_mtime
        except OSError:
            continue
    return None
