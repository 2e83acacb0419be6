"""`msparallel bench-serve`: load for an OpenAI-compatible server, and the latencies that its clients see."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from msparallel.cli.numbers import Number
from msparallel.errors import RunError, UserError, short

if TYPE_CHECKING:
    import httpx

    from msparallel.serve.load import Load, Summary

MOST_REQUESTS = 1_000_000
_MODELS_BYTES = 1 << 20
_MODELS_S = 10.0


class _Span(click.ParamType):
    """`32` or `16-64`."""

    name = "N|A-B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        low, dash, high = str(value).partition("-")
        if not all(re.fullmatch("[0-9]{1,7}", end) for end in ([low, high] if dash else [low])):
            self.fail(f"{short(value, 60)!r} is neither a number nor a span such as 16-64.", param, ctx)
        first, last = int(low), int(high or low)
        if not 1 <= first <= last <= 1_000_000:
            self.fail(f"{value!r}: from 1, and the smaller number first.", param, ctx)
        return first, last


@click.command(epilog="""\b
Examples:
  $ msparallel bench-serve http://127.0.0.1:8000 --concurrency 1,4,16
  $ msparallel bench-serve http://127.0.0.1:8000 --rate 0.5,1,2 --duration 60 --plot latency.png
  $ msparallel bench-serve http://127.0.0.1:8000 --concurrency 64 --requests 256 --json
""")  # fmt: skip
@click.argument("url")
@click.option("--concurrency", metavar="N,...",
              help="Closed loop: clients at once; several make a sweep.  [default: 1,4,16]")  # fmt: skip
@click.option("--rate", metavar="R,...", help="Open loop: requests a second at random moments; several make a sweep.")
@click.option("--requests", type=click.IntRange(1, MOST_REQUESTS), default=64, show_default=True,
              help="Of each closed loop.")  # fmt: skip
@click.option("--duration", "duration_s", type=Number(1, 86_400), default=60.0, show_default=True,
              help="Seconds in which an open loop sends.")  # fmt: skip
@click.option("--prompt-words", type=_Span(), default="16-64", show_default=True, help="Words of a prompt.")
@click.option("--answer-tokens", type=_Span(), default="32-64", show_default=True, help="Tokens of an answer, at most.")
@click.option("--model", help="By default the first that the server names.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the key.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--plot", metavar="FILE.png", help="Latencies and tokens/s over the sweep.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    url: str, concurrency: str | None, rate: str | None, requests: int, duration_s: float,
    prompt_words: tuple[int, int], answer_tokens: tuple[int, int], model: str | None, api_key_env: str | None,
    seed: int, plot: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Send load to the server at URL, and say what its clients see.

    In a closed loop who is refused comes again when the server's Retry-After says.

    Exit code 1 where a request failed other than by a refusal (429), which is what a full server should say.
    """
    import asyncio
    from dataclasses import asdict

    from tqdm import tqdm

    from msparallel.serve.installed import check_installed

    check_installed("bench-serve")
    from msparallel.serve.load import Load, arrivals, closed_loop, open_loop, summary

    if concurrency and rate:
        raise click.UsageError("--concurrency is a closed loop, --rate an open one: give one of them.")
    points = _numbers(rate, "--rate") if rate else _numbers(concurrency or "1,4,16", "--concurrency")
    if rate and max(points) * duration_s > MOST_REQUESTS:
        raise UserError(f"--rate {max(points):g} for --duration {duration_s:g} are {max(points) * duration_s:,.0f} "
                        f"requests; at most {MOST_REQUESTS:,} are sent, for example --duration "
                        f"{max(1, MOST_REQUESTS // max(points)):g}.")  # fmt: skip
    if plot:
        from msparallel.report.scatter import check_picture

        check_picture(plot)  # before an hour of load
    load = Load(url=_base(url), model="", prompt_words=prompt_words, answer_tokens=answer_tokens, seed=seed,
                api_key=_key(api_key_env))  # fmt: skip
    load = _with_model(load, model)
    results: list[tuple[float, Summary]] = []
    for point in points:
        if rate:
            moments = arrivals(rate=point, duration_s=duration_s, seed=seed)
            with tqdm(total=len(moments), desc=f"{point:g} requests/s", unit="request") as bar:
                seen = asyncio.run(open_loop(load, moments=moments, tell=bar.update))
        else:
            with tqdm(total=requests, desc=f"{point:g} at once", unit="request") as bar:
                seen = asyncio.run(closed_loop(load, clients=int(point), requests=requests, tell=bar.update))
        results.append((point, summary(seen)))
    name = "rate" if rate else "concurrency"
    if plot:
        from msparallel.serve.load_plot import plot_sweep

        plot_sweep(results, name, plot)
    if as_json:
        click.echo(json.dumps({"url": load.url, "model": load.model, "by": name,
                               "points": [{name: point, **asdict(found)} for point, found in results]}))  # fmt: skip
    else:
        click.echo(_table(results, name))
    return 1 if any(found.failed for _, found in results) else 0


