"""What an attempt left behind, kept: its logs, what is wrong by the fault handbook, what was decided.

In: a run's folder, an attempt's record and Outcome. Out: `incidents/001` with the logs as they were and `incident.json`
{attempt record, fault, decision, diagnosis, devices}. A disk that is full is no reason to fail: then there is none.

>>> keep(run_dir(plan), record, outcome).folder.name
'001'
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msparallel.diagnose.diagnose import diagnose
from msparallel.diagnose.findings import Finding
from msparallel.errors import UserError
from msparallel.supervise.attempt import Outcome

MOST_BYTES = 64 * 2**20
"""Of one log: of a longer one its first and last half are kept."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Attributes:
    folder: of it, None where it could not be written.
    cause: what `diagnose` found in the logs, None where nothing or where they could not be kept.
    problem: why it could not be written, empty where it was.
    """

    folder: Path | None
    cause: Finding | None
    findings: tuple[Finding, ...] = ()
    problem: str = ""


def keep(run_folder: Path, outcome: Outcome) -> Incident:
    """Copy the logs of the attempt that has just ended, and diagnose them."""
    folder = None
    try:
        folder = _next(run_folder / "incidents")
        _copy(run_folder / "logs", folder / "logs")
        for node, words in outcome.words.items():
            (folder / "logs" / f"agent_{node}.log").write_text(words + "\n", encoding="utf-8")
    except OSError as error:
        if folder is not None:  # half of it helps nobody, and the room may be wanted
            shutil.rmtree(folder, ignore_errors=True)
        return Incident(folder=None, cause=None, problem=f"The incident could not be kept: {error}.")
    try:
        findings = diagnose(folder / "logs").findings
    except UserError as error:
        return Incident(folder=folder, cause=None, problem=str(error))
    errors = [one for one in findings if one.severity == "error" and one.explained_by is None]
    return Incident(folder=folder, cause=errors[0] if errors else None, findings=findings)


def write(incident: Incident, outcome: Outcome, record: Mapping[str, Any]) -> None:
    """Write incident.json; a disk that is full is left alone."""
    if incident.folder is None:
        return
    value = {
        **record,
        "fault": asdict(outcome.fault) if outcome.fault else None,
        "left": list(outcome.left),
        "devices": outcome.devices,
        "diagnosis": {"findings": [finding.to_json() for finding in incident.findings], "problem": incident.problem},
    }
    try:
        (incident.folder / "incident.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    except OSError:
        return


def _next(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in root.iterdir() if re.fullmatch(r"\d{3,9}", path.name)]
    folder = root / f"{max(numbers, default=0) + 1:03d}"
    folder.mkdir()
    return folder


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as old, (target / path.name).open("wb") as new:
            size = os.fstat(old.fileno()).st_size
            if size <= MOST_BYTES:
                shutil.copyfileobj(old, new)
                continue
            new.write(old.read(MOST_BYTES // 2))
            old.seek(size - MOST_BYTES // 2)
            new.write(f"\n... {size - MOST_BYTES:,} bytes left out ...\n".encode())
            shutil.copyfileobj(old, new)
