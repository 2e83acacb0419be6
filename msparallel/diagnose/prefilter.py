"""One regular expression that finds every line a rule could speak of, fast.

In: literals. Out: a compiled pattern over bytes. Python's engine skips bytes that no alternative begins with, so each
literal is looked for from its rarest character on, and alternatives that begin alike share their beginning: with a
hundred literals this reads some hundred MB a second, where trying them one after another reads two.

>>> bool(prefilter(["Heartbeat Lost Occurred"]).search(b"... Heartbeat Lost Occurred, ..."))
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMMON = " etaonrisldcmpuhgfbwy0123456789_.:-/[]()=,'\"kvxIENWOFRMPAD"
"""Characters of a training log, the most frequent first; others are rare."""
_LEAST = 4
"""Bytes of a literal that must be left behind its rarest character, so that few lines are found for nothing."""
_SEARCHED = 14
"""Longer fragments find no fewer lines."""


def prefilter(literals: Iterable[str]) -> re.Pattern[bytes]:
    """Matches a piece of every literal."""
    tree: dict[str, dict] = {}
    for literal in sorted(set(literals)):
        branch = tree
        for character in _fragment(literal):
            branch = branch.setdefault(character, {})
            if "" in branch:  # a shorter fragment ends here, and finds this one too
                break
        else:
            branch.clear()
            branch[""] = {}
    return re.compile(_alternatives(tree).encode("utf-8"))


def _fragment(literal: str) -> str:
    starts = range(max(1, len(literal) - _LEAST + 1))
    start = min(starts, key=lambda at: (-_rarity(literal[at]), at))
    return literal[start : start + _SEARCHED]


def _rarity(character: str) -> int:
    place = _COMMON.find(character)
    return len(_COMMON) if place < 0 else place


def _alternatives(tree: dict[str, dict]) -> str:
    if "" in tree:
        return ""
    branches = [re.escape(character) + _alternatives(branch) for character, branch in sorted(tree.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
