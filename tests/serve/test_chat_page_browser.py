"""The page to chat with, in a browser, over a real server: what is sent, what streams in, how it is stopped."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, next_letter, says
from report.browser import Browser, missing
from served import served, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]
BODIES = "return [...document.querySelectorAll('.message.' + arguments[0] + ' .body')].map((one) => one.textContent)"
TEXT = "return document.getElementById(arguments[0]).textContent"
SET = "document.getElementById(arguments[0]).value = arguments[1]"
SEND = "document.getElementById('text').value = arguments[0]; document.getElementById('ask').requestSubmit()"
IDLE = "return document.getElementById('stop').hidden"


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path) as running:
        running.size(1000, 800)
        yield running


def opened(browser: Browser, server) -> None:
    browser.open(server.address + "/")
    wait_until(lambda: browser.run(TEXT, "model") == "serve_tiny_cpu")


def asked(server) -> str:
    """The last prompt that the engine read whole."""
    return bytes(token for token in server.engine.held[0] if token < 256).decode()


def test_a_conversation(browser):
    said = "Grüße! <b>你好</b> 😀"
    with served(FakeEngine(speaks=says(said), step_s=0.01), max_concurrency=1) as server:
        opened(browser, server)
        browser.run(SET, "system", "Be brief.")
        browser.run(SET, "temperature", "0.5")
        browser.run(SET, "tokens", "60")
        browser.run(SEND, "Hello <i>there</i>")
        wait_until(lambda: browser.run(BODIES, "assistant") == [said] and browser.run(IDLE))
        assert browser.run(BODIES, "user") == ["Hello <i>there</i>"]
        assert "tokens/s" in browser.run(TEXT, "speed")
        sampling = server.engine.asked[-1].steps[0].sampling
        assert sampling.temperature == 0.5
        browser.run(SEND, "And?")
        wait_until(lambda: len(browser.run(BODIES, "assistant")) == 2 and browser.run(IDLE))
        turns = f"System: Be brief.\nUser: Hello <i>there</i>\nAssistant: {said}\nUser: And?\nAssistant:"
        assert asked(server).startswith(turns)
        assert (told := browser.console()) == [], told
        own = [address for address in browser.requests() if not address.startswith(server.address)]
        assert [address for address in own if not address.startswith("data:")] == []


def test_stop_and_new(browser):
    with served(FakeEngine(speaks=next_letter, step_s=0.1), max_concurrency=1) as server:
        opened(browser, server)
        browser.run(SET, "tokens", "900")  # more than come before a busy machine has pressed Stop
        browser.run(SEND, "Go on")
        wait_until(lambda: len((browser.run(BODIES, "assistant") or [""])[0]) > 5)
        browser.run("document.getElementById('stop').click()")
        wait_until(lambda: browser.run(IDLE))
        wait_until(lambda: server.service.scheduler.counts.cancelled == 1)
        assert len(browser.run(BODIES, "assistant")[0]) > 5 and browser.run(BODIES, "error") == []
        browser.run("document.getElementById('clear').click()")
        assert browser.run("return document.querySelectorAll('.message').length") == 0


def test_new_while_an_answer_comes_leaves_nothing_of_it(browser):
    with served(FakeEngine(speaks=next_letter, step_s=0.01), max_concurrency=1) as server:
        opened(browser, server)
        browser.run(SET, "tokens", "60")
        browser.run(SEND, "First")
        wait_until(lambda: len((browser.run(BODIES, "assistant") or [""])[0]) > 5)
        browser.run("document.getElementById('clear').click()")
        wait_until(lambda: browser.run(IDLE))
        browser.run(SEND, "Second")
        wait_until(lambda: browser.run(BODIES, "assistant") != [] and browser.run(IDLE))
        assert asked(server).startswith("User: Second\nAssistant:")


def test_keys_and_errors_are_told(browser):
    with served(FakeEngine(speaks=says("ok")), keys=("a-key-for-this-test-only",)) as server:
        browser.open(server.address + "/")
        wait_until(lambda: "asks for a key" in browser.run(TEXT, "state"))
        browser.run(SET, "key", "a-key-for-this-test-only")
        browser.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        wait_until(lambda: browser.run(TEXT, "model") == "serve_tiny_cpu")
        browser.run(SEND, "x" * 2000)
        wait_until(lambda: browser.run(BODIES, "error") != [])
        assert "context is 1024 tokens" in browser.run(BODIES, "error")[0]
        browser.run(SEND, "short")
        wait_until(lambda: browser.run(BODIES, "assistant") == ["ok"] and browser.run(IDLE))


def test_it_fits_a_phone(browser):
    with served(FakeEngine(speaks=says("a" * 300)), max_length=2048) as server:
        browser.size(360, 640)
        opened(browser, server)
        browser.run(SEND, "b" * 500)
        wait_until(lambda: browser.run(BODIES, "assistant") == ["a" * 300])
        assert browser.run("return document.documentElement.scrollWidth") <= 360
