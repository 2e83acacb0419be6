"""Load for an OpenAI-compatible server, and what its clients see of it.

In: a URL, how many requests at once or how many a second, how long prompts and answers are. Out: for each request when
it was sent, when its first and every further piece came, how it ended; percentiles of all.

>>> arrivals(rate=2.0, duration_s=1000.0, seed=1)[:2]  # doctest: +SKIP
[0.54, 0.71]

Closed loop: so many clients, each sends its next request when it has its answer, so the server sets the pace; who is
refused comes again when the server's Retry-After says. Open loop: requests come at random moments (Poisson) whatever
the server does, as from many people; only this shows what a server does when it is too slow.

What a server sends is not trusted: a line, an answer and its time are bounded, and what is no piece of an answer fails
the request that it came for, with the reason.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from msparallel.errors import printable, short

MOST_LINE_BYTES = 1 << 20
MOST_ANSWER_BYTES = 64 << 20
MOST_TOKENS = 10**9
MOST_RETRY_S = 60.0
"""A client of a closed loop comes again after this, whatever Retry-After says."""

WORDS = ("river", "stone", "light", "seven", "machine", "paper", "under", "green", "window", "circle", "north",
         "answer")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Load:
    """Attributes:
    url: of the server, without /v1.
    prompt_words, answer_tokens: (least, most) of each request, drawn evenly.
    timeout_s: of a whole answer.
    """

    url: str
    model: str
    prompt_words: tuple[int, int] = (16, 64)
    answer_tokens: tuple[int, int] = (32, 64)
    seed: int = 1
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0


@dataclass
class Seen:
    """One request, by the client's clock.

    Attributes:
        sent_s: since the load began.
        pieces_s: when each piece of the answer came.
        status: HTTP status, 0 where there was none.
        error: of a request that has no whole answer.
        retry_after_s: of a refusal.
        prompt_tokens, answer_tokens: by the server's usage.
    """

    sent_s: float
    status: int = 0
    error: str = ""
    retry_after_s: float = 0.0
    pieces_s: list[float] = field(default_factory=list)
    done_s: float | None = None
    prompt_tokens: int = 0
    answer_tokens: int = 0

    @property
    def whole(self) -> bool:
        return self.done_s is not None and not self.error


def arrivals(*, rate: float, duration_s: float, seed: int) -> list[float]:
    """Moments of a Poisson process of `rate` a second."""
    rng, moments, now = random.Random(seed), [], 0.0
    while (now := now + rng.expovariate(rate)) < duration_s:
        moments.append(now)
    return moments


async def closed_loop(
    load: Load, *, clients: int, requests: int, tell: Callable[[], object] = lambda: None
) -> list[Seen]:
    """`requests` in all, `clients` at once."""
    left, seen, began = list(range(requests)), [], time.perf_counter()
    async with _client(load, clients) as client:

        async def ask_on() -> None:
            while left:
                seen.append(one := await _ask(client, load, left.pop(0), began))
                tell()
                if left:
                    await asyncio.sleep(one.retry_after_s)

        await asyncio.gather(*(ask_on() for _ in range(clients)))
    return seen


async def open_loop(load: Load, *, moments: Sequence[float], tell: Callable[[], object] = lambda: None) -> list[Seen]:
    """A request at each moment, whatever became of the ones before."""
    began = time.perf_counter()
    async with _client(load, len(moments)) as client:

        async def one(number: int, moment: float) -> Seen:
            await asyncio.sleep(max(0.0, moment - (time.perf_counter() - began)))
            seen = await _ask(client, load, number, began)
            tell()
            return seen

        return list(await asyncio.gather(*(one(number, moment) for number, moment in enumerate(moments))))


def _client(load: Load, connections: int) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(base_url=load.url, headers=headers, timeout=load.timeout_s, limits=limits,
                             trust_env=not is_here(load.url))  # fmt: skip


def is_here(url: str) -> bool:
    """Whether the server is on this machine, and a proxy would be measured instead of it."""
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _ask(client: httpx.AsyncClient, load: Load, number: int, began: float) -> Seen:
    rng = random.Random(load.seed * 1_000_003 + number)
    body = {
        "model": load.model, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
        "prompt": " ".join(rng.choices(WORDS, k=rng.randint(*load.prompt_words))),
        "max_tokens": rng.randint(*load.answer_tokens),
    }  # fmt: skip
    seen = Seen(time.perf_counter() - began)
    try:
        await asyncio.wait_for(_read(client, body, seen, began), load.timeout_s)
    except asyncio.TimeoutError:
        seen.error = f"no whole answer within {load.timeout_s:g} s"
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        seen.error = f"{type(error).__name__}: {error}"
    if seen.done_s is None and not seen.error:
        seen.error = "the answer ended early"
    seen.error = printable(short(seen.error))
    return seen


def _reason(line: bytes) -> str:
    """What a refusal says, in OpenAI's shape or as it is."""
    try:
        return str(json.loads(line)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return line.decode("utf-8", "replace")


def _by_kind(errors: Iterable[str]) -> dict[str, int]:
    """How many of each; of refusals with the same status the first one speaks for all, since they differ in numbers."""
    told: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for error in errors:
        kind = error.partition(":")[0] if error.startswith("HTTP ") else error
        counts[told.setdefault(kind, error)] += 1
    return dict(counts)


async def _read(client: httpx.AsyncClient, body: dict[str, Any], seen: Seen, began: float) -> None:
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        seen.status = answer.status_code
        if answer.status_code != 200:
            seen.error = f"HTTP {answer.status_code}"
            if answer.status_code == 429:
                seen.retry_after_s = _retry_after_s(answer.headers.get("retry-after", ""))
        async for line in _lines(answer):  # to the end in any case, so that the connection can be used again
            if seen.error:
                if seen.status != 429 and line and seen.error == f"HTTP {seen.status}":
                    seen.error += f": {_reason(line)}"
                continue
            if line == b"data: [DONE]":
                seen.done_s = time.perf_counter() - began
            elif line.startswith(b"data: "):
                _piece(seen, json.loads(line[6:].decode("utf-8")), time.perf_counter() - began)


def _retry_after_s(value: str) -> float:
    """The header's seconds; a second where it is a date or nothing.

    >>> _retry_after_s("3"), _retry_after_s("1e9"), _retry_after_s("Fri, 31 Dec 1999 23:59:59 GMT")
    (3.0, 1.0, 1.0)
    """
    return min(float(value), MOST_RETRY_S) if value.isascii() and value.isdecimal() and len(value) < 10 else 1.0


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Lines of an answer. Raises ValueError for one that is too long."""
    rest, total = b"", 0
    async for part in answer.aiter_bytes():
        total += len(part)
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
        if len(rest) > MOST_LINE_BYTES or total > MOST_ANSWER_BYTES:
            raise ValueError(f"the server sent a line of more than {MOST_LINE_BYTES:,} bytes, or more than "
                             f"{MOST_ANSWER_BYTES:,} for one answer")  # fmt: skip
    yield rest.rstrip(b"\r")


def _piece(seen: Seen, piece: Any, now: float) -> None:
    """Raises ValueError for what is no piece of a completion."""
    choices, usage = (piece.get("choices", []), piece.get("usage")) if isinstance(piece, dict) else (None, None)
    if isinstance(piece, dict) and "error" in piece:
        seen.error = str(piece["error"])
        return
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ValueError(f"no piece of a completion: {short(json.dumps(piece), 60)}")
    if any(choice.get("text") for choice in choices):
        seen.pieces_s.append(now)
    if usage is not None:
        seen.prompt_tokens, seen.answer_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")


def _count(usage: Any, key: str) -> int:
    count = usage.get(key) if isinstance(usage, dict) else None
    if type(count) is not int or not 0 <= count <= MOST_TOKENS:
        raise ValueError(f"usage.{key} is no number of tokens: {short(json.dumps(usage), 60)}")
    return count


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of one load. Latencies are {p50, p90, p99, mean} in seconds, of answers that came whole.

    Attributes:
        duration_s: from the first request to the last whole answer; 0 where there is none.
        refused: answers 429; failed: all others without a whole answer.
        first_token_s: from sending to the first piece; between_s: between two pieces; whole_s: to the end.
        tokens_per_s, requests_per_s: of whole answers, over duration_s.
    """

    requests: int
    whole: int
    refused: int
    failed: int
    duration_s: float
    prompt_tokens: int
    answer_tokens: int
    tokens_per_s: float
    requests_per_s: float
    first_token_s: dict[str, float]
    between_s: dict[str, float]
    whole_s: dict[str, float]
    errors: dict[str, int]


def summary(seen: Sequence[Seen]) -> Summary:
    """Numbers of a load."""
    whole = [one for one in seen if one.whole]
    ends = [one.done_s for one in whole if one.done_s is not None]
    duration = max(ends) - min(one.sent_s for one in seen) if ends else 0.0
    tokens = sum(one.answer_tokens for one in whole)
    errors = _by_kind(one.error for one in seen if one.error)
    gaps = [later - earlier for one in whole for earlier, later in zip(one.pieces_s, one.pieces_s[1:], strict=False)]
    return Summary(
        requests=len(seen), whole=len(whole), refused=sum(one.status == 429 for one in seen),
        failed=sum(not one.whole and one.status != 429 for one in seen), duration_s=duration,
        prompt_tokens=sum(one.prompt_tokens for one in whole), answer_tokens=tokens,
        tokens_per_s=tokens / duration if duration > 0 else 0.0,
        requests_per_s=len(whole) / duration if duration > 0 else 0.0,
        first_token_s=_percentiles([one.pieces_s[0] - one.sent_s for one in whole if one.pieces_s]),
        between_s=_percentiles(gaps),
        whole_s=_percentiles([end - one.sent_s for one, end in zip(whole, ends, strict=True)]), errors=errors,
    )  # fmt: skip


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99), "mean": float(np.mean(values))}
