"""What MindSpore's engine said when it refused a network, taken apart.

In: the exception's type and text, and the process's log: the exception often says only that an operator failed, and the
log says why. Out: a `Refusal` with sentences, reasons and the place in the network, without C++ stacks.

>>> refusal = read_refusal("RuntimeError", "Failure:operator MatMul init failed\\n\\n----...", log)
>>> refusal.sentence, refusal.place, refusal.reasons[0]
('Failure:operator MatMul init failed', 'layers.mlp.gate_proj.matmul', 'MatMulInfo66: Input index 1, the strategy ...')
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LOG_LINE = re.compile(
    r"\[(?P<level>ERROR|CRITICAL)\] (?P<module>\w+)\([^)]*\):\S+ \[[^\]]*\](?: (?P<function>\w+)\])? ?(?P<text>.*)"
)
_LOG_START = re.compile(r"^\[(?:ERROR|CRITICAL|WARNING|INFO)\] ")
_ENGINE = ("PARALLEL", "PIPELINE", "ANALYZER")
"""Modules of MindSpore's log that speak about the network; others complain that there is no Ascend software."""
_OPERATOR = re.compile(
    r"operator (\w+) (?:init|extract|check)|For '(\w+)'|primitive\[(\w+)\]|Info: (\w+)|\b([A-Z]\w*?)Info\d+"
)
_INNER_FIRST = re.compile(r"^In file \S+?:\d+, (?P<begin>\d+)~(?P<end>\d+)/(?P<source>.*)/$", re.MULTILINE)
_OUTER_FIRST = re.compile(r"^#[ \d]*In file \S+?:\d+, (?P<begin>\d+)~(?P<end>\d+)\n(?P<source>.*)$", re.MULTILINE)
_CALLED = re.compile(r"\s*self\.(?P<name>\w+)")
_WRAPPERS = ("network", "net", "text_loss", "transformer", "model")
_MOST_NAMES = 4
_MOST_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Attributes:
    kind: type of the exception.
    sentence: what it says before stacks, on one line.
    reasons: what the engine logged as errors, in order; each on one line.
    place: calls that lead to the operator, from the outside, joined by points; empty where MindSpore names none.
    operator: MindSpore's primitive, empty where none is named.
    """

    kind: str
    sentence: str
    reasons: tuple[str, ...]
    place: str
    operator: str

    @property
    def words(self) -> tuple[str, ...]:
        """All sentences, those of the exception first."""
        return (self.sentence, *self.reasons)

    @property
    def where(self) -> str:
        """Place and operator in words, empty where both are unknown."""
        return f"{self.place} ({self.operator})" if self.place and self.operator else self.place or self.operator


def read_refusal(kind: str, text: str, log: str = "") -> Refusal:
    """Take an exception apart.

    Args:
        kind: name of its type.
        text: what it says, with stacks.
        log: what the process printed.
    """
    paragraphs = re.split(r"\n\s*\n", re.split(r"\n-{4,}|\nFunctionGraph :", text.strip())[0])
    sentence = _one_line(" ".join(paragraphs[: 1 + paragraphs[0].endswith(":")]))
    reasons = tuple(dict.fromkeys(_logged(log)))
    named = _OPERATOR.search("\n".join((sentence, *reasons)))
    operator = next(filter(None, named.groups()), "") if named else ""
    return Refusal(
        kind=kind, sentence=sentence, reasons=reasons, place=network_place(text), operator=operator.lstrip("_")
    )


def network_place(text: str) -> str:
    """The calls that lead to an operator, from MindSpore's list of source lines.

    Each line comes with the columns of the call in it: `self.mlp(x)` in one, `self.gate_proj(x)` in the next.
    """
    frames = [*_INNER_FIRST.finditer(text)][::-1] or [*_OUTER_FIRST.finditer(text)]
    names = []
    for frame in frames:
        called = _CALLED.match(frame["source"][int(frame["begin"]) : int(frame["end"])])
        if called:
            names.append(called["name"])
    while names and names[0] in _WRAPPERS:
        names.pop(0)
    return ".".join(names[-_MOST_NAMES:])


def _logged(log: str) -> list[str]:
    """Errors in a log, those of the engine only."""
    entries: list[list[str]] = []
    keep = False
    for line in log.splitlines():
        start = _LOG_LINE.match(line)
        if start:
            keep = start["module"] in _ENGINE
            if keep:
                entries.append([start["text"]])
        elif _LOG_START.match(line) or not line.strip() or line.startswith(("---", "Traceback")):
            keep = False
        elif keep:
            entries[-1].append(line)
    return [_one_line(" ".join(entry)) for entry in entries if any(part.strip() for part in entry)]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS].rstrip() + " ..."
