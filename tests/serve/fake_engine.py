"""An engine without a model: the next token is a function of everything that stands in the slot."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

from msparallel.serve.protocol import Chosen, Decode, Loading, Prefill
from msparallel.serve.sampling import Choice, Sampling

VOCAB = 50


def next_token(tokens: Sequence[int]) -> int:
    """What the model would say."""
    return zlib.crc32(bytes(token % 256 for token in tokens)) % VOCAB


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """What a request must get, whoever else is served."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def next_letter(tokens: Sequence[int]) -> int:
    """The same among the bytes of letters and spaces."""
    return b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ"[zlib.crc32(repr(list(tokens)).encode()) % 53]


def letters(prompt: Sequence[int], count: int) -> str:
    """The text that `next_letter` gives."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_letter(tokens))
    return bytes(tokens[len(prompt) :]).decode()


def says(text: str, end: int | None = 256) -> Callable[[Sequence[int]], int]:
    """A `speaks` that says `text` in bytes, then `end`, or the text again; behind any prompt that does not end with the
    beginning of the text."""
    said = [*text.encode(), *([] if end is None else [end])]

    def speaks(tokens: Sequence[int]) -> int:
        rest = list(tokens)
        for size in range(min(len(said), len(rest)), -1, -1):
            if rest[len(rest) - size :] == said[:size]:
                return said[size % len(said)]
        return said[0]

    return speaks


class FakeEngine:
    """Attributes:
    held: slot -> tokens in it; a hole or a token out of place is an assertion.
    asked: every message.
    fail_at: number of the message at which it dies.
    speaks: tokens of a slot -> the next.
    """

    def __init__(self, *, step_s: float = 0.0, fail_at: int | None = None,
                 speaks: Callable[[Sequence[int]], int] = next_token):  # fmt: skip
        self.held: dict[int, list[int]] = {}
        self.asked: list[Prefill | Decode] = []
        self.step_s, self.fail_at = step_s, fail_at
        self.busy = False
        self.speaks = speaks
        self.closed = False

    async def start(self, progress: Callable[[Loading], object]) -> None:
        for done in range(3):
            progress(Loading("weights", done, 2))
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.closed = True

    async def ask(self, message: Prefill | Decode) -> Chosen:
        assert not self.busy, "one message at a time"
        self.busy = True
        self.asked.append(message)
        await asyncio.sleep(self.step_s)
        self.busy = False
        if len(self.asked) == self.fail_at:
            raise RuntimeError("the engine died")
        if isinstance(message, Prefill):
            held = self.held.setdefault(message.slot, [])
            assert message.start <= len(held), "a hole in the cache"
            held[message.start :] = message.tokens
            return Chosen([] if message.sampling is None else [self._choice(held, message.sampling)])
        assert len({step.slot for step in message.steps}) == len(message.steps)
        choices = []
        for step in message.steps:
            held = self.held[step.slot]
            assert step.position <= len(held), "a hole in the cache"
            held[step.position :] = [step.token]
            choices.append(self._choice(held, step.sampling))
        return Chosen(choices)

    def _choice(self, held: Sequence[int], sampling: Sampling) -> Choice:
        """With log probabilities where they are wanted: -1 for the token, less for others."""
        token = self.speaks(held)
        if sampling.logprobs is None:
            return Choice(token)
        top = [(token, -1.0), *((other, -2.0 - other) for other in range(65, 90) if other != token)]
        return Choice(token, -1.0, tuple(top[: sampling.logprobs]))
