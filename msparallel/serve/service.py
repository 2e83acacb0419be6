"""What a server does, without HTTP: text or messages in, pieces of text out.

In: a Plan, its tokenizer, an engine. Out: `TextAnswer`s, errors as the API tells them, the server's state:
starting -> ready -> draining, or failed where the engine could not start or died.

>>> service = Service(plan, TextTokenizer.bytes(8192))  # doctest: +SKIP
>>> task = asyncio.create_task(service.run(engine))  # doctest: +SKIP
>>> answer = service.answer(Wanted(prompt=[72, 105], limit=16))  # doctest: +SKIP
>>> "".join([piece.text async for piece in answer]), answer.reason  # doctest: +SKIP
('...', 'length')
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from msparallel.plan import Plan
from msparallel.serve.answer_text import AnswerText, Piece
from msparallel.serve.api_error import ApiError, refuse
from msparallel.serve.buckets import buckets, paged_buckets
from msparallel.serve.chat_prompt import ChatPrompt
from msparallel.serve.chat_template import ChatTemplate, TemplateRefused
from msparallel.serve.metrics import ServeMetrics
from msparallel.serve.protocol import Loading
from msparallel.serve.requests import Draining, Expired, QueueFull, Request
from msparallel.serve.sampling import Sampling
from msparallel.serve.scheduler import Answer, EngineLike, Scheduler
from msparallel.serve.text_tokenizer import TextTokenizer

State = Literal["starting", "ready", "draining", "failed"]
_SHORT_TEXT, _MESSAGE_SIZE = 4096, 64
"""Characters that become tokens in less than a millisecond or two; longer texts go to a thread, so that nothing else
waits for them."""


class Startable(EngineLike, Protocol):
    """What the service needs of `EngineClient`."""

    async def start(self, progress: Callable[[Loading], object]) -> None:
        """Until the engine takes work."""

    async def close(self) -> None:
        """End it."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What one request asks for.

    Attributes:
        limit: tokens of the answer; None: as many as there is room for.
        temperature, top_p, top_k, seed: None: the model's defaults, a new seed.
        logprobs: as in Sampling.
        client: who asks.
        param: the key of the prompt, for messages.
    """

    prompt: Sequence[int]
    limit: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    client: str = ""
    param: str = "prompt"


class Service:
    """Attributes:
    name: of the model. created_s: when the server began, in seconds of Unix time.
    state, loading: where it stands; how far the engine has come.
    failure: what ended the engine.
    chunk: tokens of a prompt that the engine reads at once.
    """

    def __init__(self, plan: Plan, tokenizer: TextTokenizer):
        assert plan.recipe.serve is not None, "only recipes that serve are served"
        self.name, self.created_s = plan.recipe.name, int(time.time())
        self.settings = plan.recipe.serve
        sizes = buckets if plan.hardware.target == "CPU" else paged_buckets
        self.chunk = sizes(self.settings.max_concurrency, self.settings.max_length).chunks[-1]
        self.vocab_size = plan.shape.vocab_size
        self.tokenizer = tokenizer
        self.chat = ChatPrompt(tokenizer, ChatTemplate(tokenizer.template, tokenizer.named))
        self.state: State = "starting"
        self.loading: Loading | None = None
        self.failure: Exception | None = None
        self.scheduler: Scheduler | None = None
        self.metrics = ServeMetrics(self.name, lambda: self.scheduler, lambda: self.state)
        self._reading = 0
        """Requests whose long texts are being made tokens of: they have a place each, so that no more are read than
        can be let in."""
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenizer")

    async def run(self, engine: Startable, progress: Callable[[Loading], object] = lambda loading: None) -> None:
        """Start the engine and serve until it ends; raises what ended it."""

        def told(loading: Loading) -> None:
            self.loading = loading
            progress(loading)

        try:
            await engine.start(told)
            settings = self.settings
            self.scheduler = Scheduler(engine, slots=settings.max_concurrency, length=settings.max_length,
                                       chunk=self.chunk, most_waiting=settings.max_waiting,
                                       on_time=self.metrics.took)  # fmt: skip
            if self.state == "starting":
                self.state = "ready"
            await self.scheduler.run()
        except Exception as error:
            self.state, self.failure = "failed", error
            raise

    async def drain(self) -> None:
        """Take nothing new, and return when everything that was let in has its answer, or after serve.drain_s."""
        if self.state != "failed":
            self.state = "draining"
        if self.scheduler is None:
            return
        try:
            await asyncio.wait_for(self.scheduler.drain(), self.settings.drain_s)
        except asyncio.TimeoutError:
            self.scheduler.give_up(Draining(f"the server ends; {self.settings.drain_s:g} s were not enough"))

    def check_ready(self) -> Scheduler:
        """Raises ApiError where no request is taken, or none more at this moment."""
        if self.failure is not None:
            raise _ended()
        if self.state == "draining":
            raise _draining()
        if self.scheduler is None:
            loading = self.loading
            told = f"{loading.what}, {loading.done} of {loading.total}" if loading else "the engine's process begins"
            raise ApiError(503, f"The server is starting: {told}.", code="starting", retry_after_s=5)
        return self.scheduler

    def check_room(self) -> None:
        """Raises ApiError before any work is done for a request that would be refused."""
        try:
            self.check_ready().check_room(self._reading)
        except QueueFull as full:
            raise _full(full) from None

    async def text_prompt(self, text: str) -> list[int]:
        """Ids of a text. Raises ApiError where it is far longer than the context."""
        self._check_length(text, "prompt")
        return await self._tokens(len(text), lambda: self.tokenizer.encode(text))

    async def chat_prompt(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[int]:
        """Ids of messages. Raises ApiError where the template refuses them, or they are far too long."""
        taken = sorted(options.keys() & self.chat.template.taken)
        if taken:
            raise refuse(f"chat_template_kwargs.{taken[0]} is a name of the template's own.",
                         param="chat_template_kwargs")  # fmt: skip
        # The template adds words of its own to each message, and reads options as it likes.
        size = sum(_MESSAGE_SIZE + len(text) for message in messages for text in message.values())
        size += len(str(options)) if options else 0
        self._check_length("".join(message["content"] for message in messages), "messages")
        try:
            return await self._tokens(size, lambda: self.chat.tokens(messages, options))
        except TemplateRefused as error:
            raise refuse(f"The model's chat template refuses the messages: {error}.", param="messages") from None

    def _check_length(self, text: str, param: str) -> None:
        least = self.tokenizer.least_tokens(text)
        if least >= self.settings.max_length:
            raise self._too_long(f"at least {least}", param)

    def _too_long(self, tokens: object, param: str) -> ApiError:
        length = self.settings.max_length
        return refuse(f"The context is {length} tokens, the prompt has {tokens}; at least one must be left for the "
                      "answer.", param=param, code="context_length_exceeded")  # fmt: skip

    async def _tokens(self, size: int, encode: Callable[[], list[int]]) -> list[int]:
        if size <= _SHORT_TEXT:
            return encode()
        self.check_room()  # other long texts may have come since this one was asked about
        self._reading += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, encode)
        finally:
            self._reading -= 1

    def answer(self, wanted: Wanted) -> TextAnswer:
        """Let a request in. Raises ApiError."""
        scheduler = self.check_ready()
        prompt, length = list(wanted.prompt), self.settings.max_length
        if not prompt:
            raise refuse(f"{wanted.param} has no token; it needs at least one.", param=wanted.param)
        if len(prompt) >= length:
            raise self._too_long(len(prompt), wanted.param)
        wrong = next((token for token in prompt if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise refuse(f"{wanted.param} holds the id {wrong}; the model has ids 0 to {self.vocab_size - 1}.",
                         param=wanted.param)  # fmt: skip
        limit = length - len(prompt) if wanted.limit is None else wanted.limit
        if len(prompt) + limit > length:
            raise refuse(f"The context is {length} tokens: the prompt has {len(prompt)}, and max_tokens is {limit}, "
                         f"together {len(prompt) + limit}. Use max_tokens {length - len(prompt)} or less.",
                         param="max_tokens", code="context_length_exceeded")  # fmt: skip
        stops = frozenset() if wanted.ignore_eos else self.tokenizer.end_ids
        request = Request(prompt=prompt, max_tokens=limit, sampling=self._sampling(wanted), stop_tokens=stops,
                          client=wanted.client, wait_s=self.settings.wait_s,
                          total_s=self.settings.request_s)  # fmt: skip
        try:
            answer = scheduler.submit(request)
        except QueueFull as full:
            raise _full(full) from None
        except Draining:
            raise _draining() from None
        return TextAnswer(scheduler, request, answer, AnswerText(self.tokenizer.text, wanted.stops))

    def _sampling(self, wanted: Wanted) -> Sampling:
        defaults = self.tokenizer.defaults
        return Sampling(
            temperature=defaults.temperature if wanted.temperature is None else wanted.temperature,
            top_k=max(0, defaults.top_k if wanted.top_k is None else wanted.top_k),
            top_p=defaults.top_p if wanted.top_p is None else wanted.top_p,
            seed=secrets.randbits(63) if wanted.seed is None else wanted.seed % 2**64,
            logprobs=wanted.logprobs,
        )

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class TextAnswer:
    """The text of one request: iterate over it once.

    Attributes:
        prompt_tokens, answer_tokens: how many; the end token is not counted.
        reason: `stop` or `length`, known at the end.
    """

    def __init__(self, scheduler: Scheduler, request: Request, answer: Answer, text: AnswerText):
        self._scheduler, self._answer, self._text = scheduler, answer, text
        self.prompt_tokens = len(request.prompt)
        self.answer_tokens = 0
        self.reason: str | None = None

    @property
    def reused_tokens(self) -> int:
        """Of the prompt, which stood in the cache."""
        return self._answer.reused_tokens

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Pieces, some of them empty. Raises ApiError. Whoever stops early calls `cancel`."""
        try:
            async for choice in self._answer:
                self.answer_tokens += 1
                piece = self._text.feed(choice)
                if self._text.stopped:
                    self._answer.enough()
                    self.reason = "stop"
                    yield piece
                    return
                yield piece
            last = self._text.end()
            self.reason = "stop" if self._text.stopped else self._answer.reason
            yield last
        except Expired as error:
            raise self._expired(error) from None
        except Draining as error:
            raise ApiError(503, f"Not finished: {error}.", code="draining") from None
        except Exception as error:
            if error is self._scheduler.failure:
                raise _ended() from None
            raise
        finally:
            self.cancel()

    def _expired(self, error: Expired) -> ApiError:
        if error.waiting:
            return ApiError(503, f"All places are taken: {error}.", code="queue_timeout",
                            retry_after_s=self._scheduler.retry_after_s)  # fmt: skip
        return ApiError(504, f"The answer took too long: {error}.", code="deadline_exceeded")

    def cancel(self) -> None:
        """Nobody reads on."""
        self._answer.cancel()


def _full(full: QueueFull) -> ApiError:
    return ApiError(429, f"The queue is full; come again in about {full.retry_after_s:.0f} s.", code="queue_full",
                    retry_after_s=full.retry_after_s)  # fmt: skip


def _draining() -> ApiError:
    return ApiError(503, "The server is about to end and takes nothing new.", code="draining", retry_after_s=5)


def _ended() -> ApiError:
    return ApiError(503, "The engine has ended; the server answers nothing until it is started again.",
                    code="engine_ended")  # fmt: skip
