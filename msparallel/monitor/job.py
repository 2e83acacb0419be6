"""A run as its folder tells it: where it is, how fast, whether anybody still works on it.

In: a run's folder, and perhaps what the recipe says. Out: Job, at a moment. What the folder does not say is None, and
everything that was said has its age.

>>> job = JobWatch(Path("output/quickstart")).at(time.time())
>>> job.state, job.step, job.steps  # doctest: +SKIP
('running', 120, 480)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from msparallel.errors import printable, short
from msparallel.launch.marked import runs
from msparallel.monitor.incidents import Incidents, read_incidents
from msparallel.monitor.log_tail import Log, LogTail, TrainRecord
from msparallel.monitor.run_files import RankFile, newest_checkpoint, read_ranks, whole

SILENT_STEP_S = 60.0
SILENT_STEPS = 10
SILENT_OTHER_S = 1800.0
"""A rank that steps is silent after a minute, or ten times its last step where that is longer. Compilation, evaluation
and checkpoints say nothing in between: half an hour. Choices of ours."""
SPEED_RECORDS = 20

State = Literal["not started", "running", "silent", "failed", "done"]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a recipe says about its run."""

    recipe: str
    mesh: str
    world_size: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank now.

    Attributes:
        age_s: of its heartbeat, or of its state where it has none.
        silent: it says `running` and has said nothing for too long (SILENT_*).
        gone: silent, and this machine has no process of its id; it can be on another machine.
    """

    file: RankFile
    age_s: float | None
    silent: bool
    gone: bool

    @property
    def failed(self) -> bool:
        return self.file.status in ("failed", "killed")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Attributes:
    state: silent is a run that has not ended and of which nothing was heard for too long.
    step: optimizer steps done: of the last rank, or of the log where ranks have no heartbeat.
    losses: (step, loss) of the last records of the log.
    step_s: seconds a step, evaluations and checkpoints counted, over the last records.
    sign_age_s: seconds since anything was written: heartbeat, state or record.
    log_age_s: of the last record of the log.
    slowest: rank with the fewest steps; None where all have done as many.
    spread_s: from the first to the last rank's heartbeat of the same step.
    restarts: starts in the log after the first.
    incidents: attempts that `supervise` saw fail.
    vanished: the folder was there and is not any more; what it said last is still told.
    """

    folder: str
    recipe: str
    mesh: str
    world_size: int | None
    state: State
    step: int | None
    steps: int | None
    losses: tuple[tuple[int, float], ...]
    grad_norm: float | None
    learning_rate: float | None
    tokens_per_s: float | None
    step_s: float | None
    evaluations: tuple[tuple[int, float], ...]
    checkpoint_step: int | None
    checkpoint_age_s: float | None
    sign_age_s: float | None
    log_age_s: float | None
    ranks: tuple[Rank, ...]
    slowest: int | None
    spread_s: float | None
    restarts: int
    incidents: Incidents
    vanished: bool
    bad_lines: int

    @property
    def live(self) -> bool:
        """Whether speed and time left mean anything."""
        return self.state == "running"

    @property
    def left_s(self) -> float | None:
        """Seconds to the last step at the present speed."""
        if not self.live or self.step_s is None or self.step is None or self.steps is None:
            return None
        return max(0, self.steps - self.step) * self.step_s


class JobWatch:
    """The run of one folder, looked at again and again."""

    def __init__(self, folder: Path, expected: Expected | None = None, *, is_here: Callable[[int], bool] = runs):
        self.folder, self._expected, self._is_here = folder, expected, is_here
        self._tail = LogTail(folder / "log.jsonl")

    def at(self, now_s: float) -> Job:
        """The job at `now_s`, Unix seconds."""
        log = self._tail.read()
        ranks = tuple(self._rank(file, now_s) for file in read_ranks(self.folder / "logs").values())
        checkpoint = newest_checkpoint(self.folder / "checkpoints")
        expected = _described(log.start, self._expected)
        signs = [rank.file.beat_s or rank.file.status_s for rank in ranks] + [log.time_s]
        sign_age_s = _age(now_s, max((sign for sign in signs if sign is not None), default=None))
        last = log.train[-1] if log.train else None
        slowest, spread_s = _behind(ranks)
        return Job(
            folder=str(self.folder),
            recipe=expected.recipe or self.folder.name,
            mesh=expected.mesh,
            world_size=expected.world_size or None,
            state=_state(log, ranks, sign_age_s),
            step=_step(log, ranks),
            steps=expected.steps or None,
            losses=tuple((record.step, record.loss) for record in log.train if record.loss is not None),
            grad_norm=last.grad_norm if last else None,
            learning_rate=last.learning_rate if last else None,
            tokens_per_s=last.tokens_per_s if last else None,
            step_s=_step_seconds(log, ranks),
            evaluations=tuple(log.evaluations),
            checkpoint_step=checkpoint[0] if checkpoint else None,
            checkpoint_age_s=_age(now_s, checkpoint[1]) if checkpoint else None,
            sign_age_s=sign_age_s,
            log_age_s=_age(now_s, log.time_s),
            ranks=ranks,
            slowest=slowest,
            spread_s=spread_s,
            restarts=max(0, log.starts - 1),
            incidents=read_incidents(self.folder),
            vanished=bool(log.starts or log.train) and not self.folder.is_dir(),
            bad_lines=log.bad_lines,
        )

    def _rank(self, file: RankFile, now_s: float) -> Rank:
        age_s = _age(now_s, file.beat_s if file.beat_s is not None else file.status_s)
        at_work = file.status in ("running", "") and file.phase != "end"
        silent = at_work and age_s is not None and age_s > _patience_s(file.phase, file.step_s)
        gone = silent and file.pid is not None and not self._is_here(file.pid)
        return Rank(file=file, age_s=age_s, silent=silent, gone=gone)


