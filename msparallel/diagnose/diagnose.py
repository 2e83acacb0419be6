"""A folder of logs -> what went wrong.

In: a folder, or one file. Out: a `Diagnosis`: findings with the root cause first, and what was read. Every file is read
once, block by block, so the memory does not grow with the logs.

>>> diagnose(Path("output/msrun_log")).findings[0].rule.id  # doctest: +SKIP
'device_out_of_memory'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msparallel.diagnose.files import log_files
from msparallel.diagnose.findings import Finding, findings
from msparallel.diagnose.read_all import read_all
from msparallel.diagnose.rule import rules
from msparallel.diagnose.wanted import Wanted


@dataclass(frozen=True)
class Diagnosis:
    """What a folder says.

    Attributes:
        findings: the root cause first.
        files: number of logs read.
        ranks: number of ranks that have a log.
        left_out: (name, reason) of files that were not read, or not to their end.
    """

    findings: tuple[Finding, ...]
    files: int
    ranks: int
    bytes_read: int
    left_out: tuple[tuple[str, str], ...]

    @property
    def failed(self) -> bool:
        """Whether an error was found."""
        return any(finding.severity == "error" for finding in self.findings)


def diagnose(root: Path, progress: Callable[[int], object] = lambda count: None) -> Diagnosis:
    """Read all logs below `root`; `progress` is told bytes as they are read.

    Raises:
        UserError: where `root` is not there, or a process that reads is ended from outside.
    """
    logs, left_out = log_files(root)
    known = rules()
    scans = read_all(logs, Wanted(known), progress)
    cut = [(found.file.name, found.stopped) for found in scans if found.stopped is not None]
    ranks = {found.rank for found in scans if found.rank is not None}
    return Diagnosis(tuple(findings(scans, known)), len(scans), len(ranks), sum(found.bytes_read for found in scans),
                     tuple([*left_out, *cut]))  # fmt: skip
