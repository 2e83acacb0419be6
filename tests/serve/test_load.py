"""The load generator against a server whose delays are known."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from stub_server import StubServer

from msparallel.cli.main import main
from msparallel.serve.load import Load, arrivals, closed_loop, open_loop, summary

pytestmark = pytest.mark.pure


def test_a_closed_loop_keeps_so_many_at_once_and_sees_the_delays():
    with StubServer() as stub:
        load = Load(url=stub.url, model="stub", prompt_words=(3, 9), answer_tokens=(5, 5))
        found = summary(asyncio.run(closed_loop(load, clients=3, requests=12)))
    assert (found.requests, found.whole, found.refused, found.failed) == (12, 12, 0, 0) and stub.most == 3
    assert found.answer_tokens == 60 and found.prompt_tokens == sum(len(one["prompt"].split()) for one in stub.bodies)
    assert 0.05 <= found.first_token_s["p50"] < found.whole_s["p50"]
    assert found.between_s["p50"] >= 0.02 and found.whole_s["p50"] >= 0.05 + 4 * 0.02
    assert found.tokens_per_s == pytest.approx(60 / found.duration_s)


def test_the_same_seed_sends_the_same_requests():
    with StubServer(first_s=0, between_s=0) as stub:
        load = Load(url=stub.url, model="stub")
        for _ in range(2):
            asyncio.run(closed_loop(load, clients=1, requests=4))
    assert stub.bodies[:4] == stub.bodies[4:]
    assert all(16 <= len(one["prompt"].split()) <= 64 and 32 <= one["max_tokens"] <= 64 for one in stub.bodies)
    assert stub.bodies[0]["stream"] and stub.bodies[0]["stream_options"] == {"include_usage": True}


def test_an_open_loop_sends_whatever_the_server_does():
    with StubServer(first_s=0.3, pieces=1) as stub:
        load = Load(url=stub.url, model="stub")
        found = summary(asyncio.run(open_loop(load, moments=[0.0, 0.02, 0.04, 0.06])))
    assert stub.most == 4 and found.whole == 4


def test_arrivals_are_a_poisson_process():
    moments = arrivals(rate=5, duration_s=2000, seed=3)
    gaps = np.diff([0.0, *moments])
    assert len(moments) == pytest.approx(10_000, rel=0.05) and moments == sorted(moments)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05) and gaps.std() == pytest.approx(0.2, rel=0.07)


def test_refusals_and_broken_answers_are_told_apart():
    with StubServer(refuse_above=2, break_at=(1,)) as stub:
        load = Load(url=stub.url, model="stub")
        found = summary(asyncio.run(closed_loop(load, clients=4, requests=12)))
    assert found.refused > 0 and found.failed == 1 and found.whole + found.refused + found.failed == 12
    assert set(found.errors) >= {"HTTP 429"} and len(found.errors) == 2


def run(*words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench-serve", *words])
    told = capsys.readouterr()
    return end.value.code or 0, told.out, told.err


def test_the_verb_sweeps_plots_and_keeps_the_key_to_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("A_KEY", "sk-very-secret")
    with StubServer(first_s=0.01, between_s=0.001) as stub:
        words = [stub.url, "--concurrency", "1,2", "--requests", "4", "--plot", str(tmp_path / "p.png")]
        code, out, err = run(*words, "--api-key-env", "A_KEY", capsys=capsys)
        assert code == 0 and "at once" in out and out.count("4/4") == 2 and "sk-very-secret" not in out + err
        assert stub.keys[0] == "Bearer sk-very-secret" and (tmp_path / "p.png").stat().st_size > 5000
        code, out, _ = run(f"{stub.url}/v1", "--rate", "20", "--duration", "1", "--json", capsys=capsys)
    told = json.loads(out)
    assert code == 0 and told["by"] == "rate" and told["points"][0]["failed"] == 0 and told["model"] == "stub"


def test_a_failed_request_is_exit_code_1(capsys):
    with StubServer(first_s=0, between_s=0, break_at=(2,)) as stub:
        code, out, _ = run(stub.url, "--concurrency", "1", "--requests", "3", capsys=capsys)
    assert code == 1 and "Failed 1 x: " in out


@pytest.mark.parametrize(("words", "code", "told"), [
    (["http://127.0.0.1:9"], 1, "No server answers there"),
    (["ftp://x"], 2, "no URL of a server"),
    (["http://u:p@x"], 2, "no URL of a server"),
    (["http://x:99999"], 2, "looks like http://127.0.0.1:8000"),
    (["http://x", "--concurrency", "0"], 2, "numbers above 0"),
    (["http://x", "--concurrency", "1.5"], 2, "numbers above 0"),
    (["http://x", "--rate", "nan"], 2, "numbers above 0"),
    (["http://x", "--rate", "1", "--concurrency", "1"], 2, "give one of them"),
    (["http://x", "--prompt-words", "9-3"], 2, "the smaller number first"),
    (["http://x", "--prompt-words", "many"], 2, "neither a number nor a span"),
    (["http://x", "--api-key-env", "NO_SUCH_KEY"], 2, "no such variable"),
])  # fmt: skip
def test_what_cannot_be(words, code, told, capsys):
    found, out, err = run(*words, capsys=capsys)
    assert (found, out) == (code, "") and told in err and "Traceback" not in err
