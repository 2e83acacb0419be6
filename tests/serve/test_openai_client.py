"""OpenAI's own client against the server: what it parses, what it raises, what it retries."""

from __future__ import annotations

import openai
import pytest
from fake_engine import FakeEngine, letters, next_letter, says
from served import MODEL, served, wait_until

pytestmark = pytest.mark.pure
MESSAGES = [{"role": "user", "content": "Hi"}]
TEMPLATE = b"User: Hi\nAssistant:"
KEY = "a-key-for-this-test-only"


def client_of(server, key: str = KEY, **more) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.address + "/v1", api_key=key, timeout=30, **{"max_retries": 0} | more)


@pytest.fixture(scope="module")
def server():
    with served(FakeEngine(speaks=next_letter), keys=(KEY,)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as made:
        yield made


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "msparallel"


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=16, temperature=0,
                                            n=1, user="me")  # fmt: skip
    assert answer.choices[0].message.content == letters(TEMPLATE, 16) and answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(TEMPLATE), 16)


def test_chat_stream(client):
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, stream=True,
                                            stream_options={"include_usage": True})  # fmt: skip
    events = list(stream)
    assert events[0].choices[0].delta.role == "assistant"
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == letters(TEMPLATE, 16)
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "length"
    assert events[-1].usage.completion_tokens == 16


def test_chat_stream_helper():
    with (served(FakeEngine(speaks=says("one, two"))) as server, client_of(server) as client,
          client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream):  # fmt: skip
        kinds = [event.type for event in stream]
        whole = stream.get_final_completion()
    assert whole.choices[0].message.content == "one, two" and "content.delta" in kinds


def test_completion_and_its_stream(client):
    whole = client.completions.create(model=MODEL, prompt="Hi", max_tokens=9)
    assert whole.choices[0].text == letters(b"Hi", 9)
    parts = client.completions.create(model=MODEL, prompt=[72, 105], max_tokens=9, stream=True)
    assert "".join(part.choices[0].text for part in parts) == letters(b"Hi", 9)


def test_logprobs(client):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, logprobs=True,
                                            top_logprobs=3)  # fmt: skip
    told = answer.choices[0].logprobs.content
    assert "".join(one.token for one in told) == letters(TEMPLATE, 4) and len(told[0].top_logprobs) == 3
    other = client.completions.create(model=MODEL, prompt="Hi", max_tokens=4, logprobs=1).choices[0].logprobs
    assert other.tokens == list(letters(b"Hi", 4)) and other.text_offset == [0, 1, 2, 3]


def test_stop_and_extensions():
    with served(FakeEngine(speaks=says("one, two, three"))) as server, client_of(server) as client:
        def content(**more):
            return client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=40, **more).choices[0]

        assert content(stop=[", three"]).message.content == "one, two"
        assert content().finish_reason == "stop"
        assert content(seed=5, extra_body={"top_k": 4, "ignore_eos": True}).finish_reason == "length"
        assert server.engine.asked[-1].steps[0].sampling.seed == 5
        assert content(extra_body={"chat_template_kwargs": {"enable_thinking": False}}).finish_reason == "stop"


def test_errors_are_the_clients_own(client, server):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert refused.value.param == "n" and "one answer a request" in str(refused.value)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5000)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError), client_of(server, key="not-the-right-key") as other:
        other.models.list()


def test_a_full_server_is_a_rate_limit_that_the_client_can_wait_for():
    with (served(FakeEngine(speaks=next_letter, step_s=0.005), max_concurrency=1, max_waiting=0) as server,
          client_of(server) as client, client_of(server, max_retries=5) as patient):  # fmt: skip
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=150, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model=MODEL, prompt="b")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert patient.completions.create(model=MODEL, prompt="b").choices[0].text == letters(b"b", 16)
        stream.close()


def test_closing_a_stream_frees_the_place():
    with (served(FakeEngine(speaks=next_letter, step_s=0.005), max_concurrency=1) as server,
          client_of(server) as client):  # fmt: skip
        stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        for number, _ in enumerate(stream):
            if number == 3:
                break
        stream.close()
        wait_until(lambda: server.service.scheduler.running == 0)
        assert server.service.scheduler.counts.cancelled == 1 and len(server.engine.asked) < 800


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_is_a_servers_error(stream):
    with (served(FakeEngine(speaks=next_letter, fail_at=1)) as server, client_of(server) as client,
          pytest.raises(openai.InternalServerError)):  # fmt: skip
        client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
