"""Folders that are whole or absent, and JSON files that are on the disk before they count.

In: a path that is not there yet. Out: a folder beside it to write into, which takes its place at the end, or is gone
where something failed.

>>> with fresh_folder(Path("models/converted"), needed_bytes=10**9) as partial:  # doctest: +SKIP
...     write_json(partial / "config.json", {})
"""

from __future__ import annotations

import json
import os
import shutil
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
    partial = target.with_name(f"{target.name}.partial")
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
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


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Raises OSError."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
