"""From a recipe to a server that runs, and its end.

In: a Plan, an engine. Out: HTTP at serve.host and serve.port, while the engine loads too; an exit code. SIGTERM and
Ctrl-C end it when what was let in has its answer, or after serve.drain_s; a second one ends it at once.

>>> serve(plan, EngineClient(plan, Path("engine.log")), tell=print)  # doctest: +SKIP
0
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from msparallel.errors import RunError, UserError
from msparallel.plan import Plan
from msparallel.serve.api_keys import ApiKeys, read_keys
from msparallel.serve.app import create_app
from msparallel.serve.protocol import Loading
from msparallel.serve.requests import Draining
from msparallel.serve.service import Service, Startable
from msparallel.serve.text_tokenizer import TextTokenizer

_ENDING = (signal.SIGTERM, signal.SIGINT)
_LAST_BYTES_S = 10
"""For readers to take the end of their answers, once all are made."""
_LAST_WORDS_S = 0.2
"""For what tells those who wait that they wait in vain, where the server ends at once."""
_BACKLOG = 2048


class _Http(uvicorn.Server):
    """uvicorn without its own signal handlers: ours wait for answers before they end it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(plan: Plan, tokenizer: TextTokenizer, engine: Startable, *, tell: Callable[[str], object],
          progress: Callable[[Loading], object] = lambda loading: None,
          on_ready: Callable[[bool], object] = lambda needs_key: None, access_log: bool = False) -> int:  # fmt: skip
    """Serve until a signal. Returns 0, or 1 where the engine died.

    Args:
        tell: takes lines for the person at the terminal.
        progress: is told how far loading is; on_ready: once, when requests are taken, whether they need a key.

    Raises:
        UserError: keys, address or weights are wrong.
        RunError: the port is taken, the engine cannot start.
    """
    assert plan.recipe.serve is not None, "only recipes that serve are served"
    keys = read_keys(plan.recipe.serve.api_keys_file)
    service = Service(plan, tokenizer)
    if not keys.needed and not _is_loopback(plan.recipe.serve.host):
        tell(f"serve.host is {plan.recipe.serve.host} and no key is asked for: everybody who reaches this machine can "
             "use the model. Keys: serve.api_keys_file=FILE")  # fmt: skip
    _allow_many_files()
    with listen(plan.recipe.serve.host, plan.recipe.serve.port) as listening:
        running = _Running(service, engine, tell)
        return asyncio.run(running.run(listening, keys, progress, on_ready, access_log))


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections. Raises UserError for an address that is not of this machine, RunError for a port
    that is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM,
                                                                flags=socket.AI_PASSIVE)[0]  # fmt: skip
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"serve.host: {host}\n  There is no such address: {error}.\n  Try: serve.host=127.0.0.1"
                        ) from None  # fmt: skip
    try:
        found = socket.socket(family, kind, protocol)
    except OSError as error:  # a kernel without this family
        raise UserError(f"serve.host: {host}\n  This machine has no such addresses: {error.strerror}.\n"
                        "  Try: serve.host=127.0.0.1") from None  # fmt: skip
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        where = f"serve.host {host}, serve.port {port}"
        if error.errno == errno.EADDRINUSE:
            raise RunError(f"{where}\n  Another program listens there. Try: serve.port={port % 65_535 + 1}") from None
        if error.errno == errno.EACCES:
            raise RunError(f"{where}\n  Ports below 1024 need rights that this process does not have. "
                           "Try: serve.port=8000") from None  # fmt: skip
        raise UserError(f"{where}\n  Nothing can listen there: {error.strerror}.") from None
    return found


class _Running:
    """A server from its start to its end."""

    def __init__(self, service: Service, engine: Startable, tell: Callable[[str], object]):
        self._service, self._engine, self._tell = service, engine, tell
        self._signals = 0
        self._end, self._at_once = asyncio.Event(), asyncio.Event()

    async def run(self, listening: socket.socket, keys: ApiKeys, progress: Callable[[Loading], object],
                  on_ready: Callable[[bool], object], access_log: bool) -> int:  # fmt: skip
        app = create_app(self._service, keys)
        config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=access_log,
                                server_header=False, timeout_graceful_shutdown=_LAST_BYTES_S)  # fmt: skip
        http = _Http(config)
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._signal)
        answering = asyncio.create_task(http.serve(sockets=[listening]))
        working = asyncio.create_task(self._service.run(self._engine, progress))
        ready = asyncio.create_task(self._ready(lambda: on_ready(keys.needed)))
        try:
            await self._until_signal(working, answering)
            return 1 if self._service.state == "failed" else 0
        finally:
            await self._drain()
            http.should_exit = True
            http.force_exit = self._at_once.is_set()
            for task in (working, ready):
                task.cancel()
            await asyncio.gather(answering, working, ready, return_exceptions=True)
            await self._engine.close()
            self._service.close()

    def _signal(self) -> None:
        self._signals += 1
        self._end.set()
        if self._signals > 1:
            self._at_once.set()

    async def _ready(self, on_ready: Callable[[], object]) -> None:
        while self._service.state == "starting":
            await asyncio.sleep(0.02)
        if self._service.state == "ready":
            on_ready()

    async def _until_signal(self, working: asyncio.Task[None], answering: asyncio.Task[None]) -> None:
        """Raises what kept the engine from starting. An engine that dies later is told, and /healthz says so until
        whoever watches the server ends it."""
        ending = asyncio.create_task(self._end.wait())
        await asyncio.wait({ending, working, answering}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and not ending.done():
            if self._service.scheduler is None:
                ending.cancel()
                working.result()
            self._tell(f"{working.exception()}\nRequests are answered with 503 until the server is started again.")
            await asyncio.wait({ending, answering}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()

    async def _drain(self) -> None:
        scheduler = self._service.scheduler
        left = scheduler.running + scheduler.waiting if scheduler and not scheduler.failure else 0
        if left:
            self._tell(f"Ending: {left} request{'s' * (left > 1)} to finish, {self._service.settings.drain_s:g} s at "
                       "most. Once more ends at once.")  # fmt: skip
        draining = asyncio.create_task(self._service.drain())
        at_once = asyncio.create_task(self._at_once.wait())
        await asyncio.wait({draining, at_once}, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        at_once.cancel()
        if self._at_once.is_set() and scheduler is not None:
            scheduler.give_up(Draining("the server was told to end at once"))
            await asyncio.sleep(_LAST_WORDS_S)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _allow_many_files() -> None:
    """Every connection is an open file; the soft limit is often 1024, the hard one higher."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
