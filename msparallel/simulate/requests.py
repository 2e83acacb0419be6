"""Requests of different lengths that come, run beside each other and leave, as a server has them.

In: something that reads pieces of prompts and makes tokens, prompts. Out: every request's tokens, and the logits that
each was chosen from. The same requests go to one device and to the virtual cluster. Pure.

>>> answers = answered(engine, prompts_of(vocab_size=256, slots=3, length=48), tokens=8, slots=3, chunk=16)
>>> answers[0].tokens
(17, 201, 3, 3, 90, 54, 111, 8)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from msparallel.serve.row import Row


class Engine(Protocol):
    """One device, or a virtual cluster of them."""

    def prefill(self, *, slot: int, start: int, tokens: Sequence[int]) -> np.ndarray:
        """Logits [vocab_size] behind the last of `tokens`."""

    def decode(self, batch: Sequence[Row]) -> np.ndarray:
        """Logits [requests, vocab_size]."""


@dataclass(frozen=True)
class Answer:
    """Attributes:
    prompt: its length.
    tokens: the most likely one, step by step.
    logits: float32 [tokens, vocab_size], that they were chosen from.
    """

    prompt: int
    tokens: tuple[int, ...]
    logits: np.ndarray


def prompts_of(*, vocab_size: int, slots: int, length: int, tokens: int, seed: int = 1) -> list[list[int]]:
    """More prompts than slots, so that slots are taken again: of one token, of one less and one more than a block of
    16, of several pieces, and as long as there is room for."""
    random = np.random.Generator(np.random.Philox(key=np.array([seed, 0], np.uint64)))
    longest = length - tokens
    lengths = [17, 1, longest, 5, 15, 2, min(33, longest), *random.integers(1, longest + 1, max(0, slots - 4))]
    return [random.integers(0, vocab_size, min(count, longest)).tolist() for count in lengths]


def answered(engine: Engine, prompts: Sequence[Sequence[int]], *, tokens: int, slots: int, chunk: int) -> list[Answer]:
    """Read and continue every prompt by `tokens`, the most likely each time. A request joins before every step of
    decoding while there are free slots; a slot is taken again as soon as its request is done."""
    waiting, free = list(range(len(prompts))), list(range(slots))
    running: dict[int, int] = {}
    found: dict[int, list[np.ndarray]] = {number: [] for number in waiting}
    while waiting or running:
        if waiting and free:
            number, slot = waiting.pop(0), free.pop()
            prompt = prompts[number]
            for start in range(0, len(prompt), chunk):
                logits = engine.prefill(slot=slot, start=start, tokens=prompt[start : start + chunk])
            found[number].append(logits)
            running[number] = slot
        rows = [Row(slot, len(prompts[number]) + len(found[number]) - 1, int(found[number][-1].argmax()))
                for number, slot in running.items() if len(found[number]) < tokens]  # fmt: skip
        unfinished = [number for number in running if len(found[number]) < tokens]
        if rows:
            for number, logits in zip(unfinished, engine.decode(rows), strict=True):
                found[number].append(logits)
        for number in [number for number in running if len(found[number]) == tokens]:
            free.append(running.pop(number))
    return [
        Answer(len(prompt), tuple(int(one.argmax()) for one in found[number]), np.stack(found[number]))
        for number, prompt in enumerate(prompts)
    ]
