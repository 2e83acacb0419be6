"""When nothing ran: gaps between operators, while they come by in any order.

In: (start, end, name) of every operator of a device. Out: the longest gaps, what stands on both sides, and their sum.
An operator that comes late, because the file is not sorted, closes or splits the gaps that it lies in. Memory is
bounded: only gaps of at least `LEAST_GAP_US` are kept, and the shortest are dropped where there are too many.

>>> gaps = Gaps()
>>> for start, end, name in ((0, 100, "a"), (700, 800, "b"), (300, 500, "late")):
...     gaps.add(start, end, name, line=1)
>>> [(gap.start, gap.end, gap.before, gap.after) for gap in gaps.longest()]
[(100, 300, 'a', 'late'), (500, 700, 'late', 'b')]
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

LEAST_GAP_US = 100.0
"""Between two launches on a busy device are a few microseconds."""
MOST_GAPS = 4096


@dataclass(frozen=True)
class Span:
    """A gap; line is that of the operator behind it."""

    start: float
    end: float
    before: str
    after: str
    line: int


class Gaps:
    """Gaps of one device, by start; they never overlap."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.end = 0.0
        self._last = ""
        self._first_name = ""
        self._first_line = 0
        self._spans: list[Span] = []
        self.dropped = 0

    def add(self, start: float, end: float, name: str, line: int) -> None:
        """An operator that ran from start to end."""
        if self.first is None:
            self.first, self.end, self._last, self._first_name, self._first_line = start, end, name, name, line
            return
        if start >= self.end:
            if start - self.end >= LEAST_GAP_US:
                self._spans.append(Span(self.end, start, self._last, name, line))
        elif self._spans and start < self._spans[-1].end:
            self._fill(start, end, name, line)
        if start < self.first:
            if self.first - end >= LEAST_GAP_US:
                self._spans.insert(0, Span(end, self.first, name, self._first_name, self._first_line))
            self.first, self._first_name, self._first_line = start, name, line
        if end > self.end:
            self.end, self._last = end, name
        if len(self._spans) > 2 * MOST_GAPS:
            self._thin()

    def _fill(self, start: float, end: float, name: str, line: int) -> None:
        """Take an operator's time out of the gaps."""
        at = max(0, bisect_left(self._spans, start, key=lambda span: span.start) - 1)
        kept: list[Span] = []
        stop = at
        while stop < len(self._spans) and self._spans[stop].start < end:
            span = self._spans[stop]
            if span.end <= start:
                kept.append(span)
            else:
                parts = (replace(span, end=start, after=name, line=line), replace(span, start=end, before=name))
                kept += [part for part in parts if part.end - part.start >= LEAST_GAP_US]
            stop += 1
        self._spans[at:stop] = kept

    def _thin(self) -> None:
        order = sorted(self._spans, key=lambda span: span.start - span.end)
        self.dropped += len(order) - MOST_GAPS
        self._spans = sorted(order[:MOST_GAPS], key=lambda span: span.start)

    def longest(self, most: int = 20) -> list[Span]:
        """Longest first."""
        return sorted(self._spans, key=lambda span: (span.start - span.end, span.start))[:most]

    @property
    def total(self) -> float:
        """Of all gaps that are kept."""
        return sum(span.end - span.start for span in self._spans)
