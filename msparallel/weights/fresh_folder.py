"""Folders that are whole or absent, and JSON files that are on the disk before they count.

In: a path that is not there yet. Out: a folder beside it to write into, which takes its place at the end, or is gone
where something failed.

>>> with fresh_folder(Path("models/converted"), needed_bytes=10**9) as partial:  # doctest: +SKIP
...     write_json(partial / "config.json", {})
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msparallel.errors import RunError, UserError


@contextmanager
def fresh_folder(target: Path, needed_bytes: int) -> Iterator[Path]:
    """A folder beside `target` that takes its place when all is written, and is gone when something fails.

    Raises:
        UserError: `target` holds something.
        RunError: less than `needed_bytes` free, or it cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}\n  It holds something already. Name a folder that is not there.")
    try:
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
        partial = _begin(target)
    except OSError as error:
        raise RunError(f"{target}\n  It cannot be written: {error.strerror or error}.") from error
    try:
        free = shutil.disk_usage(partial).free
        if free < needed_bytes:
            raise RunError(f"{target}\n  It takes {needed_bytes:,} bytes and {free:,} are free there.")
        yield partial
        if target.exists():
            target.rmdir()
        partial.rename(target)
    except OSError as error:
        raise RunError(f"{target}\n  It cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _begin(target: Path) -> Path:
    """A folder of this process's own beside `target`; what a killed process of this machine left there is removed."""
    begin = f".{target.name}.{socket.gethostname()}-"
    for left in target.parent.glob(f"{glob.escape(begin)}*.partial"):
        process = left.name[len(begin) : -len(".partial")]
        if process.isdigit() and not _lives(int(process)):
            shutil.rmtree(left)
    partial = target.parent / f"{begin}{os.getpid()}.partial"
    partial.mkdir()
    return partial


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # another user's, or no number of a process
    return True


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Raises OSError."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
