"""Which request gets what of the engine, and when.

In: requests as token ids. Out: their tokens, one by one, as they are chosen. At most `slots` requests run at once, each
with room for the longest answer, so that one which was let in can always be finished; others wait in a bounded queue,
in which clients take turns; beyond that a request is refused and told when to come again.

A turn of the loop reads one piece of one prompt, then takes one step of all requests that are answering: a long prompt
delays the others by one piece a token, not by all of it. Only while more requests are reading than answering, one piece
follows the other.

>>> scheduler = Scheduler(engine, slots=8, length=4096, chunk=128, most_waiting=32)  # doctest: +SKIP
>>> task = asyncio.create_task(scheduler.run())  # doctest: +SKIP
>>> async for choice in scheduler.submit(Request(prompt=[72, 105], max_tokens=16)):  # doctest: +SKIP
...     print(choice.token)
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from msparallel.serve.protocol import Chosen, Decode, Prefill, Step
from msparallel.serve.requests import Counts, Draining, Expired, FinishReason, QueueFull, Request, Running, Span
from msparallel.serve.sampling import Choice
from msparallel.serve.slots import Slots
from msparallel.serve.waiting import WaitingQueue

_FIRST_GUESS_S = 5.0
"""Seconds that a request takes, before one has ended."""


class EngineLike(Protocol):
    """What the scheduler needs of `EngineClient`."""

    async def ask(self, message: Prefill | Decode) -> Chosen:
        """Chosen tokens: one or none of a Prefill, one of each step of a Decode."""


class Answer:
    """The tokens of one request: iterate over it; `reason` is known afterwards."""

    def __init__(self, scheduler: Scheduler, running: Running):
        self._scheduler, self._running = scheduler, running
        self.reason: FinishReason | None = None

    @property
    def reused_tokens(self) -> int:
        """Of the prompt, which needed no reading."""
        return self._running.reused

    async def __aiter__(self) -> AsyncIterator[Choice]:
        try:
            while True:
                item = await self._running.out.get()
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, str):
                    self.reason = item
                    return
                yield item
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Nobody reads on: a waiting request leaves the queue, a running one its slot. Also after its end."""
        self._scheduler.cancel(self._running)

    def enough(self) -> None:
        """The answer is whole with what was read of it: a text in it ends it."""
        self._scheduler.finish(self._running)


