"""What the server and its engine processes say to each other: JSON, a line a message, over a Unix socket.

In and out: dataclasses. The server sends Prefill and Decode to the process of every rank, in the same order; the first
rank answers with Chosen. Before, every process says Hello, then Loading now and then, then Ready; Failed ends it.

>>> decode_message(encode_message(Hello(rank=0)))
Hello(rank=0)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from msparallel.serve.sampling import Choice, Sampling


@dataclass(frozen=True)
class Hello:
    """A process has begun."""

    rank: int


@dataclass(frozen=True)
class Loading:
    """`done` of `total` pieces of `what`: weights, graphs."""

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class Ready:
    """A process waits for work."""


@dataclass(frozen=True)
class Failed:
    """A process ends; `text` is for a person. `exit_code` is 2 where the input is wrong, else 1."""

    text: str
    exit_code: int


@dataclass(frozen=True)
class Prefill:
    """Read `tokens`, which stand at `start` of `slot`; with `sampling` the first token of the answer is chosen."""

    slot: int
    start: int
    tokens: list[int]
    sampling: Sampling | None = None


@dataclass(frozen=True)
class Step:
    """One request in a Decode: `token` stands at `position`; the next is the answer's token number `place`."""

    slot: int
    position: int
    token: int
    sampling: Sampling
    place: int


@dataclass(frozen=True)
class Decode:
    """A token more for every request."""

    steps: list[Step]


@dataclass(frozen=True)
class Chosen:
    """The answer to Prefill (one or none) and Decode (one for each step)."""

    choices: list[Choice]


Message = Hello | Loading | Ready | Failed | Prefill | Decode | Chosen
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Hello, Loading, Ready, Failed, Prefill, Decode, Chosen)}


def encode_message(message: Message) -> bytes:
    """One line."""
    return json.dumps([type(message).__name__, asdict(message)], separators=(",", ":")).encode() + b"\n"


def decode_message(line: bytes) -> Message:
    """A line as its dataclass. Both ends are our own processes, so a broken line is a bug and raises as it may."""
    name, fields = json.loads(line)
    if name == "Prefill":
        sampling = fields.pop("sampling")
        return Prefill(**fields, sampling=None if sampling is None else Sampling(**sampling))
    if name == "Decode":
        return Decode([Step(**{**step, "sampling": Sampling(**step["sampling"])}) for step in fields["steps"]])
    if name == "Chosen":
        return Chosen([Choice(one["token"], one["logprob"], tuple((token, value) for token, value in one["top"]))
                       for one in fields["choices"]])  # fmt: skip
    return _KINDS[name](**fields)
