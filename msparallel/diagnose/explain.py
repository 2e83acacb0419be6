"""Which rule explains which: causes, consequences and the clocks between them.

In: every rule that was seen, with where and when. Out: rule id -> id of the rule that explains it, None for a cause.

- A cause explains where it began not more than `LONGEST_WAIT_S` before and not later, with `CLOCKS_DIFFER_S` for
  machines whose clocks differ; a generic one, which may as well be the end of a process that waited, only where it
  stands first.
- What is `unknown` explains time-outs only where it stands well before the first of them. In turn every error near an
  unknown line explains it.
- What `sums_up` is explained by any other error of its file, or by one before it.

>>> explanations({})
{}
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.diagnose.rule import CAUSES, Rule
from msparallel.diagnose.scan import SAME_MOMENT_LINES, SAME_MOMENT_S, Hit, Scan

CLOCKS_DIFFER_S = 600.0
"""Also the time in which a cause may be logged after its first consequence: a survivor can time out sooner than the
process that causes it gets to writing."""
LONGEST_WAIT_S = 86400.0
"""What is older belongs to another job, or to an attempt of yesterday."""


@dataclass(frozen=True)
class Seen:
    """A rule on a rank.

    Attributes:
        order: number of the file.
    """

    hit: Hit
    scan: Scan
    order: int
    rank: int | None

    @property
    def key(self) -> tuple[float, int, int]:
        """Earlier ones first; those without a stamp last."""
        return (float("inf") if self.hit.time_s is None else self.hit.time_s, self.order, self.hit.line)

    @property
    def is_last(self) -> bool:
        """Whether its process wrote nothing more."""
        return self.scan.ends_with(self.hit)

    @property
    def severity(self) -> str:
        """The rule's; of an unknown line, what is the end of its process is an error."""
        rule = self.hit.rule
        return "error" if rule.unknown and rule.severity == "warning" and self.is_last else rule.severity


def explanations(seen: dict[str, list[Seen]]) -> dict[str, str | None]:
    """For each rule the first of those that explain it; a cause goes before another consequence.

    Args:
        seen: groups in the order of their keys.
    """
    waits = [group[0].hit.time_s for group in seen.values() if group[0].hit.rule.waits]
    first_wait_s = min((time_s for time_s in waits if time_s is not None), default=None)
    found: dict[str, str | None] = {}
    for name, group in seen.items():
        effect = group[0]
        able = [other for other, causes in seen.items() if other != name and causes[0].severity == "error"
                and _explains(causes[0], effect, first_wait_s)]  # fmt: skip
        found[name] = min(able, key=lambda other: (_is_weak(seen[other][0].hit.rule), seen[other][0].key), default=None)
    return _without_circles(found, seen)


def _is_weak(rule: Rule) -> tuple[bool, bool]:
    return (rule.sums_up, bool(rule.consequence_of) and not rule.unknown)


def _explains(cause: Seen, effect: Seen, first_wait_s: float | None) -> bool:
    if cause.hit.rule.sums_up and effect.hit.rule.generic:
        return cause.hit.rule.id in effect.hit.rule.consequence_of
    if effect.hit.rule.sums_up:
        return cause.order == effect.order or _in_time(cause, effect)
    if effect.hit.rule.waits and (cause.hit.rule.unknown or cause.hit.rule.sums_up):
        time_s = cause.hit.time_s
        known = time_s is not None and first_wait_s is not None
        return known and cause.is_last and time_s < first_wait_s - SAME_MOMENT_S
    return effect.hit.rule.may_follow(cause.hit.rule) and _in_time(cause, effect)


def _in_time(cause: Seen, effect: Seen) -> bool:
    """Whether a cause began early enough."""
    rule = cause.hit.rule
    if effect.hit.rule.unknown and (rule.generic or CAUSES in rule.consequence_of):
        slack_s, slack_lines = SAME_MOMENT_S, SAME_MOMENT_LINES
    else:
        slack_s, slack_lines = (0.0, 0) if rule.generic else (CLOCKS_DIFFER_S, None)
    if cause.order == effect.order and slack_lines is not None:
        return cause.hit.line <= effect.hit.line + slack_lines
    if cause.hit.time_s is None or effect.hit.time_s is None:
        return not rule.generic or cause.key < effect.key
    return -LONGEST_WAIT_S <= cause.hit.time_s - effect.hit.time_s <= slack_s


def _without_circles(found: dict[str, str | None], seen: dict[str, list[Seen]]) -> dict[str, str | None]:
    """The same, where the earliest member of a circle is a cause."""
    for name in found:
        path, at = [name], found[name]
        while at is not None and at not in path:
            path.append(at)
            at = found[at]
        if at is not None:
            found[min(path[path.index(at) :], key=lambda one: seen[one][0].key)] = None
    return found
