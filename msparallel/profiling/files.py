"""Which files of a folder say something about speed, what each is, and whose.

In: a path. Out: `ProfileFile`s in a stated order, and the files that were left out, each with the reason. A file is
known by its header, not by its name. Symbolic links are not followed: a folder that somebody sent must not lead out of
itself.

The rank of a file is told by a folder (`rank_3`), by `profiler_info_3.json` or a database `ascend_*_profiler_3.db`
beside or above it, or by its own name; the `Device_id` in a table is the device on its node and only the last resort.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msparallel.errors import UserError, printable

Kind = Literal[
    "step_trace", "iterations", "kernels", "op_statistic", "communication", "matrix", "operator_memory",
    "memory_record", "power", "pipeline_summary", "pipeline_raw", "hccl_test", "counters", "counter_series",
]  # fmt: skip
HEAD_BYTES = 1 << 16
MOST_FILES = 100_000
_TABLES: tuple[tuple[frozenset[str], Kind], ...] = tuple((frozenset(columns), kind) for columns, kind in (
    (("Computing", "Free", "Communication(Not Overlapped)"), "step_trace"),
    (("Iteration ID", "Iteration Time(us)"), "iterations"),
    (("Name", "Start Time(us)", "Duration(us)", "Wait Time(us)"), "kernels"),
    (("Op Name", "Task Duration(us)"), "kernels"),
    (("kernel_name", "task_time(us)"), "kernels"),
    (("OP Type", "Core Type", "Count", "Total Time(us)"), "op_statistic"),
    (("Name", "Size(KB)", "Allocation Time(us)"), "operator_memory"),
    (("Component", "Timestamp(us)", "Total Allocated(MB)"), "memory_record"),
    (("Component", "Timestamp(us)", "Total Allocated(KB)"), "memory_record"),
    (("time", "dev_id", "power", "freq"), "power"),
    (("op_id", "op_type", "num_workers", "output_queue_usage_rate"), "pipeline_raw"),
    (("timestamp", "roce_tx_all_pkt_num"), "counter_series"),
    (("timestamp", "mac_tx_total_pkt_num"), "counter_series"),
))  # fmt: skip
_KNOWN_TABLES = (
    ("OP Type", "Ratio(%)", "communication statistics of msprof; communication.json says more"),
    ("API Name", "Time(us)", "times of host calls, which are not judged"),
    ("Name", "Host Self Duration(us)", "host times of operators; kernel_details.csv has those of the device"),
    ("Device_id", "Component", "memory of CANN's components, which is not judged"),
    ("Operation", "Occurrences", "dataset operations by name; minddata_pipeline_summary says where the queue is empty"),
)
_COUNTER = re.compile(rb"^(\[dev\w* ?\d+\])?\s*(mac|roce|nic)_\w+_(num|cnt)\s*:\s*\d", re.M)
_HCCL_TEST = re.compile(rb"^\s*data_size\(Bytes\):", re.M)
_SUMMARY_KEYS = (b"pipeline_ops", b"queue_empty_freq_pct", b"queue_utilization_pct")
_JSON_NAMES: dict[str, Kind] = {
    "communication.json": "communication", "cluster_communication.json": "communication",
    "communication_matrix.json": "matrix", "cluster_communication_matrix.json": "matrix",
}  # fmt: skip
_RANK_FOLDER = re.compile(r"^rank[_-]?(\d{1,6})(?:$|[_.-])")
_RANK_BESIDE = re.compile(r"^(?:profiler_info_|ascend_(?:pytorch|mindspore)_profiler_)(\d{1,6})\.(?:json|db)$")
_RANK_NAME = re.compile(r"(?:^rank[_-]?(\d{1,6})[_.-]|[_-]rank[_-]?(\d{1,6})(?=[_.-]|$)|"
                        r"^minddata_pipeline_\w+?_(\d{1,6})\.)")  # fmt: skip
_ORDER = re.compile(r"(\d{1,9})")


@dataclass(frozen=True)
class ProfileFile:
    """A file to read.

    Attributes:
        name: path below the folder that was given, as it is shown.
        rank: None where no name says it, and where it speaks of a whole cluster.
        place: the folder that a profiler wrote in one go; files of one place without a rank are one rank's.
    """

    path: Path
    name: str
    kind: Kind
    rank: int | None
    place: str

    @property
    def bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def profile_files(root: Path) -> tuple[list[ProfileFile], list[tuple[str, str]]]:
    """Files below `root` (or `root` itself), by name; and (name, reason) of what is not read.

    Raises:
        UserError: where `root` is not there, cannot be listed, or holds more than MOST_FILES files.
    """
    if root.is_file():
        return _sorted(root.parent, [root])
    shown = printable(str(root))
    if not root.is_dir():
        raise UserError(f"{shown}: there is no such folder or file. Name the folder that the profiler wrote.")
    try:
        next(os.scandir(root), None)
    except OSError as error:
        raise UserError(f"{shown}: cannot be listed: {error.strerror}.") from None
    paths: list[Path] = []
    for folder, _, names in os.walk(root):
        paths += [Path(folder, name) for name in names]
        if len(paths) > MOST_FILES:
            raise UserError(f"{shown}: holds more than {MOST_FILES:,} files. Name a folder with profiles alone.")
    return _sorted(root, paths)


def _sorted(root: Path, paths: list[Path]) -> tuple[list[ProfileFile], list[tuple[str, str]]]:
    beside = _ranks_beside(paths)
    found, left_out = [], []
    for name, path in sorted(((path.relative_to(root).as_posix(), path) for path in paths), key=_as_numbers):
        if _RANK_BESIDE.match(path.name) and path.suffix == ".json":
            continue  # it has said what it is there for
        kind, reason = kind_of(path)
        if kind is None:
            left_out.append((name, reason))
        else:
            rank, place = _rank_of(root, path, beside)
            found.append(ProfileFile(path, name, kind, rank, place))
    return found, left_out


def _as_numbers(pair: tuple[str, Path]) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _ORDER.split(pair[0]) if part]


def _ranks_beside(paths: list[Path]) -> dict[Path, int]:
    """Folder -> the one rank that a file in it names."""
    told: dict[Path, set[int]] = {}
    for path in paths:
        found = _RANK_BESIDE.match(path.name)
        if found:
            told.setdefault(path.parent, set()).add(int(found[1]))
    return {folder: ranks.pop() for folder, ranks in told.items() if len(ranks) == 1}


def _rank_of(root: Path, path: Path, beside: dict[Path, int]) -> tuple[int | None, str]:
    """Rank and place. The nearest word counts."""
    inside = path.relative_to(root)
    place = path.parent.parent if path.parent.name in ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output") else None
    shown = (place if place is not None and place.is_relative_to(root) else path.parent).relative_to(root).as_posix()
    own = _RANK_NAME.search(path.name)
    if own:
        return int(next(number for number in own.groups() if number)), shown
    folder = path.parent
    for _ in inside.parts:
        if folder in beside:
            return beside[folder], shown
        named = _RANK_FOLDER.match(folder.name)
        if named:
            return int(named[1]), shown
        folder = folder.parent
    return None, shown


def kind_of(path: Path) -> tuple[Kind | None, str]:
    """What a file is, or why it is not read."""
    if path.is_symlink():
        return None, "is a symbolic link"
    if not path.is_file():
        return None, "is not a regular file"
    if path.suffix == ".db":
        return None, "is a database; the profilers write the same as text with ExportType.Text"
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if not head.strip():
        return None, "is empty"
    if b"\0" in head:
        return None, "is not text"
    return _kind_of_head(path.name, head)


def _kind_of_head(name: str, head: bytes) -> tuple[Kind | None, str]:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"{"):
        if all(key in head for key in _SUMMARY_KEYS[:2]):
            return "pipeline_summary", ""
        if b'"Communication Time Info"' in head or b'"Communication Bandwidth Info"' in head:
            return "communication", ""
        if b'"Transport Type"' in head:
            return "matrix", ""
        if name in _JSON_NAMES:
            return _JSON_NAMES[name], ""
        return None, "holds JSON of another kind"
    if re.match(rb"\[\s*\{", start):
        return None, "is a timeline to look at; kernel_details.csv and step_trace_time.csv say the same in numbers"
    if _HCCL_TEST.search(head):
        return "hccl_test", ""
    if start.split(b",", 1)[0].strip(b'"') in (*_SUMMARY_KEYS, b"op_ids", b"op_names"):
        return "pipeline_summary", ""
    try:
        first = next(csv.reader([start.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")]), [])
    except csv.Error:
        first = []
    columns = {column.strip() for column in first}
    for wanted, kind in _TABLES:
        if wanted <= columns:
            return kind, ""
    for column, other, reason in _KNOWN_TABLES:
        if column in columns and other in columns:
            return None, reason
    if _COUNTER.search(head):
        return "counters", ""
    if len(columns) > 1 and name.endswith(".csv"):
        shown = printable(", ".join(column.strip() for column in first[:4]))[:80]
        return None, f"is a table with columns that no profiler's output has ({shown} ...)"
    return None, "is no profiler's output that is known here"


def reasons_by_count(left_out: list[tuple[str, str]]) -> list[tuple[str, int, str]]:
    """(reason, how many, first name), most frequent first."""
    count = Counter(reason for _, reason in left_out)
    first = {reason: name for name, reason in reversed(left_out)}
    return [(reason, number, first[reason]) for reason, number in count.most_common()]