def _patience_s(phase: str | None, step_s: float | None) -> float:
    return max(SILENT_STEP_S, SILENT_STEPS * (step_s or 0.0)) if phase == "step" else SILENT_OTHER_S


def _age(now_s: float, then_s: float | None) -> float | None:
    """Seconds; none below 0, since clocks of machines differ."""
    return None if then_s is None else max(0.0, now_s - then_s)


def _state(log: Log, ranks: tuple[Rank, ...], sign_age_s: float | None) -> State:
    if any(rank.failed for rank in ranks):
        return "failed"
    at_work = [rank for rank in ranks if rank.file.status != "done"]
    if log.ended_step is not None and not at_work or ranks and not at_work:
        return "done"
    if sign_age_s is None:
        return "not started"
    if at_work:
        return "silent" if any(rank.silent for rank in at_work) else "running"
    # One process without launcher, which has no heartbeat: only its log tells, after every train.log_interval steps.
    step_s = _step_seconds(log, ())
    between = [b.time_s - a.time_s for a, b in zip(log.train, list(log.train)[1:], strict=False)]
    patience_s = max(SILENT_STEP_S, SILENT_STEPS * max([step_s or 0.0, *between[-SPEED_RECORDS:]])) if between else (
        SILENT_OTHER_S
    )  # fmt: skip
    return "silent" if sign_age_s > patience_s else "running"


def _step(log: Log, ranks: tuple[Rank, ...]) -> int | None:
    beats = [rank.file.step for rank in ranks if rank.file.step is not None]
    if beats:
        return min(beats)
    if log.ended_step is not None:
        return log.ended_step
    if log.train:
        return log.train[-1].step
    return 0 if log.starts else None


def _step_seconds(log: Log, ranks: tuple[Rank, ...]) -> float | None:
    recent: list[TrainRecord] = list(log.train)[-SPEED_RECORDS:]
    if len(recent) > 1 and recent[-1].step > recent[0].step and recent[-1].time_s > recent[0].time_s:
        return (recent[-1].time_s - recent[0].time_s) / (recent[-1].step - recent[0].step)
    told = [rank.file.step_s for rank in ranks if rank.file.step_s is not None]
    return statistics.median(told) if told and log.train else None  # before the first record a step compiles


def _behind(ranks: tuple[Rank, ...]) -> tuple[int | None, float | None]:
    beats = [rank.file for rank in ranks if rank.file.step is not None and rank.file.beat_s is not None]
    if len(beats) < 2:
        return None, None
    last = min(beats, key=lambda file: (file.step, -(file.beat_s or 0.0)))
    if last.step != max(file.step or 0 for file in beats):
        return last.rank, None
    times = [file.beat_s or 0.0 for file in beats]
    return None, max(times) - min(times)


def _described(start: Mapping[str, Any], expected: Expected | None) -> Expected:
    """What the log says that it runs, or else the recipe."""
    told = expected or Expected(recipe="", mesh="", world_size=0, steps=0)
    plan, sections = start.get("plan"), start.get("sections")
    train = sections.get("train") if isinstance(sections, dict) else None
    if isinstance(name := start.get("recipe"), str) and name:
        told = replace(told, recipe=short(printable(name), 80))
    if isinstance(plan, dict) and isinstance(mesh := plan.get("mesh"), str):
        told = replace(told, mesh=short(printable(mesh), 80))
    if isinstance(plan, dict) and (size := whole(plan.get("world_size"), 10**7)):
        told = replace(told, world_size=size)
    if isinstance(train, dict) and (steps := whole(train.get("steps"))):
        told = replace(told, steps=steps)
    return told