def _base(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise UserError(f"{short(url)}: {error}. A server's URL looks like http://127.0.0.1:8000") from None
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= 2000
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or not plain:
        raise UserError(f"{short(url)} is no URL of a server. One looks like http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    path = path[:-3] if path.endswith("/v1") else path
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


def _numbers(text: str, option: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    whole = option == "--rate" or all(one == int(one) for one in found if abs(one) < 1e9)
    if not found or not whole or not all(0 < one <= 10_000 for one in found):
        raise UserError(f"{option} {short(text, 60)}: numbers above 0 and up to 10,000, for example 1,4,16.")
    return found


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise UserError(f"--api-key-env {short(name, 60)}: no such variable, or it is empty.")
    if not re.fullmatch("[!-~]{1,1000}", key):  # the HTTP library's message would show it
        raise UserError(f"--api-key-env {short(name, 60)}: what it holds is no key: at most 1,000 visible ASCII "
                        "characters, without a space or a line's end.")  # fmt: skip
    return key


def _with_model(load: Load, model: str | None) -> Load:
    """The server's first model; this also sees whether there is a server."""
    from dataclasses import replace

    import httpx

    from msparallel.serve.load import is_here

    headers = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    shown = f"{short(load.url)}/v1/models"
    try:
        client = httpx.Client(headers=headers, timeout=_MODELS_S, trust_env=not is_here(load.url))
    except (ImportError, OSError, ValueError) as error:  # a proxy, or a file of certificates
        raise UserError(f"What the environment says of proxies and certificates cannot be used: {error}") from None
    try:
        with client, client.stream("GET", f"{load.url}/v1/models") as answer:
            answer.raise_for_status()
            first = json.loads(_bounded(answer, shown))["data"][0]["id"]
            if not isinstance(first, str):
                raise TypeError
    except httpx.HTTPStatusError as error:
        raise RunError(f"{shown} answers {error.response.status_code}.") from None
    except httpx.HTTPError as error:
        raise RunError(f"{load.url}\n  No server answers there ({error}). Start one: msparallel serve RECIPE") from None
    except httpx.InvalidURL as error:
        raise UserError(f"{short(load.url)} is no URL of a server: {error}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise RunError(f"{shown} names no model: this is no OpenAI-compatible server.") from None
    return replace(load, model=model or first)


def _bounded(answer: httpx.Response, shown: str) -> bytes:
    """What a server sends, of a bounded size and in a bounded time."""
    data, began_s = bytearray(), time.monotonic()
    for part in answer.iter_bytes():
        data += part
        if len(data) > _MODELS_BYTES or time.monotonic() - began_s > _MODELS_S:
            raise RunError(f"{shown} does not end: more than {_MODELS_BYTES:,} bytes, or {_MODELS_S:g} s.")
    return bytes(data)


def _table(results: list[tuple[float, Summary]], name: str) -> str:
    """A line a point; latencies in milliseconds."""
    from msparallel.cli.columns import table, terminal_width

    head = ["requests/s" if name == "rate" else "at once", "whole", "429", "failed", "tokens/s", "first p50", "p99",
            "between p50", "p99", "whole p50", "p99"]  # fmt: skip
    rows = [[f"{point:g}", f"{one.whole}/{one.requests}", str(one.refused), str(one.failed), f"{one.tokens_per_s:,.0f}",
             *_ms(one.first_token_s), *_ms(one.between_s), *_ms(one.whole_s)] for point, one in results]  # fmt: skip
    lines = [*table([head, *rows], terminal_width(), right=range(len(head))),
             "Latencies in ms: to the first token, between pieces of an answer, to its end."]  # fmt: skip
    failures = sum((Counter(one.errors) for _, one in results), Counter())
    del failures["HTTP 429"]
    return "\n".join([*lines, *(f"Failed {count} x: {text}" for text, count in failures.items())])


def _ms(found: dict[str, float]) -> list[str]:
    return [f"{found[key] * 1e3:,.0f}" if found else "-" for key in ("p50", "p99")]
