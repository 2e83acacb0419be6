"""bench-serve against servers that answer anything: a result or a failed request with its reason, never a traceback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.cli.bench_serve import _table
from msparallel.serve import load as load_module
from msparallel.serve.load import Load, Seen, _piece, closed_loop, summary

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
MODELS = b'{"data":[{"id":"m"}]}'
PIECE = b'data: {"choices":[{"text":"a"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def usage(text: bytes) -> bytes:
    return PIECE + b'data: {"choices":[],"usage":' + text + b"}\n\n" + DONE


GOOD = usage(b'{"prompt_tokens":1,"completion_tokens":2}')
ODD = {
    "number": b"data: 5\n\n", "null": b"data: null\n\n", "list": b"data: []\n\n", "text": b'data: "error"\n\n',
    "choices null": b'data: {"choices":null}\n\n', "choices text": b'data: {"choices":"abc"}\n\n',
    "choices numbers": b'data: {"choices":[1]}\n\n', "usage list": usage(b"[1]"), "usage empty": usage(b"{}"),
    "usage text": usage(b'{"prompt_tokens":"x","completion_tokens":"y"}'),
    "usage nan": usage(b'{"prompt_tokens":NaN,"completion_tokens":Infinity}'),
    "usage huge": usage(b'{"prompt_tokens":1,"completion_tokens":' + b"9" * 400 + b"}"),
    "usage huger": usage(b'{"prompt_tokens":1,"completion_tokens":' + b"9" * 5000 + b"}"),
    "usage negative": usage(b'{"prompt_tokens":1,"completion_tokens":-1}'),
    "usage true": usage(b'{"prompt_tokens":true,"completion_tokens":1}'),
    "deep": b"data: " + b"[" * 100_000 + b"\n\n", "no text": b"data: \xff\xfe\n\n", "nothing": b"",
    "error": b'data: {"error":"\\u001b[31mred ' + b"x" * 100_000 + b'"}\n\n',
    "a line without end": b"x" * 3_000_000,
}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        return None

    def do_GET(self) -> None:
        self._answer(self.server.models)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.server.answer)

    def _answer(self, body: bytes | None) -> None:
        """None: a byte now and then, without end."""
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body) if body is not None else 10**9))
        if self.server.retry_after is not None:
            self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        try:
            if body is not None:
                self.wfile.write(body)
            while body is None:
                self.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:  # the client has left
            return


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        models, answer, status, retry_after = MODELS, GOOD, 200, None

    with Server(("127.0.0.1", 0), _Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def ask(server: ThreadingHTTPServer, **fields: object) -> Seen:
    (seen,) = asyncio.run(closed_loop(Load(url=url_of(server), model="m", **fields), clients=1, requests=1))
    return seen


def test_a_good_answer(server):
    seen = ask(server)
    assert seen.whole and (seen.prompt_tokens, seen.answer_tokens, len(seen.pieces_s)) == (1, 2, 1)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_a_failed_request_with_its_reason(server, name):
    server.answer = ODD[name]
    seen = ask(server)
    assert not seen.whole and seen.error and seen.error.isprintable() and len(seen.error) < 400
    found = summary([seen])
    assert found.failed == 1 and list(found.errors) == [seen.error]


def test_a_refusal_is_told_in_the_servers_words_once_for_each_status(server):
    server.status = 400
    server.answer = b'{"error": {"message": "The context is 1024 tokens: the prompt has 1500."}}'
    seen = ask(server)
    assert seen.error == "HTTP 400: The context is 1024 tokens: the prompt has 1500."
    server.answer = b'{"error": {"message": "The context is 1024 tokens: the prompt has 1600."}}'
    other = ask(server)
    server.status, server.answer = 503, b"<html>"
    third = ask(server)
    assert third.error == "HTTP 503: <html>"
    assert summary([seen, other, third]).errors == {seen.error: 2, third.error: 1}


def test_an_answer_that_never_ends_is_given_up(server):
    server.answer = None
    began = time.monotonic()
    assert ask(server, timeout_s=0.5).error == "no whole answer within 0.5 s" and time.monotonic() - began < 20


def test_of_a_refusal_only_a_bounded_part_is_read(server, monkeypatch):
    monkeypatch.setattr(load_module, "MOST_ANSWER_BYTES", 10_000)
    server.status, server.answer = 500, b"x\n" * 1_000_000
    assert "for one answer" in ask(server).error
    server.status, server.answer = 429, b"{}"
    assert ask(server).error == "HTTP 429"


@pytest.mark.parametrize(
    ("header", "waits"), [("3", 3.0), ("0", 0.0), ("86400", 60.0), ("1e9", 1.0), ("-5", 1.0), ("", 1.0), (None, 1.0),
                          ("Fri, 31 Dec 1999 23:59:59 GMT", 1.0), ("9" * 5000, 1.0)]
)  # fmt: skip
def test_who_is_refused_comes_again_when_the_server_says(server, monkeypatch, header, waits):
    server.status, server.answer, server.retry_after = 429, b"{}", header
    slept, sleep = [], asyncio.sleep

    async def record(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(load_module.asyncio, "sleep", record)
    seen = asyncio.run(closed_loop(Load(url=url_of(server), model="m"), clients=1, requests=3))
    assert [one.status for one in seen] == [429] * 3 and slept == [waits] * 2  # not after the last


def test_without_a_whole_answer_there_is_no_rate():
    found = summary([Seen(0.5, status=429, error="HTTP 429"), Seen(0.7, error="gone")])
    assert (found.duration_s, found.tokens_per_s, found.requests_per_s) == (0.0, 0.0, 0.0)
    assert (found.refused, found.failed, found.errors) == (1, 1, {"HTTP 429": 1, "gone": 1})


def test_failures_of_all_points_of_a_sweep_are_added_up():
    results = [(point, summary([Seen(0.0, error="gone")] * count + [Seen(0.0, status=429, error="HTTP 429")]))
               for point, count in ((1.0, 3), (4.0, 2))]  # fmt: skip
    told = _table(results, "concurrency").splitlines()
    assert [line for line in told if line.startswith("Failed")] == ["Failed 5 x: gone"]


KEYS = ("choices", "text", "usage", "prompt_tokens", "completion_tokens", "error")
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
)


def check_piece(piece: object) -> None:
    seen = Seen(0.0)
    try:
        _piece(seen, piece, 1.0)
    except ValueError as error:
        assert len(str(error)) < 300
    seen.done_s = 2.0
    json.dumps(summary([seen]).__dict__, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(any_json)
def test_any_piece(piece):
    check_piece(piece)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(any_json)
def test_any_piece_many(piece):
    check_piece(piece)


def bench(*words: str, env: dict[str, str] | None = None) -> tuple[int, dict, str]:
    one = ("--requests", "1", "--concurrency", "1", "--json")
    command = [sys.executable, "-m", "msparallel", "bench-serve", *words, *one]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    "models",
    [b"[" * 200_000, b"\xff\xfe\x00", b"", b"null", b"[]", b'{"data":[]}', b'{"data":[{"id":5}]}', b" " * 3_000_000],
    ids=["deep", "no text", "empty", "null", "list", "no model", "a number", "long"],
)
def test_what_is_no_list_of_models_is_told(server, models):
    server.models = models
    code, told, _ = bench(url_of(server))
    assert code == 1 and ("names no model" in told["error"] or "does not end" in told["error"])


def test_a_list_of_models_that_never_ends_is_given_up(server):
    server.models = None
    code, told, _ = bench(url_of(server))
    assert code == 1 and "does not end" in told["error"]


def test_a_good_server_is_exit_code_0(server):
    code, told, _ = bench(url_of(server))
    assert code == 0 and told["points"][0]["answer_tokens"] == 2


@pytest.mark.parametrize("key", ["sk-s3cret\nX-Other: y", "sk-s3cret ", "sk-s3crét", "\x1bs3cret", "s3cret" * 500])
def test_a_key_that_is_none_is_refused_and_not_shown(server, key):
    code, told, stderr = bench(url_of(server), "--api-key-env", "K", env={"K": key})
    assert code == 2 and "K" in told["error"] and "s3cr" not in json.dumps(told) + stderr


@pytest.mark.parametrize(
    "words",
    [
        ("http://\x01",), ("http://h:1/\x1b[31m",), ("http://" + "a" * 70_000,), ("http://\udcff",), ("http://[",),
        ("http://127.0.0.1:99999",), ("file:///etc/passwd",), ("http://me:pw@h",), ("http://a b",), ("",),
        ("http://127.0.0.1:1", "--prompt-words", "\u00b2"), ("http://127.0.0.1:1", "--prompt-words", "9" * 5000),
        ("http://127.0.0.1:1", "--answer-tokens", "1-\u00b2"), ("http://127.0.0.1:1", "--answer-tokens", "-"),
        ("http://127.0.0.1:1", "--prompt-words", "5-3"), ("http://127.0.0.1:1", "--prompt-words", "0"),
    ],
)  # fmt: skip
def test_bad_words_are_exit_code_2(words):
    code, told, _ = bench(*words)
    assert code == 2 and told["error"]


def test_load_without_end_is_refused():
    command = [sys.executable, "-m", "msparallel", "bench-serve", "http://127.0.0.1:1", "--rate", "10000",
               "--duration", "86400"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          timeout=60)  # fmt: skip
    assert done.returncode == 2 and "--duration 100" in done.stderr


def test_a_picture_that_cannot_be_written_is_told_before_the_load(server, tmp_path):
    (tmp_path / "notes.png").write_text("mine")
    server.answer = None  # a load would not end
    code, told, _ = bench(url_of(server), "--plot", str(tmp_path / "notes.png"))
    assert code == 2 and "another file is there" in told["error"]


@pytest.mark.parametrize("name, value", [("HTTP_PROXY", "bogus://me:s3cret@x"), ("SSL_CERT_FILE", "/nope")])
def test_a_bad_proxy_or_certificate_of_the_environment_is_told(name, value):
    code, told, stderr = bench("http://192.0.2.1:8000", env={name: value})
    assert code == 2 and "environment" in told["error"] and "s3cret" not in told["error"] + stderr


def test_a_server_of_this_machine_is_asked_without_a_proxy(server):
    """Else the proxy's speed would be measured, or nothing."""
    code, told, _ = bench(url_of(server), env={"HTTP_PROXY": "http://192.0.2.1:9"})
    assert code == 0 and told["points"][0]["whole"] == told["points"][0]["requests"] > 0
