"""Which files of a folder are logs, and of what kind each is.

In: a path. Out: `LogFile`s in a stated order, and the files that were left out, each with the reason. Symbolic links
are not followed: a folder that somebody sent must not lead out of itself.

The kind is told by name where the name is one of msrun's, CANN's or the system's, else by the first bytes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from msparallel.diagnose.reader import as_text, encoding_of, head_of
from msparallel.diagnose.rule import Kind
from msparallel.errors import UserError, printable

_ARCHIVES = {".tar", ".tgz", ".zip", ".xz", ".bz2", ".zst", ".7z", ".rar"}
_SUFFIXES = {"", ".log", ".txt", ".out", ".err"}
_BY_NAME: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"^sched(uler)?[_\w.-]*\.(log|txt)$"), "scheduler"),
    (re.compile(r"^plog-|^device-(os-)?\d+[_-]"), "plog"),
    (re.compile(r"^npu[-_]?smi"), "npu_smi"),
    (re.compile(r"^((vmcore-)?dmesg|messages|syslog|kern(\.log)?|kmsg|host_kernel)\b"), "dmesg"),
    (re.compile(r"(^|[_-])(worker|rank)[_-]?\d+([._-]|$)"), "worker"),
)
_BY_HEAD: tuple[tuple[re.Pattern[bytes], Kind], ...] = (
    (re.compile(rb"^[|+][^\n]*npu-smi|^\|\s*NPU\s+Name|^\s*NPU ID\s+:\s*\d|^dcmi module initialize", re.M), "npu_smi"),
    (re.compile(rb"^\w{3} +\d+ \d\d:\d\d:\d\d \S+ \S+:|^\[ *\d+\.\d{6}\] |^<\d+>\["
                rb"|^\[[\d.:-]{20,30}\] \[ascend\] ", re.M), "dmesg"),
)
_RANK = re.compile(r"(?:^|[_-])(?:worker|rank)[_-]?(\d{1,6})(?=[._-]|$)")
_RANK_FOLDER = re.compile(r"^rank[_-]?(\d{1,6})$")


@dataclass(frozen=True)
class LogFile:
    """A file to read.

    Attributes:
        name: path below the folder that was given, as it is shown.
        rank: the rank that its name says, None where it says none.
    """

    path: Path
    name: str
    kind: Kind
    rank: int | None


def log_files(root: Path) -> tuple[list[LogFile], list[tuple[str, str]]]:
    """Logs below `root` (or `root` itself), by name; and (name, reason) of what is not read.

    Raises:
        UserError: where `root` is not there, or cannot be listed.
    """
    if root.is_file():
        return _sorted([(root, root.name)], [])
    if not root.is_dir():
        raise UserError(f"{printable(str(root))}: there is no such folder or file. Name the folder that holds the "
                        "logs, for example the --log_dir of msrun.")  # fmt: skip
    try:
        next(os.scandir(root), None)
    except OSError as error:
        raise UserError(f"{printable(str(root))}: cannot be listed: {error.strerror}.") from None
    closed: list[OSError] = []
    paths: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=closed.append):
        paths += [Path(folder, name) for name in names]
        paths += [path for path in (Path(folder, name) for name in folders) if path.is_symlink()]
    left_out = [(os.path.relpath(error.filename, root), f"cannot be listed: {error.strerror}") for error in closed]
    return _sorted([(path, path.relative_to(root).as_posix()) for path in paths], left_out)


def _sorted(paths: list[tuple[Path, str]],
            left_out: list[tuple[str, str]]) -> tuple[list[LogFile], list[tuple[str, str]]]:  # fmt: skip
    found: list[LogFile] = []
    for path, name in sorted(paths, key=lambda pair: _numbers_as_numbers(pair[1])):
        reason = _not_a_log(path)
        head = b""
        if reason is None:
            try:
                head = head_of(path)
            except (OSError, EOFError) as error:
                reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if reason is None and encoding_of(head) is None:
            reason = "is not text"
        if reason is None:
            found.append(LogFile(path, name, kind_of(path.name, as_text(head)), rank_of(path)))
        else:
            left_out.append((name, reason))
    return found, left_out


def _numbers_as_numbers(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name) if part]


def _not_a_log(path: Path) -> str | None:
    if path.is_symlink():
        return "is a symbolic link"
    if not path.is_file():
        return "is not a regular file"
    name = path.name[:-3] if path.name.endswith(".gz") else path.name
    name = re.sub(r"\.\d{1,9}$", "", name)  # rotated: messages.1, worker_0.log.2
    suffix = Path(name).suffix.lower()
    if suffix in _ARCHIVES:
        return "is an archive; unpack it first"
    known = suffix in _SUFFIXES or any(form.search(name) for form, _ in _BY_NAME)
    return None if known else f"{suffix} is not the suffix of a log"


def kind_of(name: str, head: bytes) -> Kind:
    """Kind of a file by its name, else by its first bytes.

    >>> kind_of("worker_3.log", b""), kind_of("x.txt", b"[ 1197.584409] usb 1-1: new device")
    ('worker', 'dmesg')
    """
    for form, kind in _BY_NAME:
        if form.search(name):
            return kind
    return next((kind for form, kind in _BY_HEAD if form.search(head)), "log")


def rank_of(path: Path) -> int | None:
    """The rank in `worker_3.log`, `rank3.txt` or a folder `rank_3`."""
    found = _RANK.search(path.name) or _RANK_FOLDER.match(path.parent.name)
    return int(found[1]) if found else None
