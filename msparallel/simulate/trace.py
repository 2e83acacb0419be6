"""A timeline as a file that trace viewers open: https://ui.perfetto.dev, or chrome://tracing.

In: a Timeline, and memory curves if there are any. Out: Chrome's trace format: a process for each rank, named by its
place on the mesh, a row for each stream, an event for each operator with cell, micro-batch, bytes and axes, an arrow
from each Send to its Receive, and memory as a counter. Source: "Trace Event Format" of the Catapult project.

>>> write_trace("step.json", timeline, memory=[memory_over_time(graphs, timeline, rank=0)])
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msparallel.compile.rank_report import LARGEST_TENSORS
from msparallel.mesh import AXES, Mesh
from msparallel.simulate.memory import MemoryCurve
from msparallel.simulate.streams import STREAMS
from msparallel.simulate.timeline import Timeline
from msparallel.simulate.walk import Span

Event = dict[str, Any]
ROWS = {stream: number for number, stream in enumerate(STREAMS, 1)}
"""Thread of each stream; viewers keep thread 0 for an idle processor."""
_MICROSECONDS = 1e6


def write_trace(path: Path | str, timeline: Timeline, memory: Sequence[MemoryCurve] = ()) -> None:
    """Write the file, an event a line. Raises OSError where it cannot be written."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in trace_events(timeline, memory):
            file.write(separator + json.dumps(event, ensure_ascii=False))
            separator = ",\n"
        file.write("\n]}\n")


def trace_events(timeline: Timeline, memory: Sequence[MemoryCurve] = ()) -> Iterator[Event]:
    """Every event of the trace; times are microseconds."""
    for times in timeline.ranks:
        yield _named("process_name", times.rank, name=f"rank {times.rank}{_place(times.rank, timeline.mesh)}")
        yield _named("process_sort_index", times.rank, sort_index=times.rank)
        for stream, thread in ROWS.items():
            yield _named("thread_name", times.rank, thread, name=stream)
            yield _named("thread_sort_index", times.rank, thread, sort_index=thread)
    simulated = {times.rank for times in timeline.ranks}
    sent: Counter[tuple[tuple[int, ...], str]] = Counter()
    for span in timeline.spans:
        yield _operator(span)
        if span.op in ("Send", "Receive") and simulated.issuperset(span.ranks):
            # Messages of a pair are received in the order in which they are sent.
            number, sent[span.ranks, span.op] = sent[span.ranks, span.op], sent[span.ranks, span.op] + 1
            yield _arrow(span, f"{span.ranks[0]}-{span.ranks[1]}-{number}")
    for curve in memory:
        yield from _memory(curve)


def _place(rank: int, mesh: Mesh) -> str:
    """Coordinates on the axes that are on."""
    place = mesh.coordinates(rank)
    on = [f"{axis}{place[axis]}" for axis in AXES if getattr(mesh, axis) > 1]
    return f" ({' '.join(on)})" if on else ""


def _named(what: str, rank: int, thread: int | None = None, **arguments: Any) -> Event:
    event: Event = {"ph": "M", "name": what, "pid": rank, "args": arguments}
    return event if thread is None else {**event, "tid": thread}


def _operator(span: Span) -> Event:
    arguments: Event = {"cell": span.path}
    if span.micro is not None:
        arguments["micro_batch"] = span.micro
    if span.ranks:
        arguments |= {"bytes": span.bytes, "ranks": list(span.ranks), "axes": " x ".join(span.axes)}
    return {
        "ph": "X",
        "name": span.op,
        "cat": span.stream,
        "pid": span.rank,
        "tid": ROWS[span.stream],
        "ts": span.start_s * _MICROSECONDS,
        "dur": (span.end_s - span.start_s) * _MICROSECONDS,
        "args": arguments,
    }


def _arrow(span: Span, identity: str) -> Event:
    """One end of an arrow; it is bound to the event that is around its time."""
    event = {
        "ph": "s" if span.op == "Send" else "f",
        "name": "transfer",
        "cat": "transfer",
        "id": identity,
        "pid": span.rank,
        "tid": ROWS[span.stream],
        "ts": (span.start_s + span.end_s) / 2 * _MICROSECONDS,
    }
    return event if span.op == "Send" else {**event, "bp": "e"}


def _memory(curve: MemoryCurve) -> Iterator[Event]:
    for time_s, bytes_ in curve.points:
        yield {
            "ph": "C",
            "name": "live memory",
            "pid": curve.rank,
            "ts": time_s * _MICROSECONDS,
            "args": {"GiB": bytes_ / 2**30},
        }
    largest = [f"{t.op} {list(t.type.shape)} {t.type.dtype} ({t.scope})" for t in curve.peak.tensors[:LARGEST_TENSORS]]
    yield {
        "ph": "i",
        "s": "p",
        "name": "peak of live memory",
        "pid": curve.rank,
        "tid": ROWS["compute"],
        "ts": curve.peak_s * _MICROSECONDS,
        "args": {"bytes": curve.peak_bytes, "largest": largest},
    }
