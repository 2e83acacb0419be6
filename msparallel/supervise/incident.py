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
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msparallel.errors import short
from msparallel.launch.processes import die_with_parent
from msparallel.supervise.attempt import Outcome

MOST_BYTES = 64 * 2**20
"""Of one log: of a longer one its first and last half are kept."""
DIAGNOSIS_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Attributes:
    folder: of it, None where it could not be written.
    cause: the first error among the findings that no other one explains, None where there is none.
    findings: of `diagnose --json`, the root cause first.
    problem: why it could not be kept or diagnosed, empty where it was.
    """

    folder: Path | None
    cause: dict[str, Any] | None
    findings: tuple[dict[str, Any], ...] = ()
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
    findings, problem = _diagnose(folder / "logs")
    errors = [one for one in findings if one.get("severity") == "error" and one.get("consequence_of") is None]
    return Incident(folder=folder, cause=errors[0] if errors else None, findings=tuple(findings), problem=problem)


def _diagnose(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Findings, and why there are none. In a process of its own, for a bounded time: the run goes on all the same."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "msparallel", "diagnose", str(folder), "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": path},
            timeout=DIAGNOSIS_S,
            preexec_fn=die_with_parent,
        )
        return list(json.loads(done.stdout)["findings"]), ""
    except subprocess.TimeoutExpired:
        return [], f"The diagnosis took more than {DIAGNOSIS_S:g} s and was ended."
    except (ValueError, KeyError):
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"code {done.returncode}"]
        return [], f"The diagnosis failed: {short(words[-1], 300)}"


def write(incident: Incident, outcome: Outcome, record: Mapping[str, Any]) -> None:
    """Write incident.json; a disk that is full is left alone."""
    if incident.folder is None:
        return
    value = {
        **record,
        "fault": asdict(outcome.fault) if outcome.fault else None,
        "left": list(outcome.left),
        "devices": outcome.devices,
        "diagnosis": {"findings": list(incident.findings), "problem": incident.problem},
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
