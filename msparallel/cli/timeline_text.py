"""A step's timeline as a person reads it at the terminal.

In: a Timed. Out: text: how long the step takes, a picture of what every rank computes when, where the time goes, what
goes over the links, and the peak of memory.

>>> print("\\n".join(timeline_lines(time_recipe(plan), width=100)))
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from msparallel.report.alike import bytes_text
from msparallel.report.step import micro_batch_count, micro_of, pass_of, seconds_text, shown_ranks
from msparallel.simulate.timed import Timed
from msparallel.simulate.walk import Span

FORWARD, BACKWARD = string.digits + string.ascii_lowercase, string.ascii_uppercase
"""Signs of micro-batches 0, 1, ... in the picture, again from the first after the last."""
UPDATE, WAITS, IDLE = "=", "~", "."
MOST_ROWS = 16
MOST_TENSORS = 5


def timeline_lines(timed: Timed, width: int) -> list[str]:
    """The whole section."""
    line, hardware = timed.timeline, timed.plan.hardware
    lines = [
        f"A step on {hardware.name} ({hardware.chip}): {seconds_text(line.step_time_s)}, an estimate from its "
        "profile's numbers",
        *_picture(timed, width),
        "",
        *_shares(timed),
        "",
        *_links(timed),
        *_memory(timed),
    ]
    return lines


def _picture(timed: Timed, width: int) -> list[str]:
    """A row for each rank: in each cell what it computes for most of that time."""
    line = timed.timeline
    cells, count = max(20, width - 12), micro_batch_count(line)
    rows = []
    for rank in shown_ranks(line, MOST_ROWS):
        signs = [(_sign(span, count), span) for span in line.spans if span.rank == rank]
        rows.append(f"  rank {rank:<4} {_row(signs, cells, line.step_time_s)}")
    legend = (
        f"  0 1 2 ... forward of that micro-batch, A B C ... backward of micro-batch 0 1 2 ..., {UPDATE} what "
        f"belongs to none, {WAITS} waits for a message, {IDLE} waits for other ranks"
    )
    return [*rows, legend]


def _row(signs: Sequence[tuple[str, Span]], cells: int, end_s: float) -> str:
    """Time in each cell by sign; the sign that has most of it, if that is a third of the cell."""
    took: list[dict[str, float]] = [{} for _ in range(cells)]
    for sign, span in signs:
        first, last = (min(cells - 1, int(at / end_s * cells)) for at in (span.start_s, span.end_s))
        for cell in range(first, last + 1):
            begins, ends = cell / cells * end_s, (cell + 1) / cells * end_s
            inside = min(span.end_s, ends) - max(span.start_s, begins)
            if inside > 0:
                took[cell][sign] = took[cell].get(sign, 0.0) + inside
    text = ""
    for cell in took:
        computes = {sign: seconds for sign, seconds in cell.items() if sign != WAITS}
        busiest = max(computes, key=computes.__getitem__, default=IDLE)
        enough = sum(computes.values()) > end_s / cells / 3
        text += busiest if enough else WAITS if cell.get(WAITS, 0.0) > end_s / cells / 3 else IDLE
    return text


def _sign(span: Span, count: int) -> str:
    if span.stream != "compute":
        return WAITS
    micro = micro_of(span, count)
    if micro is None:
        return UPDATE
    signs = FORWARD if pass_of(span) == "forward" else BACKWARD
    return signs[micro % len(signs)]


def _shares(timed: Timed) -> list[str]:
    """Where the step of each rank goes, in parts of the step."""
    line = timed.timeline
    axes = sorted(line.exposed_s, key=lambda a: -line.exposed_s[a])
    names = ["computes", *(f"waits for {'+'.join(a) or 'itself'}" for a in axes), "bubble", "peak live"]
    lines = ["  rank   " + "  ".join(f"{name:>14}" for name in names)]
    shown = set(shown_ranks(line, MOST_ROWS))
    for times in line.ranks:
        if times.rank not in shown:
            continue
        values = [times.busy_s, *(times.exposed_s.get(a, 0.0) for a in axes), times.bubble_s]
        shares = [f"{value / line.step_time_s:.1%}" for value in values]
        memory = bytes_text(timed.memory[times.rank].peak_bytes)
        lines.append(f"  {times.rank:<6} " + "  ".join(f"{text:>14}" for text in [*shares, memory]))
    return lines


def _links(timed: Timed) -> list[str]:
    line = timed.timeline
    if not line.links:
        return ["  Nothing goes over links."]
    lines = []
    for link in line.links:
        share = link.busy_s / line.step_time_s
        lines.append(
            f"  {link.name}: {bytes_text(link.bytes)} sent by {'all' if _complete(timed) else 'the compiled'} ranks; "
            f"busy {share:.1%} of the step on rank {link.rank}{', the busiest link' if link is line.links[0] else ''}"
        )
    return lines


def _complete(timed: Timed) -> bool:
    return len(timed.timeline.ranks) == timed.plan.world_size


def _memory(timed: Timed) -> list[str]:
    """The largest tensors at the highest peak."""
    curve = max(timed.memory.values(), key=lambda curve: curve.peak_bytes)
    lines = [f"  Most alive on rank {curve.rank}, {seconds_text(curve.peak_s)} into the step. Largest there:"]
    for tensor in curve.peak.tensors[:MOST_TENSORS]:
        micro = "" if tensor.micro is None else f", micro-batch {tensor.micro}"
        shape = " x ".join(map(str, tensor.type.shape))
        lines.append(f"    {bytes_text(tensor.type.bytes):>9}  {tensor.op} {tensor.scope} [{shape}]{micro}")
    return lines
