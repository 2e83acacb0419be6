"""Compiles ranks side by side, each in a process of its own.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from msparallel.compile.library import library_path
from msparallel.compile.request import FAILURE_FILE, STAGE_FILE, Request, write_json
from msparallel.compile.translate import engine_error
from msparallel.errors import RunError, UserError
from msparallel.launch.processes import die_with_parent, interruptible

POLL_S = 0.1
TIME_LIMIT_S = 1800.0
RESERVE = 0.9
"""Share of the free memory that compilations may fill."""


@dataclass(slots=True)
class _Running:
    request: Request
    process: subprocess.Popen[bytes]
    started: float

    @property
    def folder(self) -> Path:
        return Path(self.request.folder)


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
    library_path()  # built once, before several processes want it
    waiting = list(reversed(requests))
    running: list[_Running] = []
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
            while waiting or running:
                check_interrupt()
                while waiting and len(running) < at_once:
                    running.append(_start(waiting.pop()))
                for worker in list(running):
                    if worker.process.poll() is not None:
                        running.remove(worker)
                        _check(worker)
                        bar.update()
                        yield worker.request
                    else:
                        _watch(worker, time_limit_s)
                stages = (f"rank {worker.request.rank}: {last_words(worker.folder)}" for worker in running)
                bar.set_postfix_str(", ".join(stages), refresh=False)
                bar.update(0)  # draws at most every mininterval
                time.sleep(POLL_S)
            check_interrupt()
        finally:
            for worker in running:
                kill(worker.process)
            bar.close()


def _at_once(ranks: int, memory_bytes: int) -> int:
    """How many compilations fit beside each other."""
    free = available_memory_bytes()
    if memory_bytes > free:
        raise RunError(
            f"Compiling one rank is expected to take {memory_bytes / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} GiB are free here. Compile fewer "
            "layers: --depth representative, or model.num_layers=N."
        )
    return max(1, min(ranks, len(os.sched_getaffinity(0)), int(free * RESERVE // max(1, memory_bytes))))


def available_memory_bytes() -> int:
    """Memory that new processes can have: the kernel's estimate, or less where a control group says so."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            text = (Path("/sys/fs/cgroup") / limit).read_text(encoding="ascii").strip()
            if text.isdigit():
                free = min(free, int(text) - int((Path("/sys/fs/cgroup") / used).read_text(encoding="ascii")))
        except OSError:
            continue
    return free


def _start(request: Request) -> _Running:
    process = start_process("msparallel.compile.worker", asdict(request), Path(request.folder))
    return _Running(request, process, time.monotonic())


def start_process(module: str, request: Mapping[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    """Run a module of this package in a process of its own, with a request as JSON; its words go to log.txt.

    Args:
        folder: of the request; it is made.
    """
    folder.mkdir()
    write_json(folder / "request.json", request)
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(folder / "request.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _check(worker: _Running) -> None:
    """Raise where a finished process did not compile."""
    if worker.process.returncode == 0:
        return
    failure = worker.folder / FAILURE_FILE
    if failure.exists():
        told = json.loads(failure.read_text(encoding="utf-8"))
        if told["exit_code"] is None:
            raise engine_error(worker.request, told["type"], told["text"])
    raise_failure(f"The compilation of rank {worker.request.rank}", worker.process.returncode, worker.folder)


def raise_failure(what: str, code: int, folder: Path) -> NoReturn:
    """Raise what a process that `start_process` began told of its failure, or how it ended without a word."""
    failure = folder / FAILURE_FILE
    if failure.exists():
        told = json.loads(failure.read_text(encoding="utf-8"))
        raise (UserError if told["exit_code"] == UserError.exit_code else RunError)(told["text"])
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    hint = " The kernel does that when memory runs out: see `dmesg`." if code == -signal.SIGKILL else ""
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
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
        taken = _resident_bytes(worker.process.pid)
        raise RunError(
            f"Memory runs out: the compilation of rank {rank} has taken {taken / 2**30:.1f} GiB ({doing}) and "
            f"less than {LAST_MEMORY_BYTES / 2**20:.0f} MiB are left. It was stopped before the kernel would. "
            "Compile fewer layers (--depth representative)."
        )


LAST_MEMORY_BYTES = 400 * 2**20


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def last_words(folder: Path) -> str:
    """What a process said last that it does."""
    try:
        return (folder / STAGE_FILE).read_text(encoding="utf-8")
    except OSError:
        return "starting"


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, where it has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
