"""An engine without a model: the next token is a function of everything that stands in the slot."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

from msparallel.serve.protocol import Chosen, Decode, Prefill
from msparallel.serve.sampling import Choice

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


class FakeEngine:
    """Attributes:
    held: slot -> tokens in it; a hole or a token out of place is an assertion.
    asked: every message.
    fail_at: number of the message at which it dies.
    """

    def __init__(self, *, step_s: float = 0.0, fail_at: int | None = None):
        self.held: dict[int, list[int]] = {}
        self.asked: list[Prefill | Decode] = []
        self.step_s, self.fail_at = step_s, fail_at
        self.busy = False

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
            return Chosen([] if message.sampling is None else [Choice(next_token(held))])
        assert len({step.slot for step in message.steps}) == len(message.steps)
        choices = []
        for step in message.steps:
            held = self.held[step.slot]
            assert step.position <= len(held), "a hole in the cache"
            held[step.position :] = [step.token]
            choices.append(Choice(next_token(held)))
        return Chosen(choices)
