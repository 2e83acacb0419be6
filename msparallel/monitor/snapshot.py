"""Devices and job at one moment, and what is wrong with them.

In: where devices are told (this machine, hosts, a recording) and a JobWatch. Out: a Snapshot; `to_json` is the document
of `monitor --json`.

>>> Watch(ThisMachine(), JobWatch(Path("output/quickstart"))).at(time.time()).troubles  # doctest: +SKIP
(Trouble(severity='warning', where='rank 3', text='says nothing for 2 min (step 120)'),)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from msparallel.monitor.job import Job, JobWatch, Rank
from msparallel.monitor.machines import Machine
from msparallel.monitor.marks import Key, Limits, Mark, idle_among_working, marks_of
from msparallel.monitor.words import duration


class Devices(Protocol):
    """Who can tell about machines."""

    def machines(self, now_s: float) -> tuple[Machine, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What is wrong, in a line."""

    severity: Literal["error", "warning"]
    where: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Attributes:
    time_s: Unix seconds.
    machines: empty where nobody asks for devices.
    marks: of devices.
    job: None where no run is named.
    rank_of: pid -> rank, of the run's ranks.
    """

    time_s: float
    machines: tuple[Machine, ...]
    marks: tuple[Mark, ...]
    job: Job | None

    @property
    def watched(self) -> bool:
        """Whether there is a device or a run to see."""
        return self.job is not None or any(machine.table for machine in self.machines)

    @property
    def rank_of(self) -> dict[int, int]:
        ranks = self.job.ranks if self.job else ()
        return {rank.file.pid: rank.file.rank for rank in ranks if rank.file.pid}

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """Errors first."""
        found = [Trouble(severity="error" if mark.kind == "health" else "warning", where=self.name_of(mark),
                         text=mark.text) for mark in self.marks]  # fmt: skip
        if self.job:
            found += job_troubles(self.job)
        return tuple(sorted(found, key=lambda trouble: trouble.severity != "error"))

    @property
    def unanswered(self) -> tuple[Trouble, ...]:
        """Hosts that were named and told of no device; a screen says so in their place."""
        return tuple(Trouble(severity="error", where=machine.host, text=machine.error) for machine in self.machines
                     if machine.named and machine.error)  # fmt: skip

    def name_of(self, mark: Mark) -> str:
        """The device that a mark is about; its host too where there are several."""
        table = next(machine.table for machine in self.machines if machine.host == mark.host and machine.table)
        device = next(d for d in table.devices if (d.npu_id, d.chip_id) == (mark.npu_id, mark.chip_id))
        return f"{mark.host} {device.label}" if len(self.machines) > 1 else device.label


class Watch:
    """Snapshots, one after the other; it counts for how many of them a device has idled."""

    def __init__(self, devices: Devices | None, job: JobWatch | None, limits: Limits | None = None):
        self._devices, self._job, self._limits = devices, job, limits or Limits()
        self._idle: dict[Key, int] = {}

    def at(self, now_s: float) -> Snapshot:
        """Ask everybody now."""
        machines = self._devices.machines(now_s) if self._devices else ()
        idle: dict[Key, int] = {}
        marks: list[Mark] = []
        for machine in machines:
            if machine.table:
                for npu, chip in idle_among_working(machine.table):
                    idle[machine.host, npu, chip] = self._idle.get((machine.host, npu, chip), 0) + 1
                marks += marks_of(machine.table, machine.host, self._limits, idle)
        self._idle = idle
        return Snapshot(time_s=now_s, machines=machines, marks=tuple(marks),
                        job=self._job.at(now_s) if self._job else None)  # fmt: skip


def job_troubles(job: Job) -> list[Trouble]:
    """What is wrong with a run."""
    found = [_rank_trouble(rank) for rank in job.ranks if rank.failed or rank.silent]
    if job.state == "silent" and not found:
        text = f"nothing was written for {duration(job.sign_age_s)}: it hangs, or was ended"
        found.append(Trouble(severity="warning", where=job.recipe, text=text))
    if job.slowest is not None:
        steps = {rank.file.rank: rank.file.step for rank in job.ranks if rank.file.step is not None}
        behind = max(steps.values()) - steps[job.slowest]
        if behind > 1:
            found.append(Trouble(severity="warning", where=f"rank {job.slowest}",
                                 text=f"{behind:,} steps behind the first"))  # fmt: skip
    if job.vanished:
        found.append(Trouble(severity="warning", where=job.folder, text="the folder is not there any more"))
    if job.bad_lines:
        lines = f"{job.bad_lines:,} line{'s' * (job.bad_lines > 1)}"
        found.append(Trouble(severity="warning", where="log.jsonl", text=f"{lines} hold no record and were left out"))
    return found


def _rank_trouble(rank: Rank) -> Trouble:
    where, file = f"rank {rank.file.rank}", rank.file
    if rank.failed:
        return Trouble(severity="error", where=where, text=f"{file.status}: {file.text.strip() or 'without a word'}")
    at = f"step {file.step:,}, {file.phase}" if file.step is not None else "before its first word"
    gone = f"; process {file.pid} is not on this machine" if rank.gone else ""
    return Trouble(severity="warning", where=where, text=f"says nothing for {duration(rank.age_s)} ({at}){gone}")


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """The document of `monitor --json`."""
    return {
        "time": snapshot.time_s,
        "hosts": [_machine_json(machine, snapshot) for machine in snapshot.machines],
        "job": _job_json(snapshot.job) if snapshot.job else None,
        "problems": [asdict(trouble) for trouble in (*snapshot.unanswered, *snapshot.troubles)],
    }


def _machine_json(machine: Machine, snapshot: Snapshot) -> dict[str, Any]:
    table, ranks = machine.table, snapshot.rank_of
    devices = []
    for device in table.devices if table else ():
        place = machine.host, device.npu_id, device.chip_id
        devices.append({
            **asdict(device),
            "processes": [{"pid": process.pid, "name": process.name, "memory_mib": process.memory_mib,
                           "rank": ranks.get(process.pid)} for process in table.processes_of(device)],
            "marks": [{"kind": mark.kind, "text": mark.text} for mark in snapshot.marks
                      if (mark.host, mark.npu_id, mark.chip_id) == place],
        })  # fmt: skip
    return {"host": machine.host, "source": machine.source, "time": machine.time_s, "error": machine.error or None,
            "driver": table.version if table else None, "devices": devices}  # fmt: skip


def _job_json(job: Job) -> dict[str, Any]:
    plain = asdict(job)
    plain["losses"] = [{"step": step, "loss": loss} for step, loss in job.losses]
    plain["evaluations"] = [{"step": step, "loss": loss} for step, loss in job.evaluations]
    plain["ranks"] = [{"rank": rank.file.rank, "status": rank.file.status or None, "pid": rank.file.pid,
                       "text": rank.file.text or None, "phase": rank.file.phase, "step": rank.file.step,
                       "heartbeat_age_s": rank.age_s, "step_s": rank.file.step_s, "loss": rank.file.loss,
                       "silent": rank.silent, "gone": rank.gone} for rank in job.ranks]  # fmt: skip
    return {**plain, "live": job.live, "left_s": job.left_s}
