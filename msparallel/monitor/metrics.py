"""A Snapshot as Prometheus reads it.

In: a function that makes a Snapshot. Out: metric families, made at every scrape; text for node_exporter's textfile
collector. Names carry their unit in the plural and base units, as Prometheus' naming page asks (seconds, bytes, ratio).
What is old is not told as if it were new: speed and time left are absent unless the run is at work, a device that
npu-smi no longer tells of is absent, and ages (heartbeat, log, checkpoint, sample) tell the rest.

>>> registry = registry_of(lambda: watch.at(time.time()))  # doctest: +SKIP
>>> write_textfile(Path("msparallel.prom"), registry)  # doctest: +SKIP
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import write_to_textfile
from prometheus_client.metrics_core import Metric

from msparallel.devices.npu_smi import Device
from msparallel.errors import RunError, UserError, printable, short
from msparallel.monitor.job import Job
from msparallel.monitor.machines import Machine
from msparallel.monitor.snapshot import Snapshot

STATES = ("not started", "running", "silent", "failed", "done")
MIB = 1024 * 1024
AT_MOST_EVERY_S = 1.0
"""Scrapes closer together get the same snapshot: each one asks npu-smi."""

_Series = tuple[list[str], float | int | None]


class SnapshotCollector:
    """Makes a snapshot when Prometheus asks. Scrapes that come at once wait for each other."""

    def __init__(self, take: Callable[[], Snapshot]):
        self._take, self._lock = take, threading.Lock()
        self._last: tuple[float, Snapshot] | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing: to register must not ask npu-smi."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families of one moment."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > AT_MOST_EVERY_S:
                snapshot = self._take()
                self._last = time.monotonic(), snapshot
            snapshot = self._last[1]
        yield from families(snapshot)


def registry_of(take: Callable[[], Snapshot]) -> CollectorRegistry:
    """With these metrics alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(take))  # type: ignore[arg-type]
    return registry


