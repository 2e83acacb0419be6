"""What every stage of a pipeline computes when.

In: a Workload, a hardware profile, a number of micro-batches. Out: Tasks: the forward or backward pass of one
micro-batch through one group of layers, with start and end. Each stage takes its tasks in the order of the schedule and
waits for what a task needs; messages take no time here.

>>> tasks = pipeline_tasks(work, load_hardware("atlas_900_a2"), micro_batches=8)
>>> max(task.end_s for task in tasks)
3.21
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msparallel.hardware import Hardware
from msparallel.planner.cut import cut_of
from msparallel.planner.ends import end_passes
from msparallel.planner.layer_time import layer_time, speed_of
from msparallel.planner.workload import Workload


@dataclass(frozen=True, slots=True)
class Task:
    """Attributes:
    group: of layers, in the order a sample passes them; it lies on stage group % pp.
    """

    stage: int
    group: int
    micro: int
    backward: bool
    start_s: float
    end_s: float


def group_seconds(work: Workload, hardware: Hardware) -> list[tuple[float, float]]:
    """Forward and backward seconds of each group for a micro-batch; what is computed again counts as backward."""
    layer, ends = layer_time(work, hardware), end_passes(speed_of(hardware, work.devices_per_node), cut_of(work))
    found = []
    for group, layers in enumerate(work.stage_layers):
        forward, backward = layers * layer.forward.seconds, layers * (layer.backward.seconds + layer.again.seconds)
        for end, place in ((ends.embedding, 0), (ends.head, len(work.stage_layers) - 1)):
            if group == place:
                forward, backward = forward + end[0].seconds, backward + end[1].seconds
        found.append((forward, backward))
    return found


def pipeline_tasks(work: Workload, hardware: Hardware, micro_batches: int) -> list[Task]:
    """Tasks of a step of so many micro-batches, at least one. Raises ValueError where groups are interleaved and the
    stages do not divide the micro-batches: their order is not published."""
    if work.virtual_stages > 1 and work.schedule == "1f1b" and micro_batches % work.mesh.pp:
        raise ValueError(f"{micro_batches} micro-batches are no multiple of {work.mesh.pp} interleaved stages")
    stages, seconds = work.mesh.pp, group_seconds(work, hardware)
    last = len(seconds) - 1
    orders = [list(_order(work, stage, micro_batches)) for stage in range(stages)]
    done: dict[tuple[int, int, bool], float] = {}
    free, place, tasks = [0.0] * stages, [0] * stages, []
    while len(tasks) < sum(map(len, orders)):
        for stage, order in enumerate(orders):
            while place[stage] < len(order):
                group, micro, backward = order[place[stage]]
                needs = (group, micro, False) if backward and group == last else (
                    (group + 1, micro, True) if backward else (group - 1, micro, False))  # fmt: skip
                if needs[0] >= 0 and needs not in done:
                    break
                start = max(free[stage], done.get(needs, 0.0))
                free[stage] = done[group, micro, backward] = start + seconds[group][backward]
                tasks.append(Task(stage, group, micro, backward, start, free[stage]))
                place[stage] += 1
    return tasks


def _order(work: Workload, stage: int, micro_batches: int) -> Iterator[tuple[int, int, bool]]:
    """(group, micro-batch, backward) as a stage takes them: 1F1B (Narayanan et al., arXiv:2104.04473, figures 3 and 4),
    interleaved where a stage has several groups; GPipe has all forward passes first."""
    stages, virtual = work.mesh.pp, work.virtual_stages
    rounds = [range(first, min(first + stages, micro_batches)) for first in range(0, micro_batches, stages)]
    if virtual == 1:
        rounds = [range(micro_batches)]
    groups = [number * stages + stage for number in range(virtual)]
    forward = [(group, micro, False) for some in rounds for group in groups for micro in some]
    backward = [(group, micro, True) for some in rounds for group in reversed(groups) for micro in some]
    ahead = stages - stage - 1 if virtual == 1 else 2 * (stages - stage - 1) + (virtual - 1) * stages
    ahead = len(forward) if work.schedule == "gpipe" else min(ahead, len(forward))
    yield from forward[:ahead]
    for place in range(len(forward) - ahead):
        yield forward[ahead + place]
        yield backward[place]
    yield from backward[len(forward) - ahead :]
