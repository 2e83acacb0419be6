"""What finds every line that a rule could speak of, fast.

In: literals. Out: a `Prefilter` whose `places` are where candidates stand in a block of bytes. Two ways are joined:

- A literal with letters is looked for by one regular expression for all of them. Python's engine skips what no
  alternative begins with, so each literal is looked for from a character on that logs seldom have; a small set of such
  characters is chosen for all literals together, and alternatives that begin alike share their beginning. What a
  literal has before that character is looked back at.
- A literal without such a character (507011, "error: ") would stop the engine several times a line. `bytes.find` looks
  for it, or for the first digits of several numbers that begin alike.

A literal that begins with a line's end ("\\nE1") is looked for at the beginning of lines. Nothing is decided here: a
candidate line is compared with the whole literals afterwards.

>>> list(Prefilter(["Heartbeat Lost", "507011", "\\nE1"]).places(b"E1 ret: 507011\\nHeartbeat Lost\\nE1E1\\n"))
[0, 25, 30]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from os.path import commonprefix

_ORDINARY = """\
2026-03-01 10:04:25,118 - mindformers[mindformers/core/callback/callback.py:519] - INFO - { Epoch:[  1/  1], \
step:[  127/10000], loss: 8.342, per_step_time: 817ms, lr: 1.0e-05, overflow cond: False, loss_scale: 1.0, \
global_norm: [0.734], train_throughput_per_npu: 171.442T }
[WARNING] DISTRIBUTED(5000,ffff80b1,python):2026-03-01-10:00:02.551.309 \
[mindspore/ccsrc/cluster/topology/compute_graph_node.cc:98] Register] Node is registered, waiting for others.
[INFO] HCCL(12337,python):2026-03-01-10:00:09.092.002 [hccl_comm.cc:194][12337]Entry AllReduce: tag[HcomAllReduce_662]
[INFO] RUNTIME(12337,python):2026-03-01-10:00:09.092.002 [stream.cc:91]7 Create: stream_id=12, device_id=3, flag=0x1
"""
"""Lines of a job in which nothing is wrong; how often they have a character decides where a literal is looked for."""
_DIGITS_BYTES = 4
"""Literals of digits that begin with the same so many are looked for together."""
_DEAR = 12
"""Occurrences in `_ORDINARY` from which on a character is too common: `bytes.find` of a word costs less."""


class Prefilter:
    """Places of candidate lines for a set of literals."""

    def __init__(self, literals: Iterable[str]):
        words = sorted(set(literals))
        alike = groupby([word for word in words if word.isdecimal()], key=lambda word: word[:_DIGITS_BYTES])
        others = [word for word in words if not word.isdecimal()]
        plain = {word for word in others if word[0] != "\n" and all(_COUNTS[one] >= _DEAR for one in word)}
        heads = [commonprefix(list(group)) for _, group in alike] + sorted(plain)
        self._heads = [head.encode("utf-8") for head in heads]
        self._pattern = _pattern([word for word in others if word not in plain])

    def places(self, block: bytes) -> Iterator[int]:
        """One place in each candidate line, in order, without a line twice."""
        upcoming = {head: block.find(head) for head in self._heads}
        word = self._word(block, 0)
        while True:
            place = min((at for at in (word, *upcoming.values()) if at >= 0), default=-1)
            if place < 0:
                return
            yield place
            end = block.find(b"\n", place)
            if end < 0:
                return
            if 0 <= word < end:
                word = self._word(block, end)
            for head, at in upcoming.items():
                if 0 <= at < end:
                    upcoming[head] = block.find(head, end)

    def _word(self, block: bytes, start: int) -> int:
        match = self._pattern.search(block, start) if self._pattern else None
        return -1 if match is None else match.start()


def _pattern(words: list[str]) -> re.Pattern[bytes] | None:
    """Each word from a character of `_starts` on; what stands before that is looked back at."""
    if not words:
        return None
    starts, tree = _starts(words), {}
    for word in words:
        places = (place for place in range(len(word)) if word[place] in starts and word[place] != "\n")
        at = min(places, key=lambda at: _weight(word[at]))
        branch = tree
        for character in word[at:]:
            branch = branch.setdefault(character, {})
        branch.setdefault("", set()).add(word if at else "")
    return re.compile(_alternatives(tree).encode("utf-8"))


def _starts(words: list[str]) -> set[str]:
    """Characters, seldom in logs, of which every word has one: greedily, the most words for the least weight."""
    starts: set[str] = set()
    wanted = {word: set(word) - {"\n"} for word in words}
    left = wanted
    while left:
        covers = Counter(character for characters in left.values() for character in characters)
        best = max(sorted(covers), key=lambda character: covers[character] / _weight(character))
        starts.add(best)
        left = {word: characters for word, characters in left.items() if best not in characters}
    for start in sorted(starts, key=_weight, reverse=True):  # one taken early may not be needed any more
        if all(characters & starts - {start} for characters in wanted.values()):
            starts.remove(start)
    return starts


_COUNTS = Counter(_ORDINARY)


def _weight(character: str) -> float:
    return 1.0 + 10.0 * _COUNTS[character]


def _alternatives(tree: dict) -> str:
    """The branches of a tree; words end where it holds them under the empty text."""
    words = sorted(tree.get("", ()))
    if "" in words:
        return ""
    branches = [_behind(word) for word in words]
    branches += [re.escape(head) + _alternatives(branch) for head, branch in sorted(tree.items()) if head]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _behind(word: str) -> str:
    """What must stand before the place, so that the whole word does."""
    return f"(?m:(?<=^{re.escape(word[1:])}))" if word[0] == "\n" else f"(?<={re.escape(word)})"
