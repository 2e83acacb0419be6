"""`generate` over an engine without a model: what is told, and that it ends whatever happens to an answer."""

from __future__ import annotations

import asyncio

import pytest
from fake_engine import FakeEngine, letters, next_letter
from fake_server import plan_of

from msparallel.errors import RunError, UserError
from msparallel.serve import generate as module
from msparallel.serve.generate import Asked, generate
from msparallel.serve.service import Service
from msparallel.serve.text_tokenizer import TextTokenizer

pytestmark = pytest.mark.pure


def generated(engine: FakeEngine, monkeypatch, tmp_path, *, limit: int = 8, **serve_keys):
    plan, told = plan_of(**serve_keys), []
    monkeypatch.setattr(module, "EngineClient", lambda plan, log: engine)
    asked = Asked(prompts=("a", "bc", "def"), limit=limit)
    work = generate(plan, TextTokenizer.bytes(plan.shape.vocab_size), asked, tmp_path / "engine.log", told.append)
    try:
        return asyncio.run(asyncio.wait_for(work, 30)), told
    finally:
        assert engine.closed


def test_answers_come_in_the_order_of_the_prompts(monkeypatch, tmp_path):
    found, told = generated(FakeEngine(speaks=next_letter), monkeypatch, tmp_path, max_concurrency=2)
    assert [one["text"] for one in found] == [letters(prompt, 8) for prompt in (b"a", b"bc", b"def")]
    assert "".join(told) == "".join(f"{one['prompt']}{one['text']}\n" for one in found)


def test_an_answer_that_takes_too_long_ends_it(monkeypatch, tmp_path):
    engine = FakeEngine(speaks=next_letter, step_s=0.02)
    with pytest.raises(RunError, match="took too long: no end in 0.2 s"):
        generated(engine, monkeypatch, tmp_path, limit=500, request_s=0.2, wait_s=0.1)


@pytest.mark.parametrize("fail_at", range(1, 13))  # of twelve messages
def test_an_engine_that_dies_is_what_is_told(monkeypatch, tmp_path, fail_at):
    with pytest.raises(RuntimeError, match="the engine died"):
        generated(FakeEngine(speaks=next_letter, fail_at=fail_at), monkeypatch, tmp_path, limit=4, max_concurrency=1)


def test_a_prompt_without_a_token_is_the_users_mistake(monkeypatch, tmp_path):
    async def no_token(self, text):
        return []

    monkeypatch.setattr(Service, "text_prompt", no_token)
    with pytest.raises(UserError, match="no token") as refused:
        generated(FakeEngine(), monkeypatch, tmp_path)
    assert refused.value.exit_code == 2
