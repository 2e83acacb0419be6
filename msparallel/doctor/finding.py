"""What the doctor found, as values.

In: a rule's words and the lines that it speaks of. Out: Finding; `ordered` puts the root cause first.

>>> found = Finding(rule="clock_not_synchronised", severity="warning", root_cause="...", remedy="...")
>>> found.to_json()["rank"] is None
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msparallel import finding
from msparallel.diagnose.secrets import without_secrets
from msparallel.doctor.recording import Recording, Value
from msparallel.errors import UserError, printable, short
from msparallel.finding import SEVERITIES, Severity

_PLACE = re.compile(r"(?P<file>.{1,400}?):(?P<line>\d{1,9})  (?P<text>[^\n]*)\n\s*(?P<said>.*)", re.DOTALL)
MOST_EVIDENCE = 8


@dataclass(frozen=True)
class Evidence(finding.Evidence):
    """A line of a recorded file, or of what this machine answered."""

    def to_json(self) -> dict[str, Any]:
        """`{file, line, text}`, the text without secrets."""
        return {**super().to_json(), "text": printable(without_secrets(short(self.text, 300)))}


@dataclass(frozen=True, kw_only=True)
class Finding(finding.Finding):
    """An error breaks its rung; warning and info do not. `rank` is None, since no job runs yet.

    Attributes:
        host: of a recording with several hosts, or this machine's name; None where it is about all.
    """

    host: str | None = None

    @property
    def cause(self) -> str:
        """The root cause as it is shown: without secrets and control characters."""
        return printable(without_secrets(self.root_cause))

    def to_json(self) -> dict[str, Any]:
        """The fields of `doctor --json`."""
        told = super().to_json()
        return {**told, "root_cause": self.cause, "evidence": told["evidence"][:MOST_EVIDENCE], "host": self.host}


def report(rule: str, severity: Severity, told: Recording, cause: str, remedy: str, *lines: Evidence) -> Finding:
    """A finding about one host."""
    return Finding(rule=rule, severity=severity, host=told.host, root_cause=cause, remedy=remedy, evidence=lines)


def stated(name: str, value: Value) -> Evidence:
    """The line NAME=VALUE that a value is from."""
    return Evidence(*value.place, f"{name}={value.text}")


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """By severity, otherwise as they were found: rules stand in the order in which a fault causes the next."""
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def unreadable(error: UserError, host: str, *, name: str, remedy: str = "") -> Finding:
    """A record that does not have the form that it should have: the parser's own words, with file and line."""
    text = str(error).split("\n\n")[0]
    file, line, shown, said = name, 1, "", text
    if place := _PLACE.match(text):
        file, line, shown, said = place["file"], int(place["line"]), place["text"], place["said"]
    elif "\n" in text:  # about the file as a whole
        file, said = text.split("\n", 1)
    evidence = (Evidence(file, line, shown),)
    said = " ".join(said.split())
    return Finding(rule="record_unreadable", severity="error", host=host, evidence=evidence,
                   root_cause=f"{name} cannot be read, so what it should tell was not checked: {short(said, 600)}",
                   remedy=remedy or "Record it again: `msparallel doctor "
                                    f"--save DIR` writes {name} as it must be.")  # fmt: skip
