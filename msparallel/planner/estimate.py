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
from msparallel.planner.workload import Workload


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Most that a rank of a stage holds at once, by term, in bytes.

    Attributes:
        activations_bytes: what layers keep for the backward pass, of all micro-batches that are under way.
        other_bytes: what is alive beside that at the peak: logits, a layer being computed again, gathered weights,
            buffers of collectives.
        low_bytes, high_bytes: the band around `total_bytes`; `fits` asks for the high end.
    """

    stage: int
    layers: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    other_bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def state_bytes(self) -> int:
        """What stays from step to step."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activations_bytes + self.other_bytes


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step on the stage that ends it; the parts add up to `step_s`.

    Attributes:
        compute_s: products, attention and everything else that the backward and forward passes run.
        compute_parts_s: the same in parts: products, attention, memory (operators that only move it).
        peak_parts_s: what products and attention would take at the peak.
        recompute_s: what is computed again.
        exposed_s: axis -> messages that computation waits for: tp, cp, ep, pp, dp.
        bubble_s: waiting for other stages, uneven ones too.
        optimizer_s: the update of the weights.
        flops: of the model in a step, all devices together, recomputation left out.
    """

    compute_s: float
    compute_parts_s: dict[str, float]
    peak_parts_s: dict[str, float]
    recompute_s: float
    exposed_s: dict[str, float]
    bubble_s: float
    optimizer_s: float
    flops: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.recompute_s + sum(self.exposed_s.values()) + self.bubble_s + self.optimizer_s


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
    def fits(self) -> bool:
        """Whether every stage has room even at the high end of its band."""
        return max(stage.high_bytes for stage in self.memory) <= self.limit_bytes

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


def limit_bytes(hardware: Hardware) -> int:
    """What a job may use of a device's memory; of a processor, its host's, which all workers share."""
    if not hardware.memory_gib:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return round(hardware.usable_gib * 2**30)


def estimate(work: Workload, hardware: Hardware) -> Estimate:
    """Raises UserError for what the formulas do not know."""
    from msparallel.planner.memory import stage_memories
    from msparallel.planner.step_time import step_time

    return Estimate(
        work=work,
        hardware=hardware,
        memory=stage_memories(work, hardware),
        limit_bytes=limit_bytes(hardware),
        time=step_time(work, hardware),
    )