def write_textfile(path: Path, registry: CollectorRegistry) -> None:
    """Written beside and renamed, so that node_exporter never reads half of it.

    Raises:
        UserError: its folder is not there.
        RunError: it cannot be written.
    """
    if not path.parent.is_dir():
        raise UserError(f"{path}\n  The metrics cannot be written: there is no folder {path.parent}.")
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise RunError(f"{path}\n  The metrics cannot be written: {error.strerror}.") from None


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Metric families with at least one value."""
    for name, help_text, labels, series in (*_devices(snapshot), *(_job(snapshot.job) if snapshot.job else ())):
        family = GaugeMetricFamily(f"msparallel_{name}", help_text, labels=labels)
        for values, number in series:
            if number is not None:
                family.add_metric([short(printable(value), 120) for value in values], number)
        if family.samples:
            yield family


def _devices(snapshot: Snapshot) -> Iterator[tuple[str, str, list[str], list[_Series]]]:
    machines = snapshot.machines
    rows = [(machine, device) for machine in machines if machine.table for device in machine.table.devices]
    where = ["host", "device", "chip"]

    def each(value: Callable[[Machine, Device], float | int | None]) -> list[_Series]:
        return [([m.host, str(d.npu_id), str(d.chip_id)], value(m, d)) for m, d in rows]

    yield ("devices_up", "1 where npu-smi answered, 0 where it did not.", ["host"],
           [([machine.host], int(machine.table is not None)) for machine in machines])  # fmt: skip
    yield ("devices_sample_age_seconds", "Age of npu-smi's answer; of a recording since it was made.", ["host"],
           [([m.host], max(0.0, snapshot.time_s - m.time_s) if m.time_s is not None and m.table else None)
            for m in machines])  # fmt: skip
    yield ("device_info", "Always 1: name of the chip, version of the driver.", [*where, "name", "driver"],
           [([m.host, str(d.npu_id), str(d.chip_id), d.name, (m.table.version if m.table else None) or ""], 1)
            for m, d in rows])  # fmt: skip
    yield "device_healthy", "1 where npu-smi says that its health is OK.", where, each(lambda m, d: int(d.healthy))
    yield "device_temperature_celsius", "Column Temp(C).", where, each(lambda m, d: d.temperature_c)
    yield "device_power_watts", "Column Power(W); absent where the chip has none.", where, each(lambda m, d: d.power_w)
    yield ("device_aicore_utilization_ratio", "Column AICore(%), 0 to 1.", where,
           each(lambda m, d: None if d.aicore_percent is None else d.aicore_percent / 100))  # fmt: skip
    yield ("device_memory_used_bytes", "The device's own memory (HBM, DDR where it has no HBM) in use.", where,
           each(lambda m, d: None if d.memory_used_mib is None else d.memory_used_mib * MIB))  # fmt: skip
    yield ("device_memory_total_bytes", "The device's own memory.", where,
           each(lambda m, d: None if d.memory_total_mib is None else d.memory_total_mib * MIB))  # fmt: skip
    yield ("device_processes", "Processes that hold memory of the device.", where,
           each(lambda m, d: len(m.table.processes_of(d)) if m.table and m.table.has_process_table
                else None))  # fmt: skip
    marked = {(mark.host, mark.npu_id, mark.chip_id) for mark in snapshot.marks if mark.kind == "idle"}
    yield ("device_idle_among_working", "1 where the device idles while its neighbours work.", where,
           each(lambda m, d: int((m.host, d.npu_id, d.chip_id) in marked)))  # fmt: skip


def _job(job: Job) -> Iterator[tuple[str, str, list[str], list[_Series]]]:
    label, name = ["recipe"], [job.recipe]
    live = job.live

    def one(value: float | int | None) -> list[_Series]:
        return [(name, value)]

    yield ("job_state", "1 for the state that the run is in; silent: nothing was heard of it for too long.",
           ["recipe", "state"], [([job.recipe, state], int(state == job.state)) for state in STATES])  # fmt: skip
    yield "job_ranks", "Ranks that the recipe asks for.", label, one(job.world_size)
    yield "step", "Optimizer steps done by the last rank.", label, one(job.step)
    yield "steps", "Optimizer steps of the whole run.", label, one(job.steps)
    yield "loss", "Training loss of the last logged step.", label, one(job.losses[-1][1] if job.losses else None)
    yield "loss_step", "The step of msparallel_loss.", label, one(job.losses[-1][0] if job.losses else None)
    yield "grad_norm", "Global gradient norm of the last logged step.", label, one(job.grad_norm)
    yield "learning_rate", "Of the last logged step.", label, one(job.learning_rate)
    yield ("eval_loss", "Loss of the last evaluation.", label,
           one(job.evaluations[-1][1] if job.evaluations else None))  # fmt: skip
    yield ("tokens_per_second", "Of all ranks, last logged step; absent unless the run is at work.", label,
           one(job.tokens_per_s if live else None))  # fmt: skip
    yield ("step_duration_seconds", "A step with its evaluations and checkpoints; absent unless the run is at work.",
           label, one(job.step_s if live else None))  # fmt: skip
    yield ("remaining_seconds", "To the last step at this speed; absent unless the run is at work.", label,
           one(job.left_s))  # fmt: skip
    yield "log_age_seconds", "Since the last record of log.jsonl.", label, one(job.log_age_s)
    yield ("sign_age_seconds", "Since anything was heard of the run: heartbeat, state, record.", label,
           one(job.sign_age_s))  # fmt: skip
    yield "checkpoint_step", "Step of the newest checkpoint.", label, one(job.checkpoint_step)
    yield "checkpoint_age_seconds", "Since the newest checkpoint was written.", label, one(job.checkpoint_age_s)
    yield "job_restarts", "Starts in the log after the first.", label, one(job.restarts)
    yield "job_incidents", "Attempts that supervise saw fail.", label, one(job.incidents.count)
    ranks = ["recipe", "rank"]

    def each(values: Iterable[float | int | None]) -> list[_Series]:
        return [([job.recipe, str(rank.file.rank)], value) for rank, value in zip(job.ranks, values, strict=True)]

    yield "rank_step", "Optimizer steps done by the rank.", ranks, each(rank.file.step for rank in job.ranks)
    yield ("step_heartbeat_age_seconds", "Since the rank last said where it is.", ranks,
           each(rank.age_s if rank.file.beat_s is not None else None for rank in job.ranks))  # fmt: skip
    yield ("rank_step_duration_seconds", "The rank's last step.", ranks,
           each(rank.file.step_s for rank in job.ranks))  # fmt: skip
    yield "rank_failed", "1 where the rank failed or was killed.", ranks, each(int(rank.failed) for rank in job.ranks)
