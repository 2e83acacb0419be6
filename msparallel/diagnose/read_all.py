"""All logs of a folder, read by a few processes where there is much to read.

In: `LogFile`s and `Wanted` rules. Out: their `Scan`s, in the order of the files. Only scans travel between processes,
so the memory is that of a few blocks for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from msparallel.diagnose.files import LogFile
from msparallel.diagnose.scan import Scan, scan
from msparallel.diagnose.wanted import Wanted
from msparallel.errors import RunError

MOST_PROCESSES = 4
"""More read no faster from one disk, and each takes some 50 MiB."""
SMALL_BYTES = 64 << 20
"""So much is read by one process within two seconds."""

_wanted: list[Wanted] = []
"""In a process that reads: what it looks for, given once and not with every file."""


def read_all(logs: list[LogFile], wanted: Wanted, progress: Callable[[int], object]) -> list[Scan]:
    """The scan of every file.

    Raises:
        RunError: where one of the processes was ended from outside.
    """
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)), len(logs))
    if processes < 2 or sum(_size(file) for file in logs) < SMALL_BYTES:
        return [scan(file, wanted, progress) for file in logs]
    scans: list[Scan] = []
    context = get_context("fork")  # spawned ones would run the caller's own main module again
    try:
        with ProcessPoolExecutor(processes, context, _prepare, (wanted,)) as pool:
            for found in pool.map(_scan, logs):
                progress(found.bytes_read)
                scans.append(found)
    except BrokenProcessPool:
        raise RunError("A process that read logs was ended from outside, perhaps for want of memory.") from None
    return scans


def _size(file: LogFile) -> int:
    try:
        return file.path.stat().st_size
    except OSError:  # gone since it was listed; reading it says so
        return 0


def _prepare(wanted: Wanted) -> None:
    _wanted[:] = [wanted]


def _scan(file: LogFile) -> Scan:
    return scan(file, _wanted[0])
