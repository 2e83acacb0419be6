"""Numbers as a person reads them: times, ages, a curve in a line.

>>> duration(4000.0), sparkline([3.0, 2.0, 1.0], 3)
('1 h 06 min', '█▄▁')
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"
"""For a terminal without Unicode."""


def duration(seconds: float | None) -> str:
    """Two units at most; `?` where nobody knows."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 2 * 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400:,} d {whole % 86_400 // 3600} h"


def sparkline(values: Sequence[float], width: int, levels: str = BLOCKS) -> str:
    """A curve of at most `width` characters: means of equal parts, from the least to the greatest."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    means = []
    for place in range(count):
        part = values[place * len(values) // count : (place + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    top = len(levels) - 1
    return "".join(levels[round((mean - low) / (high - low) * top) if high > low else 0] for mean in means)


def bar(fraction: float | None, width: int) -> str:
    """`#` for what is full, `.` for the rest."""
    full = round(min(1.0, max(0.0, fraction or 0.0)) * width)
    return "#" * full + "." * (width - full)
