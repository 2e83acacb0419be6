"""Outputs of a node's tools, by the name of the file that holds them.

In: a folder with such files, or with a sub-folder for each host. Out: Recordings; the names say what is in a file:

    npu-smi_info.txt        `npu-smi info`                     npu-smi_map.txt      `npu-smi info -m`
    npu-smi_TYPE_ID.txt     `npu-smi info -t TYPE -i ID`: health, ecc, board, temp, usages, common
    hccn_QUERY_ID.txt       `hccn_tool -i ID -QUERY -g`: link, link_stat, net_health, tls, pfc, gateway, ip, netdetect,
                            stat, fec, optical, ping
    hccn.conf               /etc/hccn.conf                     env.txt              variables, NAME=VALUE a line
    versions.txt            what is installed, NAME=VALUE      hostname.txt         name, addresses, time zone
    meminfo.txt             /proc/meminfo                      limits.txt           /proc/self/limits
    sysctl.txt              kernel parameters, NAME = VALUE    disk.txt             `df -Pk`
    devices.txt             device files and mounts            ports.txt            listening TCP ports, one a line
    clock.txt, firewall.txt answers of several commands, each after a line `$ COMMAND`

`msparallel doctor --save DIR` writes them. No file is needed: what is missing is not checked, and that is told.

>>> read_recordings(Path("collected"))[0].host  # doctest: +SKIP
'node_0'
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msparallel.devices.tool_text import MOST_BYTES, Place, wrong
from msparallel.errors import RunError, UserError, printable, short

NPU_TYPES = ("health", "ecc", "board", "temp", "usages", "common", "memory", "power")
HCCN_QUERIES = ("link_stat", "link", "net_health", "tls", "pfc", "gateway", "ip", "netdetect", "stat", "fec", "optical",
                "ping")  # fmt: skip
PLAIN = ("npu-smi_info.txt", "npu-smi_map.txt", "hccn.conf", "env.txt", "versions.txt", "hostname.txt", "meminfo.txt",
         "limits.txt", "sysctl.txt", "disk.txt", "devices.txt", "ports.txt", "clock.txt", "firewall.txt")  # fmt: skip
_NUMBERED = re.compile(rf"(?:npu-smi_(?:{'|'.join(NPU_TYPES)})|hccn_(?:{'|'.join(HCCN_QUERIES)}))_(\d{{1,4}})\.txt")
MOST_HOSTS = 4096
MOST_FILES = 2000
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,119})\s*=\s*(.*)")


class Record(NamedTuple):
    """One output. `shown`: what evidence calls it, a path or a command."""

    name: str
    shown: str
    text: str


class Value(NamedTuple):
    """Of a line NAME=VALUE."""

    text: str
    place: Place


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one host told.

    Attributes:
        live: this machine told it just now.
        left_out: files of the folder that were not read, with the reason.
    """

    host: str
    live: bool = False
    records: dict[str, Record] = field(default_factory=dict)
    left_out: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> Record | None:
        """The output of that name; None where it is missing or empty."""
        found = self.records.get(name)
        return found if found is not None and found.text.strip() else None

    def numbered(self, prefix: str) -> Iterator[tuple[int, Record]]:
        """Outputs `PREFIX_ID.txt` by id."""
        found = [(int(name[len(prefix) + 1 : -4]), record) for name, record in self.records.items()
                 if _NUMBERED.fullmatch(name) and name[: name.rindex("_")] == prefix]  # fmt: skip
        return iter(sorted(found))

    def values(self, name: str) -> dict[str, Value]:
        """Lines NAME=VALUE of an output, none where it is missing. Raises UserError for a line of another form."""
        found: dict[str, Value] = {}
        record = self.get(name)
        for number, line in enumerate(record.text.split("\n") if record else (), 1):
            place = Place(record.shown, number)
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            pair = _PAIR.fullmatch(line.strip())
            if pair is None:
                raise wrong(place, line, f"Lines of {name} are NAME=VALUE.")
            found[pair[1]] = Value(pair[2].strip(), place)
        return found

    def sections(self, name: str) -> dict[str, list[tuple[Place, str]]]:
        """Outputs of several commands in one file: command -> its lines."""
        record = self.get(name)
        found: dict[str, list[tuple[Place, str]]] = {}
        lines = found.setdefault("", [])
        for number, line in enumerate(record.text.split("\n") if record else (), 1):
            if line.startswith("$ "):
                lines = found.setdefault(line[2:].strip(), [])
            elif line.strip():
                lines.append((Place(record.shown, number), line.rstrip()))
        return {command: told for command, told in found.items() if told or command}


