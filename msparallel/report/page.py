"""A report page: one HTML file that needs nothing else.

In: the kind of page, and the JSON document that it draws. Out: HTML with its style, script and data inside; it opens
from a disk, asks no network, and its own rule (Content-Security-Policy) lets no other script run, whatever stands in a
name. What all kinds share stands in page.html, page.css and page.js; each has files of its own beside them.

>>> check_target("report.html", DRY_RUN)  # before the work
>>> write_page("report.html", DRY_RUN, dryrun_data(job, load_hardware("atlas_800t_a2"), mindspore="2.9.0"))
"""

from __future__ import annotations

import base64
import errno
import hashlib
import html
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from msparallel.errors import RunError, UserError

_HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Attributes:
    verb: the command that writes it.
    heading: begins the window's title.
    body: HTML of what stands below the head.
    styles, scripts: files behind the shared ones, in order.
    """

    verb: str
    heading: str
    body: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    @property
    def mark(self) -> str:
        """How such a page begins; a file that begins otherwise is never written over."""
        return f'<!doctype html>\n<meta name="generator" content="msparallel {self.verb}">'


DRY_RUN = Kind(verb="dryrun", heading="Dry run", body="dryrun.html", styles=("dryrun.css",), scripts=("dryrun.js",))
SIMULATION = Kind(
    verb="simulate",
    heading="Simulation",
    body="simulation.html",
    styles=("simulation.css",),
    scripts=("chart.js", "timeline.js", "simulation.js"),
)
PLAN = Kind(
    verb="plan",
    heading="Plan",
    body="plan.html",
    styles=("dryrun.css", "simulation.css", "plan.css"),
    scripts=("plan.js",),
)
PROFILE = Kind(
    verb="profile",
    heading="Profile",
    body="profile.html",
    styles=("dryrun.css", "simulation.css", "profile.css"),
    scripts=("profile.js",),
)


def page_html(kind: Kind, document: dict[str, Any]) -> str:
    """The page of a document; its "title" is the window's, too."""
    script = _joined("page.js", *kind.scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    # Neither `</script>` nor `<!--` can stand in the data: every `<` is written as its code.
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    return kind.mark + Template(_joined("page.html")).substitute(
        heading=kind.heading,
        verb=kind.verb,
        title=html.escape(document["title"]),
        style=_joined("page.css", *kind.styles),
        body=_joined(kind.body),
        script=script,
        script_hash=digest,
        data=data,
    )


def _joined(*names: str) -> str:
    return "".join((_HERE / name).read_text(encoding="utf-8") for name in names)


def check_target(path: str, kind: Kind) -> None:
    """See whether a page can be written. Raises UserError where it cannot, or where another file would be lost."""
    target, mark = Path(path), kind.mark.encode("ascii")
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
                if found.st_size and file.read(len(mark)) != mark:
                    what = f"another file is there, and it is not a report of `msparallel {kind.verb}`"
                    raise OSError(errno.EEXIST, f"{what}; it was left as it is")
            allowed = os.access(target, os.W_OK)
        if not allowed:
            raise OSError(errno.EACCES, "no permission to write here")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise UserError(_cannot(path, error)) from None


def write_page(path: str, kind: Kind, document: dict[str, Any]) -> None:
    """Write the page of a document, whole or not at all, over an older one of its kind if need be.

    Raises:
        UserError: see `check_target`.
        RunError: the file cannot be written to its end.
    """
    check_target(path, kind)
    text = page_html(kind, document)
    target = Path(path).resolve()  # a link stays one
    partial = target.with_name(f".{target.name}.partial")
    try:
        # A path that is no UTF-8 reaches the text as half a character.
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunError(_cannot(path, error)) from None


def _cannot(path: str, error: OSError | ValueError) -> str:
    reason = error.strerror if isinstance(error, OSError) else error
    return f"--report {path}: cannot be written: {reason}."
