"""Where a verb's `-o FILE` goes.

In: a path and a text. Out: the whole file, unless another one is there that differs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path

from msparallel.errors import UserError


def write_output(path: str, text: str, force: bool) -> None:
    """Write a text file. Raises UserError where it cannot be written, or another file stands there."""
    target = Path(path)
    try:
        if not force and target.is_file() and target.read_bytes() != text.encode("utf-8"):
            raise UserError(f"{path}: this file exists and differs; it was left as it is. --force overwrites it.")
        if target.is_file() or not os.path.lexists(target):
            _write_whole(Path(os.path.realpath(target)), text)
        else:  # a pipe, a terminal
            target.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be written: {reason}.") from None


def _write_whole(target: Path, text: str) -> None:
    """All of it or nothing: a disk that is full neither cuts an older file nor leaves an empty one."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if target.exists():
            shutil.copymode(target, name)
        else:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def next_command(verb: str, path: str) -> str:
    """The command to type next, with the path as one that no command takes for a name or an option."""
    plain = os.sep in path or (path.endswith((".yaml", ".yml")) and not path.startswith("-"))
    return f"msparallel {verb} {shlex.quote(path if plain else os.path.join(os.curdir, path))}"
