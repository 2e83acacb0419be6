"""The API over an engine without a model: both forms, whole and streamed, every refusal in OpenAI's shape."""

from __future__ import annotations

import json
import logging
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
from fake_engine import FakeEngine, letters, next_letter, says
from hypothesis import given, settings
from hypothesis import strategies as st
from served import MODEL, Served, chat, post, served, wait_until

from msparallel.serve.api_error import of_validation
from msparallel.serve.api_keys import ApiKeys, read_keys
from msparallel.serve.http_guard import BODY_BYTES
from msparallel.serve.text_tokenizer import TextTokenizer

pytestmark = pytest.mark.pure
TEMPLATE = "User: Hi\nAssistant:"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server():
    with served(FakeEngine(speaks=next_letter)) as running:
        yield running


def events(response: httpx.Response) -> list[dict]:
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def error(response: httpx.Response, status: int) -> dict:
    """The error of a response that has OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert set(document) == {"error"} and set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["message"]
    return document["error"]


def test_a_completion_and_its_stream(server):
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 20}
    whole = post(server, "completions", body).json()
    assert whole["object"] == "text_completion" and whole["model"] == MODEL and whole["id"].startswith("cmpl-")
    assert abs(whole["created"] - time.time()) < 60
    assert whole["choices"] == [{"index": 0, "text": letters(b"Hi", 20), "logprobs": None, "finish_reason": "length"}]
    assert whole["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 2, "completion_tokens": 20, "total_tokens": 22, "prompt_tokens_details": None}  # fmt: skip
    streamed = post(server, "completions", {**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    told = events(streamed)
    assert "".join(event["choices"][0]["text"] for event in told) == letters(b"Hi", 20)
    assert [event["choices"][0]["finish_reason"] for event in told[-2:]] == [None, "length"]
    assert len({event["id"] for event in told}) == 1 and "usage" not in told[0]


def test_a_chat_and_its_stream_with_usage(server):
    text = letters(TEMPLATE.encode(), 12)
    whole = post(server, "chat/completions", chat(max_completion_tokens=12)).json()
    assert whole["choices"] == [{"index": 0, "message": {"role": "assistant", "content": text, "refusal": None},
                                 "logprobs": None, "finish_reason": "length"}]  # fmt: skip
    body = chat(max_tokens=12, stream=True, stream_options={"include_usage": True})
    told = events(post(server, "chat/completions", body))
    assert told[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in told[:-1]) == text
    assert told[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert told[-1]["choices"] == [] and told[-1]["usage"]["completion_tokens"] == 12
    assert all(event["usage"] is None for event in told[:-1])
    assert {event["object"] for event in told} == {"chat.completion.chunk"}


def test_token_ids_are_a_prompt(server):
    for prompt in ([72, 105], [[72, 105]], ["Hi"]):
        answer = post(server, "completions", {"model": MODEL, "prompt": prompt, "max_tokens": 5}).json()
        assert answer["choices"][0]["text"] == letters(b"Hi", 5)


def test_without_a_limit_a_chat_fills_the_context_and_a_completion_has_16(server):
    usage = post(server, "chat/completions", chat()).json()["usage"]
    assert usage["total_tokens"] == 1024
    assert post(server, "completions", {"model": MODEL, "prompt": "Hi"}).json()["usage"]["completion_tokens"] == 16


def test_parts_of_a_message_and_the_developers_role(server):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "D"}, {"role": "user", "content": parts}]
    answer = post(server, "chat/completions", chat(messages=messages, max_tokens=4)).json()
    assert answer["choices"][0]["message"]["content"] == letters(b"System: D\nUser: a\nb\nAssistant:", 4)


def test_log_probabilities_in_both_forms(server):
    body = chat(max_tokens=3, logprobs=True, top_logprobs=2)
    first = post(server, "chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    text = letters(TEMPLATE.encode(), 3)
    assert [one["token"] for one in first] == list(text) and first[0]["bytes"] == [ord(text[0])]
    assert all(one["logprob"] == -1.0 and len(one["top_logprobs"]) == 2 for one in first)
    told = events(post(server, "chat/completions", {**body, "stream": True}))
    streamed = [one for event in told if (found := event["choices"][0]["logprobs"]) for one in found["content"]]
    assert streamed == first
    alone = post(server, "chat/completions", chat(max_tokens=1, logprobs=True)).json()["choices"][0]["logprobs"]
    assert alone["content"][0]["top_logprobs"] == []
    other = post(server, "completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 3, "logprobs": 2}).json()
    lists = other["choices"][0]["logprobs"]
    assert lists["tokens"] == list(letters(b"Hi", 3)) and lists["text_offset"] == [0, 1, 2]
    assert lists["token_logprobs"] == [-1.0] * 3 and [len(top) for top in lists["top_logprobs"]] == [2, 2, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_and_the_end_token(stream):
    with served(FakeEngine(speaks=says("Grüße! 你好 END of it"))) as server:
        def ask(**more):
            response = post(server, "chat/completions", chat(max_tokens=60, stream=stream, **more))
            if not stream:
                return (choice := response.json()["choices"][0])["message"]["content"], choice["finish_reason"]
            told = [event["choices"][0] for event in events(response)]
            return "".join(one["delta"].get("content", "") for one in told), told[-1]["finish_reason"]

        assert ask() == ("Grüße! 你好 END of it", "stop")
        assert ask(stop="END") == ("Grüße! 你好 ", "stop")
        assert ask(stop=["好 E", "zzz"]) == ("Grüße! 你", "stop")
        assert ask(stop="END of it?") == ("Grüße! 你好 END of it", "stop")
        assert ask(stop=[]) == ask(stop=None) == ask()
        wait_until(lambda: server.service.scheduler.running == 0)
        counts = server.service.scheduler.counts
        assert counts.finished == 7 and counts.cancelled == 0
        longer = post(server, "chat/completions", chat(max_tokens=60, ignore_eos=True)).json()
        assert longer["usage"]["completion_tokens"] == 60


def test_log_probabilities_leave_out_what_a_stop_string_took():
    with served(FakeEngine(speaks=says("Hello END"))) as server:
        choice = post(server, "completions", {"model": MODEL, "prompt": "x", "max_tokens": 30, "logprobs": 0,
                                              "stop": "END"}).json()["choices"][0]  # fmt: skip
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == "Hello "


def test_settings_reach_the_engine(server):
    begin = len(server.engine.asked)

    def sampling(**more):
        post(server, "completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 1, **more})
        return server.engine.asked[-1].sampling

    one = sampling(temperature=0.5, top_p=0.9, top_k=7, seed=11)
    assert (one.temperature, one.top_p, one.top_k, one.seed) == (0.5, 0.9, 7, 11)
    assert sampling(seed=-1).seed == 2**64 - 1 and sampling(top_k=-1).top_k == 0
    first, second = sampling(), sampling()
    assert first.temperature == 1.0 and first.seed != second.seed
    assert len(server.engine.asked) == begin + 5


NEUTRAL = {"n": 1, "best_of": 1, "tools": [], "tool_choice": "none", "functions": None, "logit_bias": {},
           "frequency_penalty": 0.0, "presence_penalty": 0, "response_format": {"type": "text"}, "store": False,
           "metadata": {"a": "b"}, "user": "me", "echo": False, "suffix": None, "service_tier": "auto",
           "parallel_tool_calls": True, "modalities": ["text"], "audio": None, "top_k": None, "seed": None,
           "stop": None, "stream": None, "stream_options": None}  # fmt: skip


def test_what_asks_for_nothing_is_taken(server):
    assert post(server, "chat/completions", chat(max_tokens=1, logprobs=None, **NEUTRAL)).status_code == 200
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1, "logprobs": None, **NEUTRAL}
    assert post(server, "completions", body).status_code == 200


TOOL = {"type": "function", "function": {"name": "f"}}
REFUSED = [
    ({"n": 2}, "n", "one answer a request"), ({"n": True}, "n", "one answer"), ({"best_of": 3}, "best_of", "one"),
    ({"tools": [TOOL]}, "tools", "does not call tools"), ({"tool_choice": "auto"}, "tool_choice", "tools"),
    ({"functions": [{"name": "f"}]}, "functions", "tools"), ({"function_call": "auto"}, "function_call", "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format", "plain text"),
    ({"response_format": "text"}, "response_format", "plain text"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "no bias"), ({"frequency_penalty": 0.5}, "frequency_penalty", "penalties"),
    ({"presence_penalty": -1}, "presence_penalty", "penalties"), ({"modalities": ["audio"]}, "modalities", "plain"),
    ({"audio": {"voice": "x"}}, "audio", "plain text"), ({"store": True}, "store", "keeps nothing"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "chat_template_kwargs"), ({"echo": True}, "echo", "repeat"),
    ({"prediction": {}}, "prediction", "predicted"), ({"min_p": 0.1}, "min_p", "top_k"),
    ({"temperature": -0.1}, "temperature", "greater than or equal to 0"), ({"temperature": 2.1}, "temperature", "to 2"),
    ({"temperature": "1"}, "temperature", "valid number"), ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_p": 1.5}, "top_p", "less than or equal to 1"), ({"top_k": -2}, "top_k", "-1"),
    ({"top_k": 1.5}, "top_k", "valid integer"), ({"seed": 2**63}, "seed", "less than"),
    ({"seed": "x"}, "seed", "valid integer"), ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 2**80}, "max_tokens", "less than or equal"), ({"max_tokens": True}, "max_tokens", "integer"),
    ({"max_tokens": 1025}, "max_tokens", "context is 1024 tokens"),
    ({"stop": ""}, "stop", "at least 1"), ({"stop": ["a"] * 17}, "stop", "at most 16"),
    ({"stop": "x" * 257}, "stop", "at most 256"), ({"stop": [5]}, "stop", "valid string"),
    ({"stream": "yes"}, "stream", "boolean"), ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "no parameter"),
    ({"colour": "red"}, "colour", "no parameter of this server"), ({"user": 5}, "user", "valid string"),
    ({"model": None}, "model", "valid string"),
]  # fmt: skip
CHAT_REFUSED = [
    ({"messages": []}, "messages", "at least 1"), ({"messages": "Hi"}, "messages", "valid list"),
    ({"messages": [5]}, "messages[0]", "valid dictionary"), ({"messages": None}, "messages", "valid list"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role", "'wizard'"),
    ({"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]}, "messages[0].role", "tools"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [TOOL]}]}, "messages[0].tool_calls", "tools"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0].type", "no images"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type", "no audio"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content", "missing"),
    ({"messages": [{"role": "user", "content": "half \ud800"}]}, "messages[0].content", "surrogate"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "context is 1024 tokens, the prompt has 50"),
    ({"messages": [{"role": "user", "content": "x" * 900_000}]}, "messages", "at least"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"), ({"logprobs": 5}, "logprobs", "boolean"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "to 20"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "one limit"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "name of the template"),
    ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs.x", "valid"),
]  # fmt: skip
COMPLETION_REFUSED = [
    ({"prompt": ""}, "prompt", "at least one token"), ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [[]]}, "prompt", "empty"), ({"prompt": ["a", "b"]}, "prompt", "one a request"),
    ({"prompt": [1, "a"]}, "prompt", "valid"), ({"prompt": [-1]}, "prompt", "greater than or equal"),
    ({"prompt": [8192]}, "prompt", "ids 0 to 8191"), ({"prompt": None}, "prompt", "valid"),
    ({"prompt": 5}, "prompt", "valid"), ({"prompt": [True]}, "prompt", "valid"), ({"suffix": "x"}, "suffix", "goes on"),
    ({"logprobs": 6}, "logprobs", "to 5"), ({"logprobs": True}, "logprobs", "integer"),
    ({"prompt": [1] * 1024}, "prompt", "the prompt has 1024"),
    ({"prompt": [1] * 1020}, "max_tokens", "Use max_tokens 4 or less"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param", "why"), [*REFUSED, *CHAT_REFUSED], ids=lambda x: str(x)[:40])
def test_refused_chats(server, change, param, why):
    body = json.dumps({**chat(max_tokens=1), **change})
    told = error(httpx.post(f"{server.address}/v1/chat/completions", content=body, headers=JSON), 400)
    assert why in told["message"] and told["type"] == "invalid_request_error" and told["param"] == param


@pytest.mark.parametrize(("change", "param", "why"), [*REFUSED, *COMPLETION_REFUSED], ids=lambda x: str(x)[:40])
def test_refused_completions(server, change, param, why):
    body = {"model": MODEL, "prompt": "Hi", **({} if param == "max_tokens" else {"max_tokens": 1}), **change}
    told = error(post(server, "completions", body), 400)
    assert why in told["message"] and told["param"] == param


def test_all_problems_of_a_request_are_told_at_once(server):
    told = error(post(server, "chat/completions", {"temperature": 9, "seed": "x", "hue": 1}), 400)["message"]
    assert all(word in told for word in ("model is missing", "messages is missing", "temperature", "seed", "hue"))


@pytest.mark.parametrize("body", [
    b"", b"{", b"null", b"[]", b'"text"', b"5", b"\xff\xfe{}", b'{"model": "\xff"}', b"[" * 200_000,
    b'{"a":' * 50_000, b"1" * 10_000, b'{"model": NaN}', b'{"model": 1e999}', "{\u2028}".encode(), b"\x00",
])  # fmt: skip
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_what_is_no_request(server, path, body):
    error(httpx.post(f"{server.address}/v1/{path}", content=body, headers=JSON, timeout=30), 400)


def test_not_a_number_is_no_number(server):
    for value in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        body = b'{"model": "%s", "prompt": "a", "temperature": %s}' % (MODEL.encode(), value)
        error(httpx.post(f"{server.address}/v1/completions", content=body, headers=JSON), 400)


def test_a_body_says_that_it_is_json(server):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        error(httpx.post(f"{server.address}/v1/completions", content=b"{}", headers={"Content-Type": kind}), 415)
    given = {"Content-Type": "application/json; charset=utf-8"}
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1}).encode()
    assert httpx.post(f"{server.address}/v1/completions", content=body, headers=given).status_code == 200


def test_a_body_has_a_largest_size_also_when_it_does_not_say_so(server):
    address = f"{server.address}/v1/completions"
    large = b'{"prompt": "' + b"a" * 2 * BODY_BYTES + b'"}'
    error(httpx.post(address, content=large, headers=JSON, timeout=60), 413)

    def pieces():
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + 1 << 16]

    with suppress(httpx.WriteError, httpx.RemoteProtocolError):  # the server closed while more was coming
        error(httpx.post(address, content=pieces(), headers=JSON, timeout=60), 413)
    assert httpx.get(server.address + "/readyz").status_code == 200


def test_other_paths_methods_and_models(server):
    assert error(httpx.get(server.address + "/nothing"), 404)["message"] == "There is no such path."
    other = httpx.get(server.address + "/v1/completions")
    error(other, 405)
    assert other.headers["allow"] == "POST"
    told = error(post(server, "completions", {"model": "gpt-4\x1b[31m", "prompt": "a"}), 404)
    assert told["code"] == "model_not_found" and "\x1b" not in told["message"] and MODEL in told["message"]
    assert error(httpx.get(server.address + "/v1/models/other/one"), 404)["param"] == "model"
    listed = httpx.get(server.address + "/v1/models").json()["data"]
    assert [one["id"] for one in listed] == [MODEL] and listed[0]["max_model_len"] == 1024
    assert httpx.get(f"{server.address}/v1/models/{MODEL}").json() == listed[0]


def test_a_template_that_refuses_is_a_wrong_request(server, monkeypatch):
    from msparallel.serve.chat_prompt import ChatPrompt
    from msparallel.serve.chat_template import ChatTemplate

    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    monkeypatch.setattr(server.service, "chat", ChatPrompt(server.service.tokenizer, template))
    assert "roles must alternate" in error(post(server, "chat/completions", chat()), 400)["message"]


KEYS = ("key-of-the-first-team", "key-of-the-other-team")


def test_keys(caplog):
    caplog.set_level(logging.DEBUG)
    with served(FakeEngine(speaks=next_letter), keys=KEYS) as server:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": KEYS[0]}, {"Authorization": "Bearer"},
                        {"Authorization": f"Basic {KEYS[0]}"}, {"Authorization": b"Bearer \xff\xfe"}):  # fmt: skip
            refused = post(server, "completions", body, headers=headers)
            assert error(refused, 401)["code"] == "invalid_api_key" and refused.headers["www-authenticate"] == "Bearer"
        error(httpx.get(server.address + "/v1/models"), 401)
        large = httpx.post(f"{server.address}/v1/completions", content=b"x" * 100_000, headers=JSON)
        error(large, 401)  # before the body is looked at
        for key in KEYS:
            assert post(server, "completions", body, headers={"Authorization": f"bearer {key}"}).status_code == 200
        assert {httpx.get(server.address + path).status_code for path in ("/", "/healthz", "/readyz", "/metrics")} == {
            200}  # fmt: skip
        assert not any(key in httpx.get(server.address + "/metrics").text + caplog.text for key in KEYS)


def test_keys_from_a_file_and_from_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text(f"# two teams\n{KEYS[0]}\n\n  {KEYS[1]}  \n")
    assert read_keys(str(path)).client(f"Bearer {KEYS[1]}") == "key 2"
    monkeypatch.setenv("MSPARALLEL_API_KEYS", f"{KEYS[1]}, {KEYS[0]}")
    assert read_keys(None).client(f"Bearer {KEYS[1]}") == "key 1"
    monkeypatch.delenv("MSPARALLEL_API_KEYS")
    assert not read_keys(None).needed
    assert ApiKeys(KEYS).client("Bearer \udcff") is None


@pytest.mark.parametrize(("text", "why"), [("", "no key in it"), ("# none\n", "no key in it"), ("short\n", "Key 1:"),
                                           ("a" * 16 + "\n" + "b" * 15 + "é\n", "Key 2:"), (None, "cannot be read"),
                                           ("with a space in the key\n", "Key 1:")])  # fmt: skip
def test_a_file_of_keys_that_is_none(tmp_path, text, why):
    from msparallel.errors import UserError

    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=why) as refused:
        read_keys(str(path))
    assert "short" not in str(refused.value) and "space" not in str(refused.value).replace("without spaces", "")


def ask_in_threads(server: Served, count: int, **more) -> list[threading.Thread]:
    threads = [threading.Thread(target=lambda: post(server, "completions", {"model": MODEL, "prompt": "a", **more}))
               for _ in range(count)]  # fmt: skip
    for thread in threads:
        thread.start()
    return threads


def test_a_full_queue_is_429_and_says_when_to_come_again():
    with served(FakeEngine(speaks=next_letter, step_s=0.01), max_concurrency=1, max_waiting=1) as server:
        threads = ask_in_threads(server, 2, max_tokens=60)
        wait_until(lambda: server.service.scheduler.running + server.service.scheduler.waiting == 2)
        for path, body in (("completions", {"model": MODEL, "prompt": "a"}), ("chat/completions", chat(stream=True))):
            refused = post(server, path, body)
            told = error(refused, 429)
            assert told["code"] == "queue_full" and int(refused.headers["retry-after"]) >= 1
        for thread in threads:
            thread.join()
        assert post(server, "completions", {"model": MODEL, "prompt": "a"}).status_code == 200
        text = httpx.get(server.address + "/metrics").text
        assert 'msparallel_serve_requests_total{end="refused"} 2.0' in text
        assert 'msparallel_serve_errors_total{status="429"} 2.0' in text


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
def test_a_packed_body_is_told(server, coding):
    told = error(httpx.post(f"{server.address}/v1/completions", content=b"{}",
                            headers=JSON | {"Content-Encoding": coding}), 415)  # fmt: skip
    assert "Content-Encoding" in told["message"]
    assert error(httpx.post(f"{server.address}/v1/completions", content=b"{}",
                            headers=JSON | {"Content-Encoding": "identity"}), 400)["param"]  # fmt: skip


def test_many_small_lists_are_refused_before_they_are_looked_at(server):
    body = {"model": MODEL, "prompt": "a", "metadata": {"a": [[[]] * 100] * 3000}}
    assert "more than 50000 values" in error(post(server, "completions", body), 400)["message"]


def test_a_conversation_of_thousands_of_messages_keeps_nobody_waiting(server):
    """Its template adds words to each, so it goes to a thread however little its clients wrote."""
    ends = []
    thread = threading.Thread(target=lambda: ends.append(
        post(server, "chat/completions", chat(messages=[{"role": "user", "content": ""}] * 10_000))))  # fmt: skip
    ran = []

    class Watched(ThreadPoolExecutor):
        def submit(self, *words, **more):
            ran.append(1)
            return super().submit(*words, **more)

    server.service._threads, kept = Watched(2), server.service._threads
    thread.start()
    thread.join()
    server.service._threads = kept
    assert ran and ends[0].status_code == 400


def test_no_more_long_texts_are_read_than_can_be_let_in(monkeypatch):
    begun, go_on = [], threading.Event()

    def slowly(tokenizer, text):
        begun.append(text)
        go_on.wait(30)
        return [7] * 10

    with served(FakeEngine(), max_concurrency=2, max_waiting=1, max_length=1000) as server:
        monkeypatch.setattr(TextTokenizer, "encode", slowly)
        monkeypatch.setattr(TextTokenizer, "least_tokens", lambda tokenizer, text: 10)
        body = {"model": MODEL, "prompt": "long " * 2000, "max_tokens": 2}
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(post, server, "completions", body) for _ in range(8)]
            wait_until(lambda: sum(one.done() for one in asked) == 5)
            assert {one.result().status_code for one in asked if one.done()} == {429}
            go_on.set()
            assert sorted(one.result().status_code for one in asked) == [200] * 3 + [429] * 5
        assert len(begun) == 3
        assert post(server, "completions", body).status_code == 200, "every place is free again"


@pytest.mark.parametrize("stream", [False, True])
def test_waiting_too_long_is_503(stream):
    with served(FakeEngine(speaks=next_letter, step_s=0.02), max_concurrency=1, wait_s=0.1) as server:
        threads = ask_in_threads(server, 1, max_tokens=50)
        wait_until(lambda: server.service.scheduler.running == 1)
        refused = post(server, "completions", {"model": MODEL, "prompt": "b", "stream": stream})
        assert error(refused, 503)["code"] == "queue_timeout" and "retry-after" in refused.headers
        threads[0].join()


def test_an_answer_that_takes_too_long_is_ended():
    with served(FakeEngine(speaks=next_letter, step_s=0.02), request_s=0.3) as server:
        body = {"model": MODEL, "prompt": "b", "max_tokens": 500}
        assert error(post(server, "completions", body), 504)["code"] == "deadline_exceeded"
        text = post(server, "completions", {**body, "stream": True}).text
        assert json.loads(text.strip().split("\n\n")[-1][6:])["error"]["code"] == "deadline_exceeded"
        wait_until(lambda: server.service.scheduler.running == 0)


def test_an_engine_that_dies_is_503_for_those_who_wait_and_those_who_come():
    with served(FakeEngine(speaks=next_letter, step_s=0.005, fail_at=20), max_concurrency=1) as server:
        found: list[httpx.Response] = []
        body = {"model": MODEL, "prompt": "a", "max_tokens": 200}
        threads = [threading.Thread(target=lambda: found.append(post(server, "completions", body))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [error(one, 503)["code"] for one in found] == ["engine_ended"] * 3
        assert error(post(server, "chat/completions", chat()), 503)["code"] == "engine_ended"
        assert httpx.get(server.address + "/healthz").status_code == 503
        assert httpx.get(server.address + "/readyz").json()["state"] == "failed"
        assert "msparallel_serve_ready 0.0" in httpx.get(server.address + "/metrics").text


def test_a_stream_whose_engine_dies_ends_with_an_error():
    with served(FakeEngine(speaks=next_letter, fail_at=9)) as server:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 200, "stream": True}
        told = post(server, "completions", body).text.strip().split("\n\n")
        assert len(told) > 3 and json.loads(told[-1][6:])["error"]["code"] == "engine_ended"


class SlowStart(FakeEngine):
    """Loads until it is told to be ready."""

    def __init__(self):
        super().__init__(speaks=next_letter)
        self.go = threading.Event()

    async def start(self, progress):
        import asyncio

        from msparallel.serve.protocol import Loading

        progress(Loading("graphs", 3, 10))
        while not self.go.is_set():
            await asyncio.sleep(0.01)


def test_while_loading_it_says_how_far(monkeypatch):
    engine = SlowStart()
    monkeypatch.setattr("served.wait_until", lambda holds: time.sleep(1))
    with served(engine) as server:
        wait_until(lambda: httpx.get(server.address + "/readyz").json()["loading"] is not None)
        told = httpx.get(server.address + "/readyz")
        assert told.status_code == 503
        assert told.json() == {"state": "starting", "loading": {"what": "graphs", "done": 3, "total": 10}}
        assert httpx.get(server.address + "/healthz").status_code == 200
        assert "graphs, 3 of 10" in error(post(server, "chat/completions", chat()), 503)["message"]
        engine.go.set()
        wait_until(lambda: httpx.get(server.address + "/readyz").status_code == 200)
        assert post(server, "chat/completions", chat(max_tokens=1)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_the_place(stream):
    with served(FakeEngine(speaks=next_letter, step_s=0.005), max_concurrency=1) as server:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1000, "stream": stream}
        with pytest.raises(httpx.ReadTimeout), httpx.stream(
                "POST", f"{server.address}/v1/completions", json=body, timeout=0.5) as response:  # fmt: skip
            for _ in response.iter_raw():
                break
            raise httpx.ReadTimeout("read enough")
        wait_until(lambda: server.service.scheduler.running == 0)
        assert server.service.scheduler.counts.cancelled == 1
        steps = len(server.engine.asked)
        assert steps < 900
        time.sleep(0.05)
        assert len(server.engine.asked) == steps


def test_a_slow_reader_keeps_nobody_waiting():
    with served(FakeEngine(speaks=next_letter), max_concurrency=2) as server:
        host, port = server.address.removeprefix("http://").split(":")
        body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1000, "stream": True, "logprobs": 5}).encode()
        with socket.create_connection((host, int(port))) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
            for _ in range(5):
                assert post(server, "completions", {"model": MODEL, "prompt": "b"}).status_code == 200
            wait_until(lambda: server.service.scheduler.running == 0)  # its answer waits in its own queue
            received = b""
            while b"[DONE]" not in received:
                received += (part := reader.recv(1 << 16))
                assert part
        assert received.count(b"data: ") == 1000 + 2


def test_a_reader_that_reads_nothing_at_all_is_left(monkeypatch):
    monkeypatch.setattr("msparallel.serve.http_answer.STALL_S", 0.3)
    with served(FakeEngine(speaks=next_letter), max_concurrency=1, max_length=4096) as server:
        host, port = server.address.removeprefix("http://").split(":")
        body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 4000, "stream": True, "logprobs": 5}).encode()
        with socket.create_connection((host, int(port))) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
            wait_until(lambda: server.service.scheduler.counts.accepted == 1)
            wait_until(lambda: server.service.scheduler.running == 0)
            assert post(server, "completions", {"model": MODEL, "prompt": "b"}).status_code == 200


def test_metrics_add_up(server):
    for prompt in ("a", "b", "c"):
        assert post(server, "completions", {"model": MODEL, "prompt": prompt}).status_code == 200
    text = httpx.get(server.address + "/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    counts = server.service.scheduler.counts
    assert float(values['msparallel_serve_requests_total{end="finished"}']) == counts.finished >= 3
    assert float(values["msparallel_serve_time_to_first_token_seconds_count"]) == counts.finished
    assert float(values["msparallel_serve_request_seconds_count"]) == counts.finished
    answers = float(values['msparallel_serve_tokens_total{kind="answer"}'])
    assert float(values["msparallel_serve_time_between_tokens_seconds_count"]) == answers - counts.finished
    for name in ("ready", "requests_running", "requests_waiting", "cache_used_ratio", "steps_total", "stepped_total"):
        assert f"msparallel_serve_{name}" in values


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=6,
)  # fmt: skip
KEYS_OF_API = st.sampled_from(["model", "messages", "prompt", "max_tokens", "temperature", "stop", "n", "tools", "seed",
                               "logprobs", "stream", "stream_options", "chat_template_kwargs", "x"])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS_OF_API, JSON_VALUES, max_size=5), st.sampled_from(["chat/completions", "completions"]))
def test_any_json_is_answered_or_refused(server, changes, path):
    body = chat(max_tokens=1) if path == "chat/completions" else {"model": MODEL, "prompt": "a", "max_tokens": 1}
    body |= changes
    response = httpx.post(f"{server.address}/v1/{path}", content=json.dumps(body), headers=JSON, timeout=30)
    if response.status_code != 200:
        assert response.status_code in (400, 404)
        error(response, response.status_code)


@pytest.mark.parametrize("change", [
    {"prompt": [True] * 150_000}, {"prompt": [None] * 200_000}, {"prompt": [1] * 400_000 + ["a"]},
    {"stop": [5] * 400_000}, {"prompt": [[]] * 300_000},
    {"prompt": [[5, "a"]] * 100_000}, {"tools": [1] * 400_000}, {"n": "x" * 900_000},
    {"logit_bias": {str(number): 1 for number in range(60_000)}}, {str(number): 1 for number in range(60_000)},
    {"stream": True, "stream_options": {str(number): 1 for number in range(60_000)}}, {"prompt": [1] * 500_000},
    {"metadata": {str(number): 1 for number in range(60_000)}},
])  # fmt: skip
def test_a_large_wrong_body_is_refused_at_its_first_problem(server, change):
    """Pydantic alone tells every wrong item, of every type that it may be: 100 seconds and 3 GiB for 8 MiB."""
    told = error(post(server, "completions", {"model": MODEL, "prompt": "a", "max_tokens": 1, **change}), 400)
    assert len(told["message"]) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_500_000  # KiB


@pytest.mark.parametrize("key", ["metadata", "tools", "prompt", "colour"])
def test_a_deep_body_is_refused(server, key):
    """Shallow enough for the JSON reader, too deep for whoever looks through it."""
    for levels in (*range(100, 900, 100), *range(900, 1000, 4)):
        value = '{"a":' * levels + "1" + "}" * levels if key == "metadata" else "[" * levels + "]" * levels
        body = f'{{"model": "{MODEL}", "{key}": {value}}}'
        error(httpx.post(f"{server.address}/v1/completions", content=body, headers=JSON, timeout=30), 400)


@pytest.mark.parametrize("messages", [
    [5] * 300_000, [{}] * 9_000, [{}] * 11_000, [{"role": "user", "content": [{}] * 9_000}],
    [{"role": "user", "content": "a", **{f"k{number}": 1 for number in range(60_000)}}],
    [{"role": "user", "content": [{"type": "text", "text": "a", **{f"k{number}": 1 for number in range(60_000)}}]}],
])  # fmt: skip
def test_large_wrong_messages(server, messages):
    assert len(error(post(server, "chat/completions", chat(messages=messages)), 400)["message"]) < 1000


def test_many_problems_are_cut():
    problems = [{"type": "missing", "loc": ("body", f"key{number}"), "msg": ""} for number in range(50)]
    assert of_validation(problems).message.endswith("key4 is missing. 45 more.")


@pytest.mark.parametrize(("recipe", "pieces"), [("serve_tiny_cpu", 128), ("qwen3_8b_serve_tp2", 512)])
def test_prompts_are_read_in_the_engines_largest_pieces(recipe, pieces):
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.serve.service import Service
    from msparallel.serve.text_tokenizer import TextTokenizer

    plan = resolve(load_recipe(recipe))
    assert Service(plan, TextTokenizer.bytes(plan.shape.vocab_size)).chunk == pieces
