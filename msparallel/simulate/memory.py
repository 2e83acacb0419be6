"""What a rank's step keeps alive, over time.

In: a rank's graphs and the timeline of its step. Out: `MemoryCurve`: bytes of the values that operators gave and
somebody still reads, at each time, and the largest values at the peak. Kept values (weights, moments, gradients that
are added up), workspace and buffers of messages are not among them, as in a dry run.

Memory is taken in the order in which the runtime starts operators. A time is that of the next operator that computes:
what a message takes before shows there.

>>> curve = memory_over_time([(execution, 1)], timeline, rank=0)
>>> curve.peak_bytes, curve.peak.tensors[0].scope
(1610612736, 'network.layers.7.mlp.gate_proj')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msparallel.compile.expand import Execution
from msparallel.compile.order import Peak, alive_bytes, live_bytes, run_order
from msparallel.simulate.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class MemoryCurve:
    """Attributes:
    points: (seconds since the step began, bytes from then on), where the number changes.
    peak_s: when the peak begins.
    peak: of the graph that reaches it.
    """

    rank: int
    points: tuple[tuple[float, int], ...] = field(repr=False)
    peak_bytes: int
    peak_s: float
    peak: Peak


def memory_over_time(graphs: Sequence[tuple[Execution, int]], timeline: Timeline, *, rank: int) -> MemoryCurve:
    """Of one rank that the timeline has.

    Args:
        graphs: what the timeline was made of: the rank's graphs in the order of the step, with how often each runs.
    """
    starts: dict[int, dict[int, float]] = {}
    for span in timeline.spans:
        if span.rank == rank and span.stream == "compute":
            starts.setdefault(span.run, {})[span.index] = span.start_s
    points: list[tuple[float, int]] = [(0.0, 0)]
    peaks: list[Peak] = []
    run = 0
    for execution, times in graphs:
        order = run_order(execution)
        alive = alive_bytes(execution, order)
        peaks.append(live_bytes(execution, order))
        for _ in range(times):
            _add(points, alive, starts.get(run, {}))
            run += 1
    end = max((span.end_s for span in timeline.spans if span.rank == rank), default=0.0)
    peak_s, peak_bytes = max(points, key=lambda point: point[1])
    return MemoryCurve(
        rank=rank,
        points=(*_changes(points), (end, 0)),
        peak_bytes=peak_bytes,
        peak_s=peak_s,
        peak=max(peaks, key=lambda peak: peak.bytes),
    )


def _add(points: list[tuple[float, int]], alive: Sequence[tuple[int, int]], starts: dict[int, float]) -> None:
    """Points of one run: at each operator that computes, the most that was alive since the one before it."""
    most = 0
    for index, bytes_ in alive:
        most = max(most, bytes_)
        if index in starts:
            points.append((starts[index], most))
            most = 0
    if most and starts:
        points.append((max(starts.values()), max(most, points[-1][1])))


def _changes(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Points at which the number changes; of those at one time the largest."""
    found: list[tuple[float, int]] = []
    for time_s, bytes_ in points:
        if found and found[-1][0] == time_s:
            bytes_ = max(bytes_, found.pop()[1])
        if not found or found[-1][1] != bytes_:
            found.append((time_s, bytes_))
    return found
