"""What is wrong, what it could gain, and what to change.

In: nothing. Out: `Finding`, the value that every rule returns, and the order they are shown in.

>>> one = Finding(rule="bubble", severity="warning", root_cause="Ranks stand in the bubble 12% of a step.",
...               remedy="More micro-batches.", gain=0.12, changes=("train.micro_batch_size=1",))
>>> one.to_json()["gain_pct_at_most"]
12.0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msparallel import finding
from msparallel.finding import SEVERITIES

DOC = "docs/22_profile.md"


@dataclass(frozen=True, kw_only=True)
class Finding(finding.Finding):
    """One thing that a rule found.

    Attributes:
        gain: share of a step that would go if all of it went; an upper bound, None where nothing tells it.
        ranks: all that are meant.
        changes: overrides of the recipe that passed its rules, `section.key=value`.
        planned: share of a step that the planner says those changes save; an estimate on paper.
    """

    gain: float | None = None
    ranks: tuple[int, ...] = ()
    changes: tuple[str, ...] = ()
    planned: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of `profile --json`."""
        return {
            **super().to_json(), "ranks": list(self.ranks),
            "gain_pct_at_most": None if self.gain is None else round(self.gain * 100, 2),
            "changes": list(self.changes),
            "planned_pct": None if self.planned is None else round(self.planned * 100, 2),
            "doc": f"{DOC}#{self.rule}",
        }  # fmt: skip


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then by what they could gain; what cannot be told comes last, information behind warnings."""
    return tuple(sorted(findings, key=lambda one: (one.severity != "error", -(one.gain or 0.0),
                                                   SEVERITIES.index(one.severity), one.rule,
                                                   one.rank if one.rank is not None else -1)))  # fmt: skip


def percent(share: float) -> str:
    """A share as text. Never more digits than it is worth.

    >>> percent(0.1234), percent(0.0123), percent(0)
    ('12%', '1.2%', '0%')
    """
    value = share * 100
    return f"{value:.0f}%" if abs(value) >= 9.95 or value == 0 else f"{value:.1f}%"


def time_text(us: float) -> str:
    """Microseconds with a unit that fits.

    >>> time_text(1_234_567), time_text(12_345), time_text(12.3)
    ('1.23 s', '12.3 ms', '12.3 us')
    """
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(us) >= size:
            return f"{us / size:.3g} {unit}" if us / size < 1000 else f"{us / size:,.0f} {unit}"
    return f"{us:.3g} us"


def ranks_text(ranks: Iterable[int], most: int = 8) -> str:
    """Ranks in words.

    >>> ranks_text([3]), ranks_text(range(12))
    ('rank 3', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more')
    """
    told = list(ranks)
    if len(told) == 1:
        return f"rank {told[0]}"
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return f"ranks {', '.join(map(str, told[:most]))}{more}"
