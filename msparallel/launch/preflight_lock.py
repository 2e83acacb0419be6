"""Does a run go on in a folder?

In: the folder of a run. Out: who holds it, as `sole_run` of msparallel/train/run.py does: a lock on a file beside it.
The lock is asked for and never taken, so that a run that starts at this moment is not refused. Linux lists the locks of
this machine in /proc/locks (man proc_locks; those of another container are not in it). On NFS flock is a lock of a
range of bytes (man flock, "NFS details"), which F_GETLK tells of across machines.

>>> holders(Path("output/quickstart"))  # doctest: +SKIP
('node rank 0 (pid 4711)',)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from pathlib import Path

_PROC_LOCKS = Path("/proc/locks")
_FLOCK = re.compile(r"^\d+: FLOCK +\S+ +\S+ +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
"""Process, major and minor number of the device (hexadecimal), inode."""
_RANGE = struct.Struct("hhlli4x")
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


def holders(folder: Path) -> tuple[str, ...]:
    """Who holds the run's folder: parts of nodes, a supervisor. Empty where nobody does, or where no lock is seen."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.([^.]+)\.lock")
    try:
        names = sorted(path.name for path in folder.parent.iterdir())
    except OSError:  # no folder, no run
        return ()
    found = []
    for name in names:
        if (part := pattern.fullmatch(name)) and (pid := _holder(folder.parent / name)) is not None:
            who = f"node rank {part[1]}" if part[1].isdigit() else f"msparallel {part[1]}"
            found.append(f"{who} (pid {pid})" if pid > 0 else f"{who} (on another machine)")
    return tuple(found)


def _holder(path: Path) -> int | None:
    """The process with a lock on the file, 0 where it is on another machine, None where nobody has one."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            for pid, major, minor, inode in _FLOCK.findall(_proc_locks()):
                same = (int(major, 16), int(minor, 16)) == (os.major(status.st_dev), os.minor(status.st_dev))
                if int(inode) == status.st_ino and (same or _has_open(int(pid), status)):
                    return int(pid)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, _RANGE.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:  # a file that is gone again, or a file system without locks
        return None
    kind, _, _, _, pid = _RANGE.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _proc_locks() -> str:
    try:
        return _PROC_LOCKS.read_text(encoding="ascii", errors="replace")
    except OSError:  # hidden in some containers
        return ""


def _has_open(pid: int, status: os.stat_result) -> bool:
    """btrfs and overlayfs list another device number than a file tells."""
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.path.samestat(os.stat(descriptor), status):
                    return True
    return False
