"""One file, read once: where each rule speaks, and what the file says about its process.

In: a `LogFile`, `Wanted` rules. Out: a `Scan`, whose size does not depend on the file's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from msparallel.diagnose.files import LogFile
from msparallel.diagnose.prefilter import Prefilter
from msparallel.diagnose.reader import Unreadable, blocks
from msparallel.diagnose.rule import Kind, Pattern, Rule
from msparallel.diagnose.secrets import without_secrets
from msparallel.diagnose.times import last_stamp, stamps
from msparallel.errors import printable, short

MOST_EVIDENCE = 3
"""Lines kept for a rule in a file."""
MOST_PEERS = 4096
LONGEST_TEXT = 400
SYSLOG_YEAR = 2000
"""Syslog lines have no year; a leap year, so that 29 February exists. `findings.py` puts the job's year in."""
_LOOK_BACK_BYTES = 4096

_QUIET = re.compile(rb"^.{0,12}\[(?:WARNING|INFO|DEBUG|EVENT|TRACE)\]|^.{0,160}?[\s-](?:INFO|DEBUG) (?:-|\[|\()")
_LINE_RANK = re.compile(rb"RankID:(\d{1,6})|^\[rank(\d{1,6})\]")
_IDENTITY = ("rankNum[",)
_OWN_RANK = re.compile(rb"rankNum\[\d+\], ?rank\[(\d{1,6})\]")
_PID = re.compile(rb"^\[[A-Z]+\] ?[A-Z_]+\((\d{1,9})[,:]", re.M)


@dataclass(frozen=True)
class Evidence:
    """A line of a file, without secrets and control characters, at most `LONGEST_TEXT` long."""

    file: str
    line: int
    text: str


@dataclass
class Hit:
    """A rule in a file.

    Attributes:
        rank: the rank that the first line names, else None.
        time_s: stamp of the first line, or of the nearest line before it; None where there is none.
        count: lines.
        groups: named groups of the first line that has each.
        peers: rank that is waited for -> lines.
    """

    rule: Rule
    rank: int | None
    time_s: float | None
    count: int = 0
    evidence: list[Evidence] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    peers: Counter[int] = field(default_factory=Counter)

    @property
    def line(self) -> int:
        return self.evidence[0].line


@dataclass
class Scan:
    """What one file says.

    Attributes:
        rank: by its name, else by what HCCL writes when a communicator is made.
        last: its last line that is not empty.
        last_s: the last stamp.
        stopped: why its rest could not be read.
    """

    file: LogFile
    rank: int | None
    pid: int | None = None
    lines: int = 0
    bytes_read: int = 0
    hits: dict[str, Hit] = field(default_factory=dict)
    last: Evidence | None = None
    last_s: float | None = None
    stopped: str | None = None


class Wanted:
    """Rules made ready to be looked for, by kind of file; made once for all files."""

    def __init__(self, rules: tuple[Rule, ...]):
        self._rules = rules
        self._ready: dict[Kind, tuple[Prefilter, list[_Matcher]]] = {}

    def of(self, kind: Kind) -> tuple[Prefilter, list[_Matcher]]:
        """The prefilter and the matchers of files of one kind."""
        if kind not in self._ready:
            matchers = [_Matcher(rule, pattern) for rule in self._rules for pattern in rule.patterns_of(kind)]
            self._ready[kind] = Prefilter([*(one.pattern.literal for one in matchers), *_IDENTITY]), matchers
        return self._ready[kind]


class _Matcher:
    """A pattern of a rule, over bytes."""

    def __init__(self, rule: Rule, pattern: Pattern):
        self.rule, self.pattern = rule, pattern
        self.literal = pattern.literal.encode("utf-8")
        self.regex = re.compile(pattern.regex.encode("utf-8")) if pattern.regex else None

    def groups(self, line: bytes, quiet: bool) -> dict[str, bytes] | None:
        """Named groups where a line with the literal fits."""
        if quiet and not self.pattern.any_level:
            return None
        if self.regex is None:
            return {}
        match = self.regex.search(line)
        return None if match is None else {name: text for name, text in match.groupdict().items() if text}


