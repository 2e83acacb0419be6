"""Options of `launch` and `supervise` that say what the nodes run, and where.

In: words of the command line. Out: what goes to the nodes; UserError for what none of them can have.

>>> workdir_of("/job")
'/job'
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msparallel.errors import UserError, short


def python_of(path: str | None) -> str:
    """--python, else this one. Raises UserError."""
    python = sys.executable if path is None else path
    if not python or python.startswith("-") or "=" in python or not python.isprintable():
        raise UserError(f"--python {short(python, 80)!r} is no program: give the path that every node has, for example "
                        "/opt/venv/bin/python.")  # fmt: skip
    return python


def workdir_of(path: str | None) -> str:
    """--workdir, else this folder. Raises UserError."""
    folder = os.getcwd() if path is None else path
    if not folder.startswith("/") or not folder.isprintable():
        raise UserError(f"--workdir {short(folder, 80)!r}: give the whole path, from / on, that every node has.")
    return folder


def shared_output(workdir: str, output_dir: str) -> None:
    """Raise UserError where output_dir is one folder for the nodes and another one here, where somebody looks at it."""
    if Path(output_dir).is_absolute() or os.path.realpath(workdir) == os.path.realpath(os.getcwd()):
        return
    raise UserError(
        f"--workdir {short(workdir, 200)}: train.output_dir is {short(output_dir, 200)}, from there another folder "
        "than from here, where the supervisor looks for checkpoints and logs. Give its whole path, for example "
        "train.output_dir=/shared/output."
    )
