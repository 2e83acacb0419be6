"""The server's side of an engine process, with processes that have no model: how each of their ends is told, and that
nothing of them stays behind."""

from __future__ import annotations

import asyncio
import sys
import tempfile

import pytest
from fake_server import plan_of

from msparallel.errors import RunError, UserError
from msparallel.serve.engine_client import EngineClient
from msparallel.serve.protocol import Chosen, Decode, Loading
from msparallel.serve.sampling import Choice

pytestmark = pytest.mark.pure
BEGIN = """
import os, socket, sys
from msparallel.serve.protocol import *
from msparallel.serve.sampling import Choice
channel = socket.socket(socket.AF_UNIX)
channel.connect(sys.argv[1])
say = lambda message: channel.sendall(encode_message(message))
say(Hello(int(os.environ.get("RANK_ID", "0"))))
"""
READY = BEGIN + "say(Loading('weights', 1, 2)); say(Ready())\n"
LINES = "for line in channel.makefile('rb'): "


class ScriptClient(EngineClient):
    """An engine that is a few lines of Python."""

    def __init__(self, folder, script: str):
        super().__init__(plan_of(), folder / "engine.log")
        self._script = script

    def _command(self, path):
        return [sys.executable, "-c", self._script, str(path)]


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where temporary folders are made; empty again after each test."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


def run(client: EngineClient, *, ask: bool = True) -> tuple[list[Loading], list[Chosen]]:
    """What was told while it began, and two answers."""

    async def work():
        told = []
        try:
            await client.start(told.append)
            return told, [await client.ask(Decode([])) for _ in range(2 * ask)]
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(work(), 60))


def test_it_loads_answers_and_ends_with_the_socket(tmp_path):
    client = ScriptClient(tmp_path, READY + LINES + "say(Chosen([Choice(7, -0.5, ((7, -0.5),))]))")
    told, answers = run(client)
    assert told == [Loading("weights", 1, 2)] and answers == [Chosen([Choice(7, -0.5, ((7, -0.5),))])] * 2
    assert client._process.returncode == 0


def test_the_rank_of_the_servers_own_job_is_not_the_engines(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK_ID", "3")
    _, answers = run(ScriptClient(tmp_path, READY + LINES + "say(Chosen([]))"))
    assert answers == [Chosen([])] * 2


@pytest.mark.parametrize(("script", "code", "told"), [
    ("import sys; print('no memory'); sys.exit(3)", 1, r"ended with code 3\.\n  \| no memory"),
    (BEGIN + "os.kill(os.getpid(), 9)", 1, "was killed by signal 9"),
    (BEGIN + "say(Failed('weights of another model', 2))", 2, "^weights of another model$"),
    (BEGIN + "print('deep', flush=True); say(Failed('ValueError: x', 1))", 1, r"failed: ValueError: x\n  \| deep"),
    (READY + LINES + "say(Failed('ValueError: x', 1))", 1, r"failed: ValueError: x\n  Log: .*engine\.log"),
    (READY + LINES + "os._exit(4)", 1, "ended with code 4"),
])  # fmt: skip
def test_every_end_is_told_with_its_exit_code(tmp_path, script, code, told):
    with pytest.raises(UserError, match=told) as ended:
        run(ScriptClient(tmp_path, script))
    assert ended.value.exit_code == code


def test_one_that_is_never_started_leaves_nothing(tmp_path, temporary):
    EngineClient(plan_of(), tmp_path / "engine.log")
    assert not list(temporary.iterdir())


def test_a_folder_whose_name_is_too_long_for_a_socket(tmp_path, monkeypatch, temporary):
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(RunError, match="Try: TMPDIR=/tmp"):
        run(ScriptClient(tmp_path, READY), ask=False)
    assert not list(long.iterdir())
