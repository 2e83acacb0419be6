"""Files that are computed once and shared by every process that needs them.

In: how to load a value from the cache directory and how to build it there. Out: the value. One process builds while
the others on the machine wait; files appear whole or not at all; what is damaged is built again, with a notice.

>>> tokenizer = cached(cache_dir, load=lambda: read(path), build=lambda: write(path))   # doctest: +SKIP
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from msparallel.errors import RunError

T = TypeVar("T")


class DamagedCache(Exception):
    """A cached file that is there and does not hold what it says; the text names the file and what is wrong."""


def notice(text: str) -> None:
    """One line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr, flush=True)


def cached(cache_dir: Path, *, load: Callable[[], T], build: Callable[[], None]) -> T:
    """`load()`, after `build()` where the files are missing or damaged.

    `load` raises FileNotFoundError where there is nothing and DamagedCache where there is something wrong.
    Raises RunError where the cache directory cannot be written.
    """
    try:
        return load()
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise RunError(f"{error.filename or cache_dir}: cannot be read: {error.strerror or error}.") from error
    except DamagedCache:
        pass  # looked at again under the lock: another process may be building it right now
    with _exclusive(cache_dir):
        try:
            return load()
        except FileNotFoundError:
            pass
        except DamagedCache as error:
            notice(f"{error} It is built again.")
        build()
        return load()


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` when the block ends without an exception, and not at all otherwise.

    Raises RunError where it cannot be written (no space, no permission).
    """
    temporary = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Hold the directory's lock; the system frees it when the process ends, however it ends."""
    lock = directory / ".lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    except OSError as error:
        raise _cannot_write(lock, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notice(f"{directory}: another process is preparing the data; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            # A file system without locks (some network mounts). Work may be done twice; files still appear whole.
            notice(f"{directory}: this file system has no locks, so every process prepares the data by itself.")
        else:
            # Nobody else on this machine is writing here now: what is unfinished was left by a killed process.
            for leftover in directory.glob(f"*.{socket.gethostname()}.*.tmp"):
                leftover.unlink(missing_ok=True)
        yield


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"{path}: cannot be written: {error.strerror or error}. The data cache needs a place with room.")
