"""The report page of a dry run: one HTML file that needs nothing else.

In: a DryRun. Out: HTML with its style, script and data inside; it opens from a disk, asks no network, and its own rule
(Content-Security-Policy) lets no other script run, whatever stands in a name.

>>> check_target("report.html")  # before the work
>>> write_page("report.html", job, load_hardware("atlas_800t_a2"), mindspore="2.9.0")
"""

from __future__ import annotations

import base64
import errno
import hashlib
import html
import json
import os
import stat
from pathlib import Path
from string import Template
from typing import Any

from msparallel.compile.dryrun import DryRun
from msparallel.errors import RunError
from msparallel.hardware import Hardware
from msparallel.report.page_data import page_data

_HERE = Path(__file__).parent
MARK = '<!doctype html>\n<meta name="generator" content="msparallel dryrun">'
"""How a page begins; a file that begins otherwise is never written over."""


def page_html(document: dict[str, Any]) -> str:
    """The page of `page_data`'s document."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    # Neither `</script>` nor `<!--` can stand in the data: every `<` is written as its code.
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    template = Template((_HERE / "page.html").read_text(encoding="utf-8"))
    return MARK + template.substitute(
        title=html.escape(document["title"]),
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=digest,
        data=data,
    )


def check_target(path: str) -> None:
    """See whether a page can be written. Raises RunError where it cannot, or where another file would be lost."""
    target = Path(path)
    try:
        try:
            found = target.stat()
        except FileNotFoundError:
            found = None
        if found is None:
            if target.is_symlink():
                raise OSError(errno.ENOENT, "it is a link to a file that is not there")
            if not target.parent.is_dir():
                raise OSError(errno.ENOENT, f"there is no folder {target.parent}")
            allowed = os.access(target.parent, os.W_OK | os.X_OK)
        else:
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a file")
            with target.open("rb") as file:
                if found.st_size and file.read(len(MARK)) != MARK.encode("ascii"):
                    raise OSError(errno.EEXIST, "another file is there, and it is not a report; it was left as it is")
            allowed = os.access(target, os.W_OK)
        if not allowed:
            raise OSError(errno.EACCES, "no permission to write here")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise _cannot(path, error) from None


def write_page(path: str, job: DryRun, hardware: Hardware | None = None, mindspore: str | None = None) -> None:
    """Write the page of a dry run, over an older one if need be. The other arguments are `page_data`'s.

    Raises:
        RunError: the file cannot be written, or another one is there.
    """
    check_target(path)
    text = page_html(page_data(job, hardware, mindspore))
    try:
        # A path that is no UTF-8 reaches the text as half a character.
        Path(path).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise _cannot(path, error) from None


def _cannot(path: str, error: OSError | ValueError) -> RunError:
    reason = error.strerror if isinstance(error, OSError) else error
    return RunError(f"--report {path}: cannot be written: {reason}.")
