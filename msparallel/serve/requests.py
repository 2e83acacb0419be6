"""A request to the scheduler: what it asks for, where it stands, how it can end.

In: token ids and limits. Out: values that `scheduler.py` moves from the queue through a slot to their end.

>>> Request(prompt=[72, 105], max_tokens=16).stop_tokens
frozenset()
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from msparallel.serve.sampling import Choice, Sampling

FinishReason = Literal["stop", "length"]
Span = Literal["queue", "first_token", "between_tokens", "request"]
"""From a request's arrival to its slot, to its first token, to its end; from one token to the next."""


class QueueFull(Exception):
    """Attributes:
    retry_after_s: when a place will be free, by the requests that ended so far.
    """

    def __init__(self, retry_after_s: float):
        super().__init__("the queue is full")
        self.retry_after_s = retry_after_s


class Draining(Exception):
    """The server is about to end and takes nothing new."""


class Expired(Exception):
    """The request took longer than it may.

    Attributes:
        waiting: it had no slot yet.
    """

    def __init__(self, told: str, *, waiting: bool):
        super().__init__(told)
        self.waiting = waiting


@dataclass(frozen=True, kw_only=True)
class Request:
    """Attributes:
    prompt: token ids, at least one.
    max_tokens: of the answer; with the prompt no more than the scheduler's `length`.
    stop_tokens: ids that end the answer and are not part of it.
    client: who sent it; clients take turns in the queue.
    wait_s: it is given up after so long in the queue.
    total_s: and after so long in all.
    """

    prompt: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_tokens: frozenset[int] = frozenset()
    client: str = ""
    wait_s: float = 600.0
    total_s: float = 86_400.0


@dataclass(eq=False)
class Running:
    """A request on its way.

    Attributes:
        read: prompt tokens whose keys and values stand in the slot.
        answer: tokens chosen so far.
        out: what the one who asked reads: Choices, then a FinishReason or an exception.
    """

    request: Request
    arrived_s: float
    out: asyncio.Queue[Choice | FinishReason | Exception] = field(default_factory=asyncio.Queue)
    slot: int = -1
    read: int = 0
    reused: int = 0
    started_s: float = 0.0
    told_s: float = 0.0
    answer: list[int] = field(default_factory=list)
    ended: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def prefilling(self) -> bool:
        return self.read < len(self.request.prompt)

    def holds(self) -> list[int]:
        """Tokens whose keys and values stand in the slot: the last token of the answer was never read."""
        return [*self.request.prompt[: self.read], *self.answer[:-1]]


@dataclass
class Counts:
    """What happened so far: numbers for metrics.

    Attributes:
        prompt_tokens: read; reused_tokens of the prompts stood in a slot already.
        steps: of decoding; stepped: requests summed over them.
    """

    accepted: int = 0
    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    answer_tokens: int = 0
    steps: int = 0
    stepped: int = 0