def scan(file: LogFile, wanted: Wanted, progress: Callable[[int], object] = lambda count: None) -> Scan:
    """Read a file once; `progress` is told the bytes of each block."""
    found = Scan(file, file.rank)
    lines, matchers = wanted.of(file.kind)
    year = SYSLOG_YEAR if file.kind in ("dmesg", "log") else None
    try:
        for block in blocks(file.path):
            if not found.bytes_read and (pid := _PID.search(block[:_LOOK_BACK_BYTES])):
                found.pid = int(pid[1])
            _scan_block(found, block, lines, matchers, year)
            found.bytes_read += len(block)
            progress(len(block))
    except Unreadable as reason:
        found.stopped = str(reason)
    return found


def _scan_block(found: Scan, block: bytes, lines: Prefilter, matchers: list[_Matcher], year: int | None) -> None:
    counted, line = 0, found.lines + 1
    for place in lines.places(block):
        begin = block.rfind(b"\n", 0, place) + 1
        end = block.find(b"\n", place)
        line += block.count(b"\n", counted, begin)
        counted = begin
        _look_at(found, block, begin, len(block) if end < 0 else end, line, matchers, year)
    found.lines += block.count(b"\n")
    tail = block[-_LOOK_BACK_BYTES:]
    found.last_s = last_stamp(tail, year) or found.last_s
    words = tail.rstrip()
    if words:
        below = tail.count(b"\n", len(words))
        last = found.lines - below + 1  # lines counts line ends; the last words stand behind all but `below` of them
        found.last = Evidence(found.file.name, last, shown(words[words.rfind(b"\n") + 1 :]))


def _look_at(found: Scan, block: bytes, begin: int, end: int, line: int, matchers: list[_Matcher],
             year: int | None) -> None:  # fmt: skip
    text = block[begin:end]
    quiet = _QUIET.match(text) is not None
    if found.rank is None and (own := _OWN_RANK.search(text)):
        found.rank = int(own[1])
    for matcher in matchers:
        groups = matcher.groups(text, quiet) if matcher.literal in text else None
        if groups is None:
            continue
        hit = found.hits.get(matcher.rule.id)
        if hit is None:
            near = stamps(text, year)
            time_s = near[0][1] if near else last_stamp(block[max(0, begin - _LOOK_BACK_BYTES) : begin], year)
            hit = Hit(matcher.rule, _rank_in(text, groups), found.last_s if time_s is None else time_s)
            found.hits[matcher.rule.id] = hit
        _add(hit, found.file.name, line, text, groups)


def _rank_in(text: bytes, groups: dict[str, bytes]) -> int | None:
    if "rank" in groups:
        return int(groups["rank"])
    named = _LINE_RANK.search(text)
    return int(named[1] or named[2]) if named else None


def _add(hit: Hit, name: str, line: int, text: bytes, groups: dict[str, bytes]) -> None:
    if not hit.evidence or hit.evidence[-1].line != line:
        hit.count += 1
        if len(hit.evidence) < MOST_EVIDENCE:
            hit.evidence.append(Evidence(name, line, shown(text)))
    for key, value in groups.items():
        hit.groups.setdefault(key, short(shown(value), 120))
    for peer in re.findall(rb"\d{1,6}", groups.get("peer", b"")):
        if len(hit.peers) < MOST_PEERS:
            hit.peers[int(peer)] += 1


def shown(text: bytes) -> str:
    """A piece of a log as it may be shown."""
    words = text[: 4 * LONGEST_TEXT].decode("utf-8", "backslashreplace").strip()
    return short(printable(without_secrets(words)).replace("\t", " "), LONGEST_TEXT)