class Scheduler:
    """Args:
    engine: does the work.
    slots, length: requests at once, tokens of each, prompt and answer together.
    chunk: prompt tokens that the engine reads at once.
    most_waiting: requests that may wait for a slot.
    on_time: is told how long things took.

    Attributes:
        failure: what ended the engine.
    """

    def __init__(self, engine: EngineLike, *, slots: int, length: int, chunk: int, most_waiting: int,
                 on_time: Callable[[Span, float], object] = lambda span, seconds: None):  # fmt: skip
        self.length, self.chunk = length, chunk
        self.counts = Counts()
        self.failure: Exception | None = None
        self._engine, self._on_time = engine, on_time
        self._slots = Slots(slots)
        self._waiting: WaitingQueue[Running] = WaitingQueue()
        self._most_waiting = most_waiting
        self._running: list[Running] = []
        self._work = asyncio.Event()
        self._draining = False
        self._took_s = _FIRST_GUESS_S

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def room_tokens(self) -> int:
        """Tokens whose keys and values there is room for."""
        return self._slots.count * self.length

    @property
    def cached_tokens(self) -> int:
        """Tokens of running requests whose keys and values are held."""
        return sum(one.read + max(len(one.answer) - 1, 0) for one in self._running)

    def submit(self, request: Request) -> Answer:
        """Let a request in, to run or to wait.

        Raises:
            ValueError: it has no token, or more than a slot has room for.
            QueueFull, Draining, or what ended the engine.
        """
        if not request.prompt or request.max_tokens < 1 or len(request.prompt) + request.max_tokens > self.length:
            raise ValueError(f"{len(request.prompt)} + {request.max_tokens} tokens do not fit in {self.length}")
        if self.failure is not None:
            raise self.failure
        if self._draining:
            raise Draining("the server is about to end")
        self.check_room()
        running = Running(request, time.monotonic())
        loop = asyncio.get_running_loop()
        running.timers = [loop.call_later(request.wait_s, self._expire, running, True),
                          loop.call_later(request.total_s, self._expire, running, False)]  # fmt: skip
        self._waiting.put(request.client, running)
        self.counts.accepted += 1
        self._work.set()
        return Answer(self, running)

    def check_room(self, coming: int = 0) -> None:
        """Raises QueueFull where a request would be refused: before its text is read. `coming` others are about to be
        let in."""
        if self.waiting + coming >= self._most_waiting + self._slots.free_count:
            self.counts.refused += 1
            raise QueueFull(self.retry_after_s)

    @property
    def retry_after_s(self) -> float:
        """A slot is free every `took / slots` seconds: when half of those who wait, to all of them, have had one. It
        differs, so that a crowd which is refused at once does not come back at once."""
        return max(1.0, self._took_s / self._slots.count * (1 + self.waiting / 2)) * random.uniform(1, 2)

    def cancel(self, running: Running) -> None:
        """The one who asked has gone, or has what it wanted."""
        if not running.ended:
            self.counts.cancelled += 1
            self._leave(running)

    def finish(self, running: Running) -> None:
        """The one who asked has the whole answer."""
        if not running.ended:
            self._close(running)
            self._work.set()

    def _leave(self, running: Running) -> None:
        self._over(running)
        if not self._waiting.remove(running):
            self._work.set()  # the loop takes its slot back between two steps

    def _over(self, running: Running) -> None:
        running.ended = True
        for timer in running.timers:
            timer.cancel()

    def _expire(self, running: Running, waiting: bool) -> None:
        """A timer rang: also while the engine does not answer."""
        if running.ended or (waiting and running.slot >= 0):
            return
        limit = running.request.wait_s if waiting else running.request.total_s
        told = f"no slot in {limit:g} s" if running.slot < 0 else f"no end in {limit:g} s"
        self.counts.expired += 1
        running.out.put_nowait(Expired(told, waiting=running.slot < 0))
        self._leave(running)

    def give_up(self, error: Exception) -> None:
        """Everyone who still waits for something is told `error`."""
        for one in [*self._running, *self._waiting]:
            if not one.ended:
                self.counts.expired += 1
                one.out.put_nowait(error)
                self._leave(one)

    async def drain(self) -> None:
        """Take nothing new, and return when everything that was let in has its answer."""
        self._draining = True
        while (self._running or len(self._waiting)) and self.failure is None:
            await asyncio.sleep(0.02)

    async def run(self) -> None:
        """The loop; ends with what ended the engine, after everyone who waits was told."""
        try:
            while True:
                self._tidy()
                if not self._running:
                    self._work.clear()
                    await self._work.wait()
                    continue
                await self._prefill()
                await self._decode()
                await asyncio.sleep(0)
        except Exception as error:
            self.failure = error
            for one in [*self._running, *self._waiting]:
                if not one.ended:
                    self._over(one)
                    one.out.put_nowait(error)
                    self.counts.failed += 1
                self._waiting.remove(one)
            self._running.clear()
            raise

    def _tidy(self) -> None:
        """Free what has ended, let in who is next."""
        for one in [one for one in self._running if one.ended]:
            self._running.remove(one)
            self._slots.free(one.slot, one.holds())
        now = time.monotonic()
        while self._slots.free_count and len(self._waiting):
            one = self._waiting.pop()
            one.slot, one.read = self._slots.take(one.request.prompt)
            one.reused, one.started_s = one.read, now
            self.counts.reused_tokens += one.read
            self._on_time("queue", now - one.arrived_s)
            self._running.append(one)

    async def _prefill(self) -> None:
        """One piece of the prompt that came first, and on while more requests wait for their first token than for their
        next: a piece takes about as long as a step, and the larger crowd goes first."""
        while reading := [one for one in self._running if one.prefilling and not one.ended]:
            await self._read(reading[0])
            going = [one for one in self._running if not one.ended]
            if 2 * sum(one.prefilling for one in going) <= len(going):
                return

    async def _read(self, one: Running) -> None:
        piece = one.request.prompt[one.read : one.read + self.chunk]
        last = one.read + len(piece) == len(one.request.prompt)
        chosen = await self._engine.ask(Prefill(one.slot, one.read, piece, one.request.sampling if last else None))
        one.read += len(piece)
        self.counts.prompt_tokens += len(piece)
        if last:
            self._give(one, chosen.choices[0])

    async def _decode(self) -> None:
        """One token for everyone who is answering."""
        rows = [one for one in self._running if one.answer and not one.ended]
        if not rows:
            return
        steps = [Step(one.slot, len(one.request.prompt) + len(one.answer) - 1, one.answer[-1], one.request.sampling,
                      len(one.answer)) for one in rows]  # fmt: skip
        chosen = await self._engine.ask(Decode(steps))
        self.counts.steps += 1
        self.counts.stepped += len(rows)
        for one, choice in zip(rows, chosen.choices, strict=True):
            self._give(one, choice)

    def _give(self, one: Running, choice: Choice) -> None:
        """A token to the one who asked, and its end where this was the last."""
        one.answer.append(choice.token)
        if one.ended:  # left while the engine worked
            return
        now = time.monotonic()
        if len(one.answer) == 1:
            self._on_time("first_token", now - one.arrived_s)
        else:
            self._on_time("between_tokens", now - one.told_s)
        one.told_s = now
        if choice.token in one.request.stop_tokens:
            self._end(one, "stop")
            return
        self.counts.answer_tokens += 1
        one.out.put_nowait(choice)
        if len(one.answer) == one.request.max_tokens:
            self._end(one, "length")

    def _end(self, one: Running, reason: FinishReason) -> None:
        self._close(one)
        one.out.put_nowait(reason)

    def _close(self, one: Running) -> None:
        self._over(one)
        self.counts.finished += 1
        now = time.monotonic()
        self._took_s += 0.1 * (now - one.started_s - self._took_s)
        self._on_time("request", now - one.arrived_s)
