"""Recorded outputs of npu-smi: one, a series, or those of several hosts.

In: a file or a folder. Out: a Recording: moments, each with the text of every host. Names tell what belongs together:
a time in a name is a time (`node_3_20261129-101530.txt`, also Unix seconds), `npu-smi`, `info` and `capture` say
nothing, a number that is left alone is a place in a series (`capture_002.txt`), anything else that is left is the host
(`npu-smi_node_3.txt`), and so is the name of a folder inside the folder. A file may hold one output after another, each
behind a line with its time, as `while sleep 5; do date +%FT%T; npu-smi info; done` writes them.

>>> read_recording(Path("captures")).hosts  # doctest: +SKIP
('node_0', 'node_1')
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from msparallel.cluster.hosts import is_address
from msparallel.devices.npu_smi import parse_info
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.doctor.recording import is_record
from msparallel.errors import UserError, printable, short
from msparallel.monitor.machines import Machine
from msparallel.monitor.run_files import open_regular

RECORDED = "recorded"
"""A host whose name nothing tells."""
MOST_FILES = 20_000
MOST_FILE_BYTES = 64 * 1024 * 1024
MOST_TOTAL_BYTES = 256 * 1024 * 1024

_DATE = re.compile(r"(20\d\d)[-_/]?(\d\d)[-_/]?(\d\d)[-_T ]?(\d\d)[-:_h]?(\d\d)[-:_m]?(\d\d)(?!\d)")
_UNIX = re.compile(r"(?<!\d)(1[5-9]\d{8}|2\d{9})(?!\d)")
_SPOKEN = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (?:[AP]M )?(?:\S{1,6} )?(20\d\d)")
"""What `date` prints under LC_ALL=C."""
_FILLER = re.compile(r"npu[-_]?smi|info|capture[sd]?|snapshot|sample|record(?:ed|ing)?", re.IGNORECASE)
_HEADER = re.compile(r"[>\s\\]*\|\s*npu-smi\s+\S")


@dataclass(frozen=True, kw_only=True)
class Capture:
    """One output. `time_s` None where nothing tells; `order`: its place among those of its host."""

    file: str
    host: str
    name: str
    text: str
    time_s: float | None
    order: tuple[int, str, int]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Attributes:
    moments: captures of every host that has one by then, oldest moment first.
    hosts: in the order of their names, numbers as numbers.
    """

    moments: tuple[tuple[Capture, ...], ...]
    hosts: tuple[str, ...]

    def machines(self, moment: int) -> tuple[Machine, ...]:
        """What npu-smi told by then; a text that is no table is a machine with an error."""
        return tuple(map(_machine, self.moments[moment]))


def _machine(capture: Capture) -> Machine:
    told = {"host": capture.host, "source": capture.name, "time_s": capture.time_s}
    try:
        return Machine(**told, table=parse_info(capture.text, capture.name))
    except UserError as error:
        return Machine(**told, error=printable(str(error)))


def read_recording(path: Path) -> Recording:
    """Read what is there.

    Raises:
        UserError: nothing is there, nothing of it is npu-smi's, or it is too large.
        DeviceUnavailable: npu-smi says in all of it that it cannot answer.
    """
    captures: list[Capture] = []
    total = 0
    for file, host in _files(path):
        data = _read(file)
        if (total := total + len(data)) > MOST_TOTAL_BYTES:
            raise UserError(f"{path}\n  More than {MOST_TOTAL_BYTES >> 20} MiB of captures; give it a part of them.")
        captures += _captures(file, path, host, data.decode("utf-8", "replace"))
    by_host: dict[str, list[Capture]] = {}
    for capture in _of_npu_smi(captures):
        by_host.setdefault(capture.host, []).append(capture)
    return Recording(moments=_moments(by_host), hosts=tuple(sorted(by_host, key=_natural)))


def _of_npu_smi(captures: list[Capture]) -> list[Capture]:
    """Without files that hold something else, as beside npu-smi's in a folder of `doctor --save`. What npu-smi says
    where it cannot answer stays.

    Raises UserError where there is no table: DeviceUnavailable, a RunError, where npu-smi said why.
    """
    kept, refused, tables = [], [], 0
    for capture in captures:
        try:
            parse_info(capture.text, capture.name)
            tables += 1
        except UserError as error:
            refused.append(error)
            other = Path(capture.file).name
            if is_record(other) and other != "npu-smi_info.txt":
                continue
            if not isinstance(error, DeviceUnavailable) and "|" not in capture.text:
                continue
        kept.append(capture)
    if not tables:
        raise min(refused, key=lambda error: not isinstance(error, DeviceUnavailable)) from None
    return kept


