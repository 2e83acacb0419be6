"""Rules made ready to be looked for in the bytes of lines.

In: Rules. Out: for a kind of file prefilters and Matchers; made once for all files.

>>> from msparallel.diagnose.rule import rules
>>> Wanted(rules()).of("worker").matchers[0].rule.id
'env_var_out_of_range'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from msparallel.diagnose.prefilter import Prefilter
from msparallel.diagnose.rule import Kind, Pattern, Rule

_ABOUT_LITERAL_BYTES, _ABOUT_CODE_BYTES = (1024, 2048), (48, 16)
"""Before and from the literal: where its regex may match, so that a line of any length takes a bounded time."""

IDENTITY = ("rankNum[", "RankID:", "[rank")
"""Lines that tell a rank are looked at too."""


@dataclass(frozen=True)
class Ready:
    """Attributes: prefilters for lines that may be loud, and for all lines."""

    loud: Prefilter
    everywhere: Prefilter
    matchers: list[Matcher]


class Matcher:
    """A pattern of a rule, over bytes."""

    def __init__(self, rule: Rule, pattern: Pattern):
        self.rule, self.pattern = rule, pattern
        self.literal = pattern.literal.removeprefix("\n").encode("utf-8")
        self._begins = pattern.literal[0] == "\n"
        self.regex = re.compile(pattern.regex.encode("utf-8")) if pattern.regex else None
        self._before, self._behind = _ABOUT_CODE_BYTES if pattern.is_code else _ABOUT_LITERAL_BYTES

    def place(self, line: bytes) -> int:
        """Where the literal stands; -1 where it does not."""
        at = line.find(self.literal)
        return -1 if self._begins and at else at

    def groups(self, line: bytes, bare: bytes, quiet: bool) -> dict[str, bytes] | None:
        """Named groups where a line with the literal fits; `bare` is the line without what another program put before
        it."""
        if quiet and not self.pattern.any_level:
            return None
        if self.regex is None:
            return {}
        match = self._search(line)
        if match is None and bare is not line:
            match = self._search(bare)
        return None if match is None else {name: text for name, text in match.groupdict().items() if text}

    def _search(self, line: bytes) -> re.Match[bytes] | None:
        """The regex about the first place of the literal, so that a line of any length takes a bounded time."""
        at = line.find(self.literal)
        return self.regex.search(line, max(0, at - self._before), at + self._behind)


class Wanted:
    """Rules made ready to be looked for, by kind of file; made once for all files."""

    def __init__(self, rules: tuple[Rule, ...]):
        self._rules = tuple(rule for rule in rules if not rule.at_end)
        self._at_end = tuple(rule for rule in rules if rule.at_end)
        self._ready: dict[Kind, Ready] = {}

    def of(self, kind: Kind) -> Ready:
        """What is looked for in files of one kind."""
        if kind not in self._ready:
            matchers = [Matcher(rule, pattern) for rule in self._rules for pattern in rule.patterns_of(kind)]
            everywhere = [one.pattern.literal for one in matchers if one.pattern.any_level]
            literals = [one.pattern.literal for one in matchers]
            self._ready[kind] = Ready(Prefilter([*literals, *IDENTITY]), Prefilter([*everywhere, *IDENTITY]), matchers)
        return self._ready[kind]

    def at_end(self, kind: Kind) -> list[tuple[int, list[Matcher]]]:
        """(last lines, matchers) of each rule for the end of a file in which no other rule speaks."""
        return [(rule.at_end, [Matcher(rule, one) for one in rule.patterns_of(kind)]) for rule in self._at_end]
