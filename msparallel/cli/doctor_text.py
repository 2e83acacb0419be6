"""A climbed ladder as the terminal shows it: a line a rung, then what is wrong, the cause first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from msparallel.doctor.finding import Finding
from msparallel.doctor.ladder import RUNGS, Climbed, Rung
from msparallel.errors import printable, short

_STATES = {"passed": "passed", "broken": "BROKEN", "not_possible": "not possible here", "not_reached": "not reached",
           "not_asked": "not asked"}  # fmt: skip
_MOST_ERRORS = 8
_MOST_OTHERS = 12
_MOST_EVIDENCE = 3


def climbed_text(climbed: Climbed, left_out: list[tuple[str, str]], recipe_name: str | None, *, width: int) -> str:
    """Rungs, findings, what to do next.

    Args:
        width: columns.
    """
    parts = ["\n".join(line for rung in climbed.rungs for line in _rung(rung, width))]
    errors, warnings, infos = (_alike(one for one in climbed.findings if one.severity == severity)
                               for severity in ("error", "warning", "info"))  # fmt: skip
    if errors:
        shown = [_whole(alike, width) for alike in errors[:_MOST_ERRORS]]
        more = len(errors) - _MOST_ERRORS
        parts.append("Root cause\n" + shown[0])
        if shown[1:]:
            parts.append("Also broken\n" + "\n\n".join(shown[1:]) + (f"\n  and {more} more" if more > 0 else ""))
    for title, others in (("Worth mending", warnings), ("Good to know", infos)):
        if others:
            shown = [_whole(alike, width) for alike in others[:_MOST_OTHERS]]
            more = len(others) - _MOST_OTHERS
            parts.append(f"{title}\n" + "\n\n".join(shown) + (f"\n  and {more} more" if more > 0 else ""))
    if left_out:
        lines = [line for name, reason in left_out[:5]
                 for line in _wrapped(f"{short(name, 200)}: {reason}", "  ", width)]  # fmt: skip
        more = len(left_out) - 5
        parts.append("Not read\n" + "\n".join([*lines, *([f"  and {more} more"] if more > 0 else [])]))
    parts.append(_next(climbed, recipe_name))
    return printable("\n\n".join(parts))


def _rung(rung: Rung, width: int) -> list[str]:
    told = rung.told + (f", {rung.seconds:.1f} s" if rung.seconds >= 1 and rung.state in ("passed", "broken") else "")
    lines = _wrapped(f"{RUNGS[rung.name]:<16} {_STATES[rung.state]:<18} {told}".rstrip(), "", width, hang=36)
    if rung.unchecked and rung.state in ("passed", "broken"):
        shown = ", ".join(rung.unchecked[:8]) + (f" and {len(rung.unchecked) - 8} "
                                                 "more" if len(rung.unchecked) > 8 else "")
        lines += _wrapped(f"not checked: {shown}", " " * 36, width)
    return lines


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """What one rule says of several hosts, together."""
    groups: dict[tuple[str, str | int], list[Finding]] = {}
    for place, one in enumerate(findings):
        same = [group for (rule, _), group in groups.items() if rule == one.rule and all(
            other.host != one.host for other in group)]  # fmt: skip
        if one.host is not None and same:
            same[0].append(one)
        else:
            groups[one.rule, place] = [one]
    return list(groups.values())


def _whole(alike: list[Finding], width: int) -> str:
    finding = alike[0]
    where = f", {finding.host}" if finding.host else ""
    lines = [f"  {finding.rule}{where}", *_wrapped(finding.cause, "  ", width)]
    for line in finding.evidence[:_MOST_EVIDENCE]:
        told = line.to_json()
        lines += _wrapped(short(f"{told['file']}:{told['line']}  {told['text']}", 240), "    ", width)
    if alike[1:]:
        hosts = [one.host or "" for one in alike[1:]]
        more = f" and {len(hosts) - 6} more" if len(hosts) > 6 else ""
        lines += _wrapped(f"Also on {', '.join(hosts[:6])}{more}.", "  ", width)
    return "\n".join([*lines, *_wrapped(f"Do: {finding.remedy}", "  ", width)])


def _next(climbed: Climbed, recipe_name: str | None) -> str:
    broken = climbed.broken
    if broken is not None:
        return f"Mend {RUNGS[broken.name]} first, then run the doctor again; the rungs above it stand on it."
    passed = [rung for rung in climbed.rungs if rung.state == "passed"]
    if not passed:
        return "Nothing could be checked."
    impossible = [RUNGS[rung.name] for rung in climbed.rungs if rung.state == "not_possible"]
    text = "No rung is broken." + (f" Not possible here: {', '.join(impossible)}." if impossible else "")
    if recipe_name and climbed.rungs[-1].state == "passed":
        return f"{text}\nNext: msparallel run {recipe_name}"
    return text


def _wrapped(text: str, indent: str, width: int, hang: int | None = None) -> list[str]:
    return textwrap.wrap(text, max(60, width), initial_indent=indent, break_on_hyphens=False,
                         subsequent_indent=indent if hang is None else " " * hang)  # fmt: skip
