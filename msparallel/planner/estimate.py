"""What a strategy needs and how fast it is, on paper.

In: a Workload and a hardware profile. Out: an Estimate: memory of each stage, the time of a step with its parts.

>>> found = estimate(workload_of(plan), plan.hardware)
>>> found.fits, round(found.time.step_s, 1)
(True, 9.4)
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from msparallel.hardware import Hardware
from msparallel.planner.memory import GIB, StageMemory, fullest_of, fullest_stage, stage_memories
from msparallel.planner.step_time import StepTime, step_time
from msparallel.planner.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Attributes:
    memory: of each stage.
    limit_bytes: of a device, for the job.
    """

    work: Workload
    hardware: Hardware
    memory: tuple[StageMemory, ...]
    limit_bytes: int
    time: StepTime

    @property
    def fullest(self) -> StageMemory:
        """The stage that needs most."""
        return fullest_of(self.memory)

    @property
    def fits(self) -> bool:
        """Whether every stage has room even at the high end of its band."""
        return self.fullest.high_bytes <= self.limit_bytes

    @property
    def tokens_per_s_per_device(self) -> float:
        tokens = self.work.global_batch_size * self.work.seq_length
        return tokens / self.time.step_s / self.work.mesh.size

    @property
    def mfu(self) -> float:
        """Share of the devices' peak that the model's own operations are."""
        peak = self.hardware.matrix.tflops[self.work.dtype] * 1e12
        return self.time.flops / self.time.step_s / self.work.mesh.size / peak

    @property
    def bubble(self) -> float:
        """Share of the step in which a device waits for another stage."""
        return self.time.bubble_s / self.time.step_s


def limit_bytes(hardware: Hardware, devices_per_node: int) -> int:
    """What a job may use of a device's memory; of a processor, an equal share of its host's for each worker.

    Args:
        devices_per_node: of the job.
    """
    if not hardware.memory_gib:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // devices_per_node
    return round(hardware.usable_gib * GIB)


def fits(work: Workload, hardware: Hardware) -> bool:
    """`Estimate.fits` without the rest."""
    return fullest_stage(work).high_bytes <= limit_bytes(hardware, work.devices_per_node)


def estimate(work: Workload, hardware: Hardware) -> Estimate:
    """Memory and time of a strategy."""
    return Estimate(
        work=work,
        hardware=hardware,
        memory=stage_memories(work),
        limit_bytes=limit_bytes(hardware, work.devices_per_node),
        time=step_time(work, hardware),
    )
