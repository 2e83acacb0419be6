"""A server inside the test: the application behind a real uvicorn on loopback, in a thread with its own loop.

>>> with served(FakeEngine(speaks=says("Hello"))) as server:
...     httpx.get(server.address + "/readyz").status_code
200
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from fake_engine import FakeEngine
from fake_server import plan_of

from msparallel.serve.api_keys import ApiKeys
from msparallel.serve.app import create_app
from msparallel.serve.service import Service
from msparallel.serve.text_tokenizer import TextTokenizer

MODEL = "serve_tiny_cpu"
REPO = Path(__file__).parents[2]


@dataclass(frozen=True)
class Served:
    address: str
    service: Service
    engine: FakeEngine


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def served(engine: FakeEngine, *, tokenizer: TextTokenizer | None = None, keys: tuple[str, ...] = (),
           **serve_keys: object) -> Iterator[Served]:  # fmt: skip
    plan = plan_of(**serve_keys)
    service = Service(plan, tokenizer or TextTokenizer.bytes(plan.shape.vocab_size))
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(service, ApiKeys(keys)), port=port, lifespan="off",
                                           log_config=None, access_log=False))  # fmt: skip

    async def run() -> None:
        working = asyncio.create_task(service.run(engine))
        await server.serve()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        wait_until(lambda: server.started and service.state != "starting")
        yield Served(f"http://127.0.0.1:{port}", service, engine)
    finally:
        server.should_exit = True
        thread.join(30)


def wait_until(holds, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


@contextmanager
def server_process(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`fake_server.py` in a process of its own, ready."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO), str(Path(__file__).parent)])}
    command = [sys.executable, str(Path(__file__).with_name("fake_server.py")), str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line == "ready\n", process.stderr.read()
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def chat(text: str = "Hi", **more: object) -> dict[str, object]:
    """A body of /v1/chat/completions."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def post(server: Served, path: str, body: object, **more) -> httpx.Response:
    return httpx.post(f"{server.address}/v1/{path}", json=body, timeout=30, **more)
