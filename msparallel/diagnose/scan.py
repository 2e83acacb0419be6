"""One file, read once: where each rule speaks, and what the file says about its process.

In: a `LogFile`, `Wanted` rules. Out: a `Scan`, whose size does not depend on the file's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msparallel.diagnose.files import LogFile
from msparallel.diagnose.lines import LEVEL_BYTES, LONGEST_TEXT, bare_of, is_quiet, loud_ones, shown
from msparallel.diagnose.prefilter import Prefilter
from msparallel.diagnose.reader import Unreadable, blocks
from msparallel.diagnose.rule import Rule
from msparallel.diagnose.times import last_stamp, stamps
from msparallel.diagnose.wanted import Matcher, Ready, Wanted
from msparallel.errors import short
from msparallel.finding import Evidence

MOST_EVIDENCE = 3
"""Lines kept for a rule in a file."""
MOST_PEERS = 4096
LONGEST_RANK = 6
"""Digits; more is no rank."""
SYSLOG_YEAR = 2000
"""Syslog lines have no year; a leap year, so that 29 February exists. `findings.py` puts the job's year in."""
_LOOK_BACK_BYTES = 4096
_LINE_RANK = re.compile(rb"RankID:(\d{1,6})\b|\[rank(\d{1,6})\]|^\(\w{1,40} rank=(\d{1,6}) pid=")
_OWN_RANK = re.compile(rb"rankNum\[\d+\], ?rank\[(\d{1,6})\]")
_TOLD_RANK = re.compile(rb"RankID:(\d{1,6})\b|\[rank(\d{1,6})\]:")
_PID = re.compile(rb"^\[[A-Z]+\] ?[A-Z_]+\((\d{1,9})[,:]", re.M)
_NAME_PID = re.compile(r"^(?:plog|device)-(\d{1,9})_")
SAME_MOMENT_S = 60.0
SAME_MOMENT_LINES = 400
"""What stands so close belongs together: by the stamps, or by lines where there is no stamp."""


@dataclass
class Hit:
    """A rule in a file.

    Attributes:
        rank: the rank that the first line names, else None.
        time_s: stamp of the first line, or of the nearest line before it; None where there is none.
        count: lines.
        end_line: number of the last line.
        end_s: its stamp; kept for rules that are `unknown`.
        groups: named groups of the first line that has each.
        peers: rank that is waited for -> lines.
    """

    rule: Rule
    rank: int | None
    time_s: float | None
    count: int = 0
    end_line: int = 0
    end_s: float | None = None
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
        rank: by its name, else by what HCCL writes when a communicator is made, else the only one that its lines name.
        pid: by its name, else by its first lines.
        hits: by rule; of a rule that is `unknown` the first burst of lines.
        late_hits: of such a rule the last burst, where it is another one.
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
    late_hits: dict[str, Hit] = field(default_factory=dict)
    told_ranks: set[int] = field(default_factory=set)
    last: Evidence | None = None
    last_s: float | None = None
    stopped: str | None = None

    def ends_with(self, hit: Hit) -> bool:
        """Whether a hit is among the last things that the file says."""
        if hit.end_s is not None and self.last_s is not None:
            return self.last_s - hit.end_s <= SAME_MOMENT_S
        return self.lines - hit.end_line <= SAME_MOMENT_LINES


def scan(file: LogFile, wanted: Wanted, progress: Callable[[int], object] = lambda count: None) -> Scan:
    """Read a file once; `progress` is told the bytes of each block."""
    named = _NAME_PID.match(file.path.name)
    found = Scan(file, file.rank, int(named[1]) if named else None)
    ready = wanted.of(file.kind)
    year = SYSLOG_YEAR if file.kind in ("dmesg", "log") else None

    def told(count: int) -> None:
        found.bytes_read += count
        progress(count)

    block = b""
    try:
        for block in blocks(file.path, told):
            if found.pid is None and not found.lines and (pid := _PID.search(block[:_LOOK_BACK_BYTES])):
                found.pid = int(pid[1])
            _scan_block(found, block, ready, year)
    except Unreadable as reason:
        found.stopped = str(reason)
    if not found.hits:
        _scan_end(found, block, wanted.at_end(file.kind), year)
    if found.rank is None and len(found.told_ranks) == 1:
        found.rank = next(iter(found.told_ranks))
    return found


def _scan_block(found: Scan, block: bytes, ready: Ready, year: int | None) -> None:
    lines = block.split(b"\n")
    begin, counted = 0, 0
    for number in _candidates(block, lines, ready):
        begin += sum(map(len, lines[counted:number])) + number - counted
        counted = number
        _look_at(found, block, begin, begin + len(lines[number]), found.lines + 1 + number, ready.matchers, year)
    found.lines += len(lines) - 1
    tail = block[-_LOOK_BACK_BYTES:]
    found.last_s = last_stamp(tail, year) or found.last_s
    words = tail.rstrip()
    if words:
        below = tail.count(b"\n", len(words))
        last = found.lines - below + 1  # lines counts line ends; the last words stand behind all but `below` of them
        found.last = Evidence(found.file.name, last, shown(words[words.rfind(b"\n") + 1 :]))


