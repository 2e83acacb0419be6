"""The engine processes of a server, as the server sees them.

In: a Plan. Out: `ask`, which hands a Prefill or Decode to the process of every rank and returns what the first chose.
Processes talk over a Unix socket in a folder that only this user can enter; they end with the server.

>>> engine = EngineClient(plan, Path("engine.log"))  # doctest: +SKIP
>>> await engine.start(progress)  # doctest: +SKIP
>>> (await engine.ask(Decode(steps))).choices  # doctest: +SKIP
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from msparallel.errors import RunError, UserError
from msparallel.launch.processes import die_with_parent
from msparallel.plan import Plan
from msparallel.serve.protocol import (
    Chosen,
    Decode,
    Failed,
    Hello,
    Loading,
    Message,
    Prefill,
    Ready,
    decode_message,
    encode_message,
)

_LINE_BYTES = 64 * 1024 * 1024
"""Longest message; log probabilities of a full batch are far below."""
_START_S = 60.0
"""In which a process must say hello; loading may take as long as it takes, since it tells how far it is."""
_END_S = 5.0


class EngineClient:
    """Args:
    plan: of a recipe that serves.
    log: where the processes' own output goes.
    """

    def __init__(self, plan: Plan, log: Path):
        self._plan, self._log = plan, log
        self._process: asyncio.subprocess.Process | None = None
        self._readers: dict[int, asyncio.StreamReader] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}

    async def start(self, progress: Callable[[Loading], object]) -> None:
        """Start the processes and wait until all are ready.

        Raises:
            UserError: weights that do not fit, or are not there.
            RunError: a process failed, or ended.
        """
        came: asyncio.Queue[int] = asyncio.Queue()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hello = decode_message(await reader.readline())
            assert isinstance(hello, Hello)
            self._readers[hello.rank], self._writers[hello.rank] = reader, writer
            await came.put(hello.rank)

        with tempfile.TemporaryDirectory(prefix="msparallel-serve-") as folder:
            path = Path(folder) / "engine"
            try:
                server = await asyncio.start_unix_server(greet, path, limit=_LINE_BYTES)
            except OSError as error:
                raise RunError(f"{path}\n  The engine's socket cannot be made there: {error}. Try: TMPDIR=/tmp"
                               ) from None  # fmt: skip
            try:
                with self._log.open("wb") as log:
                    self._process = await asyncio.create_subprocess_exec(
                        *self._command(path), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                        env=_environment(), preexec_fn=die_with_parent, start_new_session=True,
                    )  # fmt: skip
                for _ in range(self._plan.world_size):
                    await self._unless_dead(came.get(), _START_S)
            finally:
                server.close()
        await asyncio.gather(*(self._loaded(rank, progress) for rank in self._readers))

    def _command(self, path: Path) -> list[str]:
        """One process directly, several through msrun."""
        from msparallel.launch.msrun import msrun_command

        recipe = self._plan.recipe
        worker = ["-m", "msparallel.serve.worker", str(path), recipe.path, *recipe.overrides]
        if self._plan.world_size == 1:
            return [sys.executable, *worker]
        command = msrun_command(self._plan, log_dir=self._log.parent, follow=False)
        return [*command[: command.index("python")], "python", *worker]

    async def _loaded(self, rank: int, progress: Callable[[Loading], object]) -> None:
        while True:
            message = await self._read(rank)
            if isinstance(message, Ready):
                return
            if isinstance(message, Loading) and rank == 0:
                progress(message)

    async def ask(self, message: Prefill | Decode) -> Chosen:
        """One at a time. Raises RunError where the engine fails, or has ended."""
        line = encode_message(message)
        try:
            for writer in self._writers.values():
                writer.write(line)
                await writer.drain()
        except ConnectionError:
            raise await self._death() from None
        answer = await self._read(0)
        assert isinstance(answer, Chosen), f"the engine says {answer}"
        return answer

    async def _read(self, rank: int) -> Message:
        try:
            line = await self._readers[rank].readline()
        except ConnectionError:
            line = b""
        if not line:
            raise await self._death()
        message = decode_message(line)
        if isinstance(message, Failed):
            raise UserError(message.text) if message.exit_code == 2 else self._failure(f"failed: {message.text}")
        return message

    async def _unless_dead(self, waiting, seconds: float) -> None:
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        task = asyncio.ensure_future(waiting)
        done, _ = await asyncio.wait({task, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            ended.cancel()
            return
        task.cancel()
        raise await self._death()

    async def _death(self) -> RunError:
        assert self._process is not None
        try:
            code = await asyncio.wait_for(self._process.wait(), _END_S)
            told = f"ended with code {code}." if code >= 0 else f"was killed by signal {-code}."
        except asyncio.TimeoutError:
            told = "does not answer."
        return self._failure(told)

    def _failure(self, told: str) -> RunError:
        """What is told of the engine, with the end of its log."""
        lines = self._log.read_text(errors="replace").splitlines()[-5:] if self._log.exists() else []
        shown = "".join(f"\n  | {line}" for line in lines)
        return RunError(f"The engine {told}{shown}\n  Log: {self._log}")

    async def close(self) -> None:
        """End the processes; they end by themselves when the sockets close, and are killed where they do not."""
        for writer in self._writers.values():
            writer.close()
        if self._process is not None and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), _END_S)
            except asyncio.TimeoutError:
                self._process.kill()
                await self._process.wait()


def _environment() -> dict[str, str]:
    """Ours, without the number that a job may have given to this process; msrun gives each of several its own."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return {name: value for name, value in os.environ.items() if name != "RANK_ID"} | {"PYTHONPATH": path}
