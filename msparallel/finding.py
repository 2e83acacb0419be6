"""What a rule found: the shape that `doctor`, `diagnose` and `profile` share.

In: a rule's words and the lines that it speaks of. Out: Evidence, Finding; each verb's own Finding adds what only it
knows.

>>> Finding(rule="clock_off", severity="warning", root_cause="...", remedy="...").to_json()["rank"] is None
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""The worst first."""


@dataclass(frozen=True)
class Evidence:
    """A line: of a file, or of what a command answered (`file` is then the command)."""

    file: str
    line: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """`{file, line, text}`."""
        return {"file": self.file, "line": self.line, "text": self.text}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault, or one thing to know.

    Attributes:
        rank: the rank to look at, None where it is not about one.
    """

    rule: str
    severity: Severity
    root_cause: str
    remedy: str
    rank: int | None = None
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """One of `findings` of `--json`."""
        return {"rule": self.rule, "severity": self.severity, "root_cause": self.root_cause, "rank": self.rank,
                "evidence": [line.to_json() for line in self.evidence], "remedy": self.remedy}  # fmt: skip