def is_record(name: str) -> bool:
    """Whether a file of that name is read."""
    return name in PLAIN or bool(_NUMBERED.fullmatch(name))


def read_recordings(folder: Path) -> list[Recording]:
    """Of a folder, or of its sub-folders, by name.

    Raises:
        UserError: no such folder, or none of the files above in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}\n  There is no such folder. `msparallel doctor --save DIR` makes one.")
    entries = _entries(folder)
    hosts = [path for path in entries if path.is_dir() and any(is_record(p.name) for p in _entries(path))]
    if len(hosts) > MOST_HOSTS:
        raise UserError(f"{folder}\n  {len(hosts):,} hosts; at most {MOST_HOSTS:,} are read.")
    folders = [folder, *hosts] if any(is_record(path.name) for path in entries if path.is_file()) else hosts
    found = [_read(path, folder) for path in folders]
    if not found:
        raise UserError(f"{folder}\n  Nothing that the doctor reads is in it, nor in a sub-folder: "
                        f"{', '.join(PLAIN[:6])} ... `msparallel doctor --save DIR` writes them.")  # fmt: skip
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[: MOST_FILES + MOST_HOSTS]
    except OSError as error:
        raise UserError(f"{folder}\n  It cannot be read: {error.strerror}.") from None


def _read(folder: Path, root: Path) -> Recording:
    records: dict[str, Record] = {}
    left_out: list[tuple[str, str]] = []
    for path in _entries(folder):
        shown = str(path)
        if path.is_dir():
            continue
        if not is_record(path.name):
            left_out.append((shown, "no name that the doctor reads"))
        elif not path.is_file():
            left_out.append((shown, "no regular file"))
        else:
            try:
                text, whole = _text(path)
            except OSError as error:
                left_out.append((shown, f"cannot be read: {error.strerror}"))
                continue
            if whole:
                records[path.name] = Record(path.name, printable(shown), text)
            else:
                left_out.append((shown, f"longer than {MOST_BYTES:,} bytes"))
    name = folder.resolve().name if folder != root else (_told_name(records) or folder.resolve().name)
    return Recording(host=printable(short(name, 64)), records=records, left_out=tuple(left_out))


def _text(path: Path) -> tuple[str, bool]:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    text = data[:MOST_BYTES].decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n")
    return text, len(data) <= MOST_BYTES


def _told_name(records: dict[str, Record]) -> str:
    told = re.search(r"^name=(\S{1,64})$", records["hostname.txt"].text, re.M) if "hostname.txt" in records else None
    return told[1] if told else ""


def write_recording(recording: Recording, folder: Path) -> list[Path]:
    """The same files in a folder, which is made.

    Raises:
        UserError: the folder holds something already.
        RunError: it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--save {folder}\n  There is something there already. Name a folder that is new or empty.")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, record in sorted(recording.records.items()):
            path = folder / name
            with open(path, "w", encoding="utf-8", errors="replace", opener=_private) as file:
                file.write(record.text if record.text.endswith("\n") else record.text + "\n")
            written.append(path)
    except OSError as error:
        raise RunError(f"--save {folder}\n  It cannot be written: {error.strerror}.") from None
    return written


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)