def _candidates(block: bytes, lines: list[bytes], ready: Ready) -> list[int]:
    """Numbers of lines that a rule could speak of, from 0, in order.

    Where most lines are quiet, only the others are searched for the many literals that do not count in quiet ones.
    """
    loud = loud_ones(lines)
    if 2 * len(loud) > len(lines):
        return list(_numbers(block, ready.loud))
    some = b"\n".join([lines[number] for number in loud])
    return sorted({*(loud[number] for number in _numbers(some, ready.loud)), *_numbers(block, ready.everywhere)})


def _numbers(block: bytes, prefilter: Prefilter) -> Iterator[int]:
    counted, number = 0, 0
    for place in prefilter.places(block):
        number += block.count(b"\n", counted, place)
        counted = place
        yield number


def _scan_end(found: Scan, block: bytes, wanted: list[tuple[int, list[Matcher]]], year: int | None) -> None:
    """The last lines of a file in which no rule spoke, until one of those for the end does."""
    end, line = len(block.rstrip()), found.lines - block.count(b"\n", len(block.rstrip())) + 1
    places: list[tuple[int, int, int]] = []  # (number, begin, end) of lines, the last first
    for _ in range(max((lines for lines, _ in wanted), default=0)):
        if end < 0:
            break
        begin = block.rfind(b"\n", 0, end) + 1
        places.append((line, begin, end))
        end, line = begin - 1, line - 1
    for lines, matchers in wanted:
        for number, begin, stop in reversed(places[:lines]):
            _look_at(found, block, begin, stop, number, matchers, year)
        if found.hits:
            return


def _look_at(found: Scan, block: bytes, begin: int, end: int, line: int, matchers: list[Matcher],
             year: int | None) -> None:  # fmt: skip
    text = block[begin:end]
    quiet, bare = is_quiet(text), bare_of(text)
    if found.rank is None:
        _learn_rank(found, text)
    spoken: list[tuple[Rule, dict[str, bytes]]] = []
    first: dict[str, int] = {}
    for matcher in matchers:
        at = matcher.place(text)
        groups = matcher.groups(text, bare, quiet) if at >= 0 else None
        if groups is not None:
            spoken.append((matcher.rule, groups))
            first[matcher.rule.id] = min(at, first.get(matcher.rule.id, at))
    for rule, groups in spoken:
        hit = found.hits.get(rule.id)
        if hit is None or rule.unknown:
            near = stamps(text, year)
            time_s = near[0][1] if near else last_stamp(block[max(0, begin - _LOOK_BACK_BYTES) : begin], year)
            time_s = found.last_s if time_s is None else time_s
            if hit is None:
                hit = found.hits[rule.id] = Hit(rule, _rank_in(text, groups), time_s)
            elif _is_later(hit, line, time_s):
                hit = found.late_hits.get(rule.id)
                if hit is None or _is_later(hit, line, time_s):
                    hit = found.late_hits[rule.id] = Hit(rule, _rank_in(text, groups), time_s)
            hit.end_s = time_s
        _add(hit, found.file.name, line, _from(text, first[rule.id]), groups)


def _from(text: bytes, at: int) -> bytes:
    """The line, or of a line too long to be shown the part about the first place where its rule speaks."""
    return text if at <= LONGEST_TEXT // 2 else b"... " + text[at - LONGEST_TEXT // 4 :]


def _learn_rank(found: Scan, text: bytes) -> None:
    if own := _OWN_RANK.search(text, 0, _LOOK_BACK_BYTES):
        found.rank = int(own[1])
    elif len(found.told_ranks) < 2 and (told := _TOLD_RANK.search(text, 0, _LOOK_BACK_BYTES)):
        found.told_ranks.add(int(told[1] or told[2]))


def _is_later(hit: Hit, line: int, time_s: float | None) -> bool:
    """Whether a line belongs to another burst than the hit's last line."""
    if time_s is None or hit.end_s is None:
        return line - hit.end_line > SAME_MOMENT_LINES
    return time_s - hit.end_s > SAME_MOMENT_S


def _rank_in(text: bytes, groups: dict[str, bytes]) -> int | None:
    if "rank" in groups:
        return int(groups["rank"])
    named = _LINE_RANK.search(text, 0, LEVEL_BYTES)
    return int(named[1] or named[2] or named[3]) if named else None


def _add(hit: Hit, name: str, line: int, text: bytes, groups: dict[str, bytes]) -> None:
    if not hit.evidence or hit.end_line != line:
        hit.count += 1
        hit.end_line = line
        if len(hit.evidence) < MOST_EVIDENCE:
            hit.evidence.append(Evidence(name, line, shown(text)))
    for key, value in groups.items():
        hit.groups.setdefault(key, short(shown(value), 120))
    for peer in re.findall(rb"\d+", groups.get("peer", b"")):
        if len(hit.peers) < MOST_PEERS and len(peer) <= LONGEST_RANK:  # 4294967295 is HCCL's word for none
            hit.peers[int(peer)] += 1
