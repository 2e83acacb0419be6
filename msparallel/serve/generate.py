"""Answers to a few prompts, without HTTP: what `msparallel generate` does.

In: a Plan, its tokenizer, prompts. Out: the text of each answer, shown as it comes, in the order of the prompts; an
engine process that starts before and ends behind them.

>>> asyncio.run(generate(plan, tokenizer, Asked(prompts=("Hello",)), Path("engine.log"), print))  # doctest: +SKIP
[{'prompt': 'Hello', 'text': ...}]
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msparallel.errors import RunError, UserError
from msparallel.plan import Plan
from msparallel.serve.api_error import ApiError
from msparallel.serve.engine_client import EngineClient
from msparallel.serve.prepare import LoadingBar
from msparallel.serve.service import Service, TextAnswer, Wanted
from msparallel.serve.text_tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked; the options are those of `Wanted`, for every prompt.

    Attributes:
        chat: each prompt is a user's message; `system` stands in front.
    """

    prompts: tuple[str, ...]
    chat: bool = False
    system: str | None = None
    limit: int = 64
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stops: tuple[str, ...] = ()


async def generate(plan: Plan, tokenizer: TextTokenizer, asked: Asked, log: Path,
                   show: Callable[[str], object] | None) -> list[dict[str, Any]]:  # fmt: skip
    """Args:
        log: of the engine's process.
        show: takes pieces of text, prompt and answer; None: nothing is shown.

    Returns a document for each prompt: prompt, text, finish_reason, prompt_tokens, answer_tokens.

    Raises UserError: a prompt that has no room, or no token; RunError: the engine, an answer that takes too long.
    """
    service = Service(plan, tokenizer)
    prompts = [await _tokens(service, asked, prompt) for prompt in asked.prompts]
    engine, bar = EngineClient(plan, log), LoadingBar()
    working = asyncio.create_task(service.run(engine, bar))
    try:
        while service.state == "starting" and not working.done():
            await asyncio.sleep(0.02)
        bar.close()
        if working.done():
            working.result()
        return await _answers(service, asked, prompts, show)
    except ApiError as error:
        kind = RunError if error.status >= 500 else UserError
        raise service.failure or kind(error.message) from None
    finally:
        bar.close()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await engine.close()
        service.close()


async def _tokens(service: Service, asked: Asked, prompt: str) -> list[int]:
    try:
        if not asked.chat:
            tokens = await service.text_prompt(prompt)
        else:
            system = [] if asked.system is None else [{"role": "system", "content": asked.system}]
            tokens = await service.chat_prompt([*system, {"role": "user", "content": prompt}], {})
    except ApiError as error:
        raise UserError(f"PROMPT\n  {error.message}") from None
    length = service.settings.max_length
    if len(tokens) + asked.limit > length:
        raise UserError(f"PROMPT\n  It has {len(tokens)} tokens, and --max-tokens is {asked.limit}; together they may "
                        f"have {length} (serve.max_length).")  # fmt: skip
    return tokens


async def _answers(service: Service, asked: Asked, prompts: list[list[int]],
                   show: Callable[[str], object] | None) -> list[dict[str, Any]]:  # fmt: skip
    """As many at once as there are places; told one after the other."""
    limit = service.settings.max_concurrency
    coming = deque(enumerate(prompts))
    running: deque[tuple[int, TextAnswer]] = deque()
    documents = []
    while coming or running:
        while coming and len(running) < limit:
            number, prompt = coming.popleft()
            running.append((number, service.answer(_wanted(asked, prompt))))
        number, answer = running.popleft()
        if show and not asked.chat:
            show(asked.prompts[number])
        text = ""
        async for piece in answer:
            text += piece.text
            if show and piece.text:
                show(piece.text)
        if show:
            show("\n")
        documents.append({"prompt": asked.prompts[number], "text": text, "finish_reason": answer.reason,
                          "prompt_tokens": answer.prompt_tokens, "answer_tokens": answer.answer_tokens})  # fmt: skip
    return documents


def _wanted(asked: Asked, prompt: list[int]) -> Wanted:
    return Wanted(prompt=prompt, limit=asked.limit, temperature=asked.temperature, top_p=asked.top_p,
                  top_k=asked.top_k, seed=asked.seed, stops=asked.stops)  # fmt: skip