def _files(path: Path) -> list[tuple[Path, str]]:
    """(file, host that its folder names)."""
    if not os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        return [(path, "")]
    found = []
    for folder, host in [(path, ""), *((entry, entry.name) for entry in _entries(path) if _is(entry, stat.S_ISDIR))]:
        found += [(entry, host) for entry in _entries(folder) if _is(entry, stat.S_ISREG)]
    if not found:
        raise UserError(f"{path}\n  There is no file in it, nor in a folder of it: npu-smi info > {path}/node_0.txt")
    if len(found) > MOST_FILES:
        raise UserError(f"{path}\n  {len(found):,} files; at most {MOST_FILES:,} are read. Give it a part of them.")
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted((entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        raise UserError(f"{folder}\n  It cannot be read: {error.strerror}.") from None


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Of this kind itself; what a symbolic link leads to is not read."""
    try:
        return kind(path.lstat().st_mode)
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        file = open_regular(path)
        if file is None:
            raise UserError(f"{path}\n  This is no file: npu-smi info > npu-smi_info.txt")
        with file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_FILE_BYTES:
                raise UserError(f"{path}\n  {size:,} bytes; at most {MOST_FILE_BYTES:,} of a file are read.")
            return file.read(MOST_FILE_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}\n  It cannot be read: {why}.") from None


def _captures(file: Path, root: Path, host: str, text: str) -> Iterable[Capture]:
    time_s, left = _time_in(file.stem)
    own = _FILLER.sub("", left).strip("-_. ")
    words = [word for word in re.split(r"[-_. ]+", own) if word]
    if all(word.isdigit() for word in words) and not is_address(own):
        own = ""
    # The name of a lone file is as good as any, but it says nothing about a host.
    host = short(printable(host or (own if os.path.isdir(root) else "") or RECORDED), 64)
    place = int(words[-1][:12]) if words and words[-1].isdecimal() and words[-1].isascii() else 0
    for count, (line, told_s, part) in enumerate(_parts(text)):
        name = str(file) if line == 1 else f"{file} (from line {line})"
        yield Capture(file=str(file), host=host, name=name, text=part, order=(place, file.name, count),
                      time_s=told_s if told_s is not None else time_s if count == 0 else None)  # fmt: skip


def _parts(text: str) -> list[tuple[int, float | None, str]]:
    """(first line, time, text) of each output in a file."""
    lines = text.split("\n")
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    if len(headers) < 2:
        return [(1, _time_above(lines[: headers[0]]) if headers else None, text)]
    starts = []
    for header in headers:
        start = header
        while start > 0 and not lines[start - 1].lstrip("> \\").startswith("|"):
            start -= 1
        starts.append(start)
    ends = [*starts[1:], len(lines)]
    return [(start + 1, _time_above(lines[start:header]), "\n".join(lines[start:end]))
            for start, header, end in zip(starts, headers, ends, strict=True)]  # fmt: skip


def _time_above(lines: list[str]) -> float | None:
    for line in reversed(lines[-8:]):
        if len(line) <= 200 and (time_s := _time_in(line)[0]) is not None:
            return time_s
    return None


def _time_in(text: str) -> tuple[float | None, str]:
    """Unix seconds that a text names (as this machine's clock has them), and the text without it."""
    try:
        if found := _DATE.search(text):
            told = datetime(*map(int, found.groups())).timestamp()
        elif found := _UNIX.search(text):
            told = float(found[1])
        elif found := _SPOKEN.search(text):
            told = datetime.strptime(" ".join(found.groups()), "%b %d %H:%M:%S %Y").timestamp()
        else:
            return None, text
    except (ValueError, OverflowError, OSError):  # the 45th of a month
        return None, text
    return told, text[: found.start()] + text[found.end() :]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """node_2 before node_10."""
    return [(0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
            for part in re.split(r"(\d{1,12})", name)]  # fmt: skip


def _moments(by_host: dict[str, list[Capture]]) -> tuple[tuple[Capture, ...], ...]:
    hosts = sorted(by_host, key=_natural)
    if all(capture.time_s is not None for captures in by_host.values() for capture in captures):
        times = sorted({capture.time_s or 0.0 for captures in by_host.values() for capture in captures})
        moments = []
        series = {host: sorted(by_host[host], key=lambda c: (c.time_s or 0.0, c.order)) for host in hosts}
        at = dict.fromkeys(hosts, -1)
        for now in times:
            for host in hosts:
                while at[host] + 1 < len(series[host]) and (series[host][at[host] + 1].time_s or 0.0) <= now:
                    at[host] += 1
            moments.append(tuple(series[host][at[host]] for host in hosts if at[host] >= 0))
        return tuple(moments)
    series = {host: sorted(by_host[host], key=lambda c: c.order) for host in hosts}
    length = max(map(len, series.values()))
    return tuple(tuple(series[host][min(index, len(series[host]) - 1)] for host in hosts) for index in range(length))
