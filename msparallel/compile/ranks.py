"""Compiles ranks side by side, each in a fork of a process that has imported MindSpore.

In: Requests, a memory estimate. Out: each request once its folder holds the Result, as it gets done. How
many run at once follows from processor cores and free memory; a rank that takes too much is stopped with a word.

>>> with temporary_folder() as folder:
...     requests = [Request(source="my.yaml", overrides=[], rank=0, world_size=8, folder=str(folder / "rank_0"))]
...     for done in compile_ranks(requests, memory_bytes=2 * 2**30):
...         print(done.rank, read_result(Path(done.folder)).compile_s)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from msparallel.compile.library import simulated_target
from msparallel.compile.request import (
    EXIT_FILE,
    FAILURE_FILE,
    PID_FILE,
    RESULT_FILE,
    STAGE_FILE,
    Request,
    write_json,
)
from msparallel.compile.translate import engine_error
from msparallel.errors import RunError, UserError
from msparallel.launch.processes import die_with_parent, interruptible, kill

POLL_S = 0.1
TIME_LIMIT_S = 1800.0
RESERVE = 0.9
"""Share of the free memory that compilations may fill."""


@dataclass(slots=True)
class _Running:
    request: Request
    started: float

    @property
    def folder(self) -> Path:
        return Path(self.request.folder)

    def exit_code(self) -> int | None:
        """None while it compiles."""
        path = self.folder / EXIT_FILE
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, also after Ctrl-C."""
    folder = Path(tempfile.mkdtemp(prefix="msparallel-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compile_ranks(
    requests: Sequence[Request],
    *,
    memory_bytes: int,
    time_limit_s: float = TIME_LIMIT_S,
    progress: bool = True,
) -> Iterator[Request]:
    """Compile every request; yields each in the order of completion.

    Args:
        requests: each with a folder of its own that does not exist yet.
        memory_bytes: that one compilation is expected to take.
        time_limit_s: for one rank.
        progress: a bar on stderr.

    Raises:
        RunError: too little memory, a process that was killed or took too long, no compiler.
        UserError: MindSpore's engine refused the strategy; its words translated.
    """
    at_once = _at_once(len(requests), memory_bytes)
    waiting = list(reversed(requests))
    running: list[_Running] = []
    server: subprocess.Popen[bytes] | None = None
    # None: only where stderr is a terminal.
    bar = tqdm(
        total=len(requests),
        desc="Compiling",
        unit="rank",
        disable=None if progress else True,
        leave=False,
        mininterval=0.5,
        miniters=0,
    )
    with interruptible() as check_interrupt:
        try:
            simulated_target().path()  # built once, before several processes want it
            server = _start_server(Path(requests[0].folder).parent)
            while waiting or running:
                check_interrupt()
                while waiting and len(running) < at_once:
                    running.append(_start(server, waiting.pop()))
                ended = server.poll()
                for worker in list(running):
                    code = worker.exit_code()
                    if code is None and ended is None:
                        _watch(worker, time_limit_s)
                        continue
                    running.remove(worker)
                    _check(worker, ended if code is None else code)
                    bar.update()
                    yield worker.request
                stages = (f"rank {worker.request.rank}: {last_words(worker.folder)}" for worker in running)
                bar.set_postfix_str(", ".join(stages), refresh=False)
                bar.update(0)  # draws at most every mininterval
                time.sleep(POLL_S)
            check_interrupt()
        finally:
            if server is not None:
                kill(server)
            bar.close()


def _at_once(ranks: int, memory_bytes: int) -> int:
    """How many compilations fit beside each other."""
    free = available_memory_bytes()
    if memory_bytes > free:
        raise RunError(
            f"Compiling one rank is expected to take {memory_bytes / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} GiB are free here. End other processes, or compile fewer layers: "
            "--depth representative where the model is deep, or model.num_layers=N."
        )
    return max(1, min(ranks, len(os.sched_getaffinity(0)), int(free * RESERVE // max(1, memory_bytes))))


def available_memory_bytes() -> int:
    """Memory that new processes can have: the kernel's estimate, or less where a control group says so."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    for limit, used, statistics, cached in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        try:
            text = (CONTROL_GROUP / limit).read_text(encoding="ascii").strip()
            if text.isdigit():
                # Pages of files that nobody uses are counted as used, but given up before anything else.
                lines = (CONTROL_GROUP / statistics).read_text(encoding="ascii").splitlines()
                given_up = next((int(line.split()[1]) for line in lines if line.startswith(f"{cached} ")), 0)
                taken = int((CONTROL_GROUP / used).read_text(encoding="ascii")) - given_up
                free = min(free, int(text) - taken)
        except OSError:
            continue
    return free


CONTROL_GROUP = Path("/sys/fs/cgroup")


def _start_server(folder: Path) -> subprocess.Popen[bytes]:
    """The process that imports MindSpore once and forks for every rank."""
    return start_process("msparallel.compile.worker", log=folder / "server.txt", stdin=subprocess.PIPE)


def _start(server: subprocess.Popen[bytes], request: Request) -> _Running:
    folder = Path(request.folder)
    folder.mkdir()
    write_json(folder / "request.json", asdict(request))
    assert server.stdin is not None, "it was opened as a pipe"
    with suppress(BrokenPipeError):  # a server that is gone is seen by its exit code
        server.stdin.write(os.fsencode(folder / "request.json") + b"\n")
        server.stdin.flush()
    return _Running(request, time.monotonic())


def start_process(module: str, *arguments: str, log: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Run a module of this package in a process of its own; it ends with this one, and its words go to `log`."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    with log.open("wb") as words:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, module, *arguments],
            stdin=stdin,
            stdout=words,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


_BOOT = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; module = sys.argv.pop(1); "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
"""Runs a module without the working folder among the places of modules: a user's random.py is none of ours."""


def _check(worker: _Running, code: int) -> None:
    """Raise where a finished process did not compile."""
    if code == 0 and (worker.folder / RESULT_FILE).exists():
        return
    failure = worker.folder / FAILURE_FILE
    if failure.exists():
        told = json.loads(failure.read_text(encoding="utf-8"))
        if told["exit_code"] is None:
            raise engine_error(worker.request, told["type"], told["text"])
    log = worker.folder / "log.txt"
    log = log if log.exists() else worker.folder.parent / "server.txt"
    raise_failure(f"The compilation of rank {worker.request.rank}", code, worker.folder, log)


def raise_failure(what: str, code: int, folder: Path, log: Path) -> NoReturn:
    """Raise what a process that `start_process` began told of its failure, or how it ended without a word."""
    failure = folder / FAILURE_FILE
    if failure.exists():
        told = json.loads(failure.read_text(encoding="utf-8"))
        raise (UserError if told["exit_code"] == UserError.exit_code else RunError)(told["text"])
    if shutil.disk_usage(folder.parent).free < LEAST_DISK_BYTES:
        raise RunError(f"{what} failed: no space is left in {folder.parent}. Set TMPDIR to a roomier place.")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    hint = " The kernel does that when memory runs out: see `dmesg`." if code == -signal.SIGKILL else ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    told = "\n".join(f"  | {line}" for line in lines)
    raise RunError(f"{what} {how} ({last_words(folder)}).{hint}\n{told}".rstrip())


def _watch(worker: _Running, time_limit_s: float) -> None:
    """Raise where a process takes too long or leaves too little memory to the machine."""
    rank, seconds = worker.request.rank, time.monotonic() - worker.started
    doing = last_words(worker.folder)
    if seconds > time_limit_s:
        raise RunError(
            f"The compilation of rank {rank} has not ended after {seconds:.0f} s; it is in: {doing}. "
            "Allow more with --time-limit SECONDS, or compile fewer layers (--depth representative)."
        )
    if available_memory_bytes() < LAST_MEMORY_BYTES:
        taken = _resident_bytes(worker.folder)
        raise RunError(
            f"Memory runs out: the compilation of rank {rank} has taken {taken / 2**30:.1f} GiB ({doing}) and "
            f"less than {LAST_MEMORY_BYTES / 2**20:.0f} MiB are left. It was stopped before the kernel would. "
            "Compile fewer layers (--depth representative)."
        )


LAST_MEMORY_BYTES = 400 * 2**20
LEAST_DISK_BYTES = 2**20


def _resident_bytes(folder: Path) -> int:
    try:
        pid = json.loads((folder / PID_FILE).read_text(encoding="utf-8"))
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def last_words(folder: Path) -> str:
    """What a process said last that it does."""
    try:
        return (folder / STAGE_FILE).read_text(encoding="utf-8")
    except OSError:
        return "importing MindSpore"
