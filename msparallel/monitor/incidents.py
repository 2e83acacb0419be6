"""Attempts that `supervise` ended, as their folders tell: `RUN/incidents/001/incident.json`.

In: a run's folder. Out: Incidents: how many, and the last one. Folders may be incomplete: an incident is counted by its
folder, and told as far as its file goes (msparallel/supervise/incident.py writes it).

>>> read_incidents(Path("output/quickstart")).count  # doctest: +SKIP
0
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from msparallel.errors import printable, short
from msparallel.monitor.run_files import json_object, read_some, whole

_MOST_BYTES = 4 * 1024 * 1024
"""incident.json holds findings with their evidence, and what npu-smi said."""


@dataclass(frozen=True, kw_only=True)
class Incidents:
    """Attributes:
    last: name of the newest folder; empty where there is none.
    last_s: Unix seconds at which it was made.
    kind, text, rank, step: of its fault, as far as the file tells.
    """

    count: int = 0
    last: str = ""
    last_s: float | None = None
    kind: str = ""
    text: str = ""
    rank: int | None = None
    step: int | None = None


def read_incidents(run: Path) -> Incidents:
    """What is in `incidents`."""
    try:
        names = [entry.name for entry in os.scandir(run / "incidents")]
    except OSError:
        return Incidents()
    numbered = sorted((name for name in names if re.fullmatch(r"[0-9]{3,9}", name)), key=int)
    if not numbered:
        return Incidents()
    folder = run / "incidents" / numbered[-1]
    try:
        made_s: float | None = folder.stat().st_mtime
    except OSError:
        made_s = None
    fault = (json_object(read_some(folder / "incident.json", _MOST_BYTES) or b"") or {}).get("fault")
    told = fault if isinstance(fault, dict) else {}

    def words(key: str, most: int) -> str:
        value = told.get(key)
        return short(printable(value), most) if isinstance(value, str) else ""

    return Incidents(count=len(numbered), last=numbered[-1], last_s=made_s, kind=words("kind", 40),
                     text=words("text", 300), rank=whole(told.get("rank")), step=whole(told.get("step")))  # fmt: skip
