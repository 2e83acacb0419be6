"""A Diagnosis as the terminal shows it: the cause in full, consequences in a line each."""

from __future__ import annotations

import textwrap

from msparallel.diagnose.diagnose import Diagnosis
from msparallel.diagnose.findings import Finding, clock
from msparallel.errors import printable, short

_MOST_CAUSES = 5
_MOST_LEFT_OUT = 5


def diagnosis_text(found: Diagnosis, *, width: int) -> str:
    """Short, ordered: root cause first.

    Args:
        width: columns.
    """
    causes = [finding for finding in found.findings if finding.explained_by is None]
    errors = [finding for finding in causes if finding.severity == "error"]
    others = [finding for finding in causes if finding.severity != "error"]
    followed = [finding for finding in found.findings if finding.explained_by is not None]
    parts = [f"{_count(found.files, 'log')} read, {_size(found.bytes_read)}, {_count(found.ranks, 'rank')}"]
    if not errors:
        parts.append("No error found.")
    if errors:
        parts.append("Root cause\n" + _whole(errors[0], width))
    if errors[1:]:
        shown = [_whole(finding, width) for finding in errors[1:_MOST_CAUSES]]
        more = len(errors) - _MOST_CAUSES
        parts.append("Also found, later\n" + "\n\n".join(shown) + (f"\n  and {more} more" if more > 0 else ""))
    if others:
        parts.append("Worth a look\n" + "\n".join(_line(finding, width) for finding in others))
    if followed:
        parts.append("Consequences\n" + "\n".join(_line(finding, width) for finding in followed))
    if found.left_out:
        lines = [f"  {short(printable(name), 100)}: {reason}" for name, reason in found.left_out[:_MOST_LEFT_OUT]]
        more = len(found.left_out) - _MOST_LEFT_OUT
        parts.append("Not read\n" + "\n".join([*lines, *([f"  and {more} more"] if more > 0 else [])]))
    return "\n\n".join(parts)


def _whole(finding: Finding, width: int) -> str:
    lines = [f"  {finding.rule.id}{_where(finding)}", *_wrapped(finding.root_cause, "  ", width)]
    for line in finding.evidence:
        lines += _wrapped(short(f"{printable(line.file)}:{line.line}  {line.text}", 240), "    ", width)
    lines += _wrapped(f"Do: {finding.rule.remedy}", "  ", width)
    return "\n".join([*lines, f"  See: {finding.rule.doc}"])


def _where(finding: Finding) -> str:
    words = [f"rank {finding.rank}"] if finding.rank is not None else []
    words += [f"{len(finding.ranks)} ranks"] if len(finding.ranks) > 1 else []
    words += [clock(finding.time_s) or ""] if finding.time_s is not None else []
    return "".join(f", {word}" for word in words)


def _line(finding: Finding, width: int) -> str:
    place = finding.evidence[0]
    return short(f"  {finding.rule.id}{_where(finding)}; {printable(place.file)}:{place.line}", max(40, width))


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(40, width), initial_indent=indent, subsequent_indent=indent,
                         break_on_hyphens=False)  # fmt: skip


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
