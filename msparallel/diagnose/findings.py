"""What many files say, put in order: the cause, then what followed from it.

In: the scans of all files. Out: `Finding`s, the root cause first. How it is decided:

1. Generic rules (a Python exception, an error code nobody knows) give way to exact ones in the same file.
2. An error line that no rule knows is an error where its process wrote nothing more, else a warning.
3. A time-out on many ranks with no cause beside it asks for a rank that says nothing: one that the others name, or
   whose log ends before they gave up. That rank is the finding, `rank_went_silent`.
4. A rule is a consequence where a rule that its `consequence_of` names is present and did not begin later than it
   (`explain.py`).
5. Errors that are hours apart are of several attempts: a warning says so.
6. What is left is ordered by severity, then by time; the first is the root cause.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonprefix
from typing import Any

from msparallel import finding as contract
from msparallel.diagnose.explain import Seen, explanations
from msparallel.diagnose.rule import Rule
from msparallel.diagnose.scan import MOST_EVIDENCE, SAME_MOMENT_S, SYSLOG_YEAR, Hit, Scan
from msparallel.diagnose.times import as_year
from msparallel.finding import SEVERITIES, Evidence, Severity

SILENT_BEFORE_S = 5.0
FAR_APART_S = 6 * 3600.0
"""More than HCCL_EXEC_TIMEOUT can be on the chips that bound it (17340 s)."""


@dataclass(frozen=True)
class Finding:
    """One fault of the job.

    Attributes:
        severity: the rule's; `info` for a consequence.
        rank: the rank to look at: the first that failed, or the one that the others wait for.
        ranks: all ranks that the rule was found on.
        time_s: of its first line.
        explained_by: id of the rule that it follows from, None for a cause.
    """

    rule: Rule
    severity: Severity
    root_cause: str
    rank: int | None
    ranks: tuple[int, ...]
    time_s: float | None
    evidence: tuple[Evidence, ...]
    explained_by: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of `diagnose --json`."""
        shared = contract.Finding(rule=self.rule.id, severity=self.severity, root_cause=self.root_cause,
                                  remedy=self.rule.remedy, rank=self.rank, evidence=self.evidence)  # fmt: skip
        return {**shared.to_json(), "ranks": list(self.ranks), "time": clock(self.time_s),
                "consequence_of": self.explained_by, "doc": self.rule.doc}  # fmt: skip


def clock(time_s: float | None) -> str | None:
    """A stamp as its machine wrote it; without the year where the log had none."""
    if time_s is None:
        return None
    told = time.gmtime(time_s)
    return time.strftime("%m-%d %H:%M:%S" if told.tm_year <= SYSLOG_YEAR else "%Y-%m-%d %H:%M:%S", told)


def findings(scans: list[Scan], rules: tuple[Rule, ...]) -> list[Finding]:
    """All findings, the root cause first."""
    _put_year_in(scans)
    rank_of = _ranks_of_processes(scans)
    seen: dict[str, list[Seen]] = {}
    for order, scan in enumerate(scans):
        for hit in _without_generic(scan):
            seen.setdefault(hit.rule.id, []).append(Seen(hit, scan, order, rank_of(scan, hit)))
    for name, group in seen.items():
        last_words = [one for one in group if one.is_last]
        seen[name] = sorted(last_words if group[0].hit.rule.unknown and last_words else group, key=lambda one: one.key)
    by_id = {rule.id: rule for rule in rules}
    explained = explanations(seen)
    found = [_finding(by_id[name], group, explained[name]) for name, group in seen.items()]
    unexplained = [group for name, group in seen.items() if by_id[name].waits and explained[name] is None]
    silent = _silent_rank(by_id.get("rank_went_silent"), [one for group in unexplained for one in group], seen, scans)
    if silent is not None:
        follow = [finding.explained_by is None and finding.rule.may_follow(silent.rule) for finding in found]
        found = [_followed(finding, silent.rule.id) if follows else finding
                 for finding, follows in zip(found, follow, strict=True)] + [silent]  # fmt: skip
    apart = _far_apart(by_id.get("errors_far_apart"), seen)
    found += [apart] if apart is not None else []
    if any(one.severity == "error" for one in found):
        found = [one for one in found if not (one.rule.at_end and one.rule.severity == "warning")]
    place = {rule.id: number for number, rule in enumerate(rules)}
    return sorted(found, key=lambda one: (one.explained_by is not None, SEVERITIES.index(one.severity),
                                          float("inf") if one.time_s is None else one.time_s,
                                          place[one.rule.id]))  # fmt: skip


def _ranks_of_processes(scans: list[Scan]) -> Callable[[Scan, Hit], int | None]:
    """Which rank a hit speaks for: the one of its line, of its file, or of another file of the same process.

    A process id is of one host: of several files with that id the one in the nearest folder counts.
    """
    of_pid: dict[int, list[tuple[tuple[str, ...], int]]] = {}
    for scan in scans:
        if scan.pid is not None and scan.rank is not None:
            of_pid.setdefault(scan.pid, []).append((scan.file.path.parts, scan.rank))

    def nearest(pid: int, parts: tuple[str, ...]) -> int | None:
        known = of_pid.get(pid, ())
        return max(known, key=lambda one: len(commonprefix([one[0], parts])), default=(parts, None))[1]

    def rank_of(scan: Scan, hit: Hit) -> int | None:
        rank = hit.rank if hit.rank is not None else scan.rank
        pid = int(hit.groups["pid"]) if "pid" in hit.groups else scan.pid
        return nearest(pid, scan.file.path.parts) if rank is None and pid is not None else rank

    return rank_of


def _put_year_in(scans: list[Scan]) -> None:
    """Syslog's stamps get the year that brings them nearest to the end of the job."""
    ends = [scan.last_s for scan in scans if scan.last_s is not None and time.gmtime(scan.last_s).tm_year > SYSLOG_YEAR]
    if not ends:
        return
    end = max(ends)
    year = time.gmtime(end).tm_year
    for scan in scans:
        for hit in scan.hits.values():
            stamp = hit.time_s
            if stamp is not None and time.gmtime(stamp).tm_year == SYSLOG_YEAR:
                years = (as_year(stamp, one) for one in (year - 1, year, year + 1))
                hit.time_s = min(years, key=lambda moment: abs(moment - end))


def _without_generic(scan: Scan) -> list[Hit]:
    """Hits of a file: generic ones only where no exact one stands near or before; of two bursts of unknown lines the
    one with which the process ended."""
    exact = [hit for hit in scan.hits.values() if not hit.rule.generic and hit.rule.severity == "error"]
    if exact:
        first = min(exact, key=lambda hit: hit.line)
        return [hit for hit in scan.hits.values() if not hit.rule.generic or _well_before(hit, first)]
    late = {name: hit for name, hit in scan.late_hits.items() if scan.ends_with(hit)}
    return [late.get(name, hit) for name, hit in scan.hits.items()]


def _well_before(hit: Hit, other: Hit) -> bool:
    known = hit.time_s is not None and other.time_s is not None
    return known and hit.line < other.line and other.time_s - hit.time_s > SAME_MOMENT_S


def _followed(finding: Finding, by: str) -> Finding:
    return Finding(finding.rule, "info", finding.root_cause, finding.rank, finding.ranks, finding.time_s,
                   finding.evidence, by)  # fmt: skip


def _finding(rule: Rule, group: list[Seen], explained_by: str | None) -> Finding:
    first = group[0]
    evidence = list(first.hit.evidence)
    for other in group[1:]:
        evidence += other.hit.evidence[:1]
    ranks = sorted({one.rank for one in group if one.rank is not None})
    groups: dict[str, str] = {}
    for one in group:
        groups = {**one.hit.groups, **groups}
    return Finding(rule, first.severity if explained_by is None else "info", _text(rule, groups), _blamed(group),
                   tuple(ranks), first.hit.time_s, tuple(evidence[:MOST_EVIDENCE]), explained_by)  # fmt: skip


def _text(rule: Rule, groups: dict[str, str]) -> str:
    if rule.detail is None:
        return rule.root_cause
    try:
        return f"{rule.root_cause} {rule.detail.format_map(groups)}"
    except KeyError:
        return rule.root_cause


def _blamed(group: list[Seen]) -> int | None:
    """The rank that others wait for, where they name one that does not wait itself, or waits for nobody by name; else
    the first that failed."""
    waiting = {one.rank for one in group}
    naming = {one.rank for one in group if one.hit.peers}
    peers: Counter[int] = Counter()
    for one in group:
        peers.update(dict.fromkeys(one.hit.peers, 1))
    for known in (waiting, naming):
        named = [peer for peer, _ in peers.most_common() if peer not in known]
        if named:
            return named[0]
    return next((one.rank for one in group if one.rank is not None), None)


def _far_apart(rule: Rule | None, seen: dict[str, list[Seen]]) -> Finding | None:
    """A warning where the errors are not of one incident."""
    errors = [one for group in seen.values() for one in group if one.severity == "error" and one.hit.time_s is not None]
    errors.sort(key=lambda one: one.key)
    gaps = [(after.hit.time_s - before.hit.time_s, after) for before, after in pairwise(errors)]
    long = [(gap, after) for gap, after in gaps if gap > FAR_APART_S]
    if rule is None or not long:
        return None
    gap_s, last = long[-1]
    told = f"The last of them begin at {clock(last.hit.time_s)}, {gap_s / 3600:.0f} h after the one before."
    return Finding(rule, rule.severity, f"{rule.root_cause} {told}", last.rank, (), last.hit.time_s,
                   tuple(last.hit.evidence[:1]))  # fmt: skip


def _silent_rank(rule: Rule | None, waits: list[Seen], seen: dict[str, list[Seen]],
                 scans: list[Scan]) -> Finding | None:  # fmt: skip
    """A rank that the others wait for and that says nothing."""
    if rule is None or not waits:
        return None
    waits = sorted(waits, key=lambda one: one.key)
    failed = {one.rank for group in seen.values() for one in group if one.severity == "error"}
    failed |= {scan.rank for scan in scans if any(hit.rule.severity == "error" for hit in scan.hits.values())}
    logs: dict[int, Scan] = {}
    for scan in scans:
        if scan.rank is not None and (scan.file.kind == "worker" or scan.rank not in logs):
            logs[scan.rank] = scan
    given_up_s = waits[0].hit.time_s
    named = {peer for one in waits for peer in one.hit.peers} - failed
    quiet = [rank for rank, scan in logs.items() if rank not in failed and scan.last_s is not None
             and given_up_s is not None and scan.last_s < given_up_s - SILENT_BEFORE_S]  # fmt: skip
    with_log = [rank for rank in quiet if rank in named] or quiet or [rank for rank in named if rank in logs]
    if with_log:
        rank = min(with_log, key=lambda one: (logs[one].last_s is None, logs[one].last_s or 0.0, one))
        last = logs[rank].last
        told = f"Rank {rank}: its log ends at {clock(logs[rank].last_s) or 'an unknown time'} without an error."
        evidence = ((last,) if last else ()) + tuple(waits[0].hit.evidence[:2])
        return Finding(rule, rule.severity, f"{rule.root_cause} {told}", rank, (rank,), logs[rank].last_s, evidence)
    if named and len(logs) > 1:
        rank = min(named)
        told = f"Rank {rank} is waited for, and there is no log of it here."
        return Finding(rule, rule.severity, f"{rule.root_cause} {told}", rank, (rank,), given_up_s,
                       tuple(waits[0].hit.evidence))  # fmt: skip
    return None
