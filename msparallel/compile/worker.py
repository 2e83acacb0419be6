"""The process that compiles ranks: `python -m msparallel.compile.worker` reads the path of a request on each line.

It imports MindSpore once; each rank is compiled in a fork of it, which a rank's settings and MindSpore's memory end
with.
In: `request.Request`s. Out, in a request's folder: a folder for every graph of the step with its graph, the engine's
layouts and strategies, and `result.json` (`request.Result`); or `failure.json` with MindSpore's words. At last the
fork's exit code.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from msparallel.compile.request import (
    EXIT_FILE,
    FAILURE_FILE,
    PID_FILE,
    RESULT_FILE,
    STAGE_FILE,
    GraphResult,
    Request,
    Result,
    write_json,
)
from msparallel.errors import RunError, UserError
from msparallel.launch.processes import die_with_parent

POLL_S = 0.05


def serve(source: int) -> None:
    """Compile what is named on `source`, a file descriptor, until it is closed and all are done."""
    os.environ.update(GLOG_v="3")  # MindSpore reads it when it is imported
    with suppress(ImportError):  # every fork meets it again, and says so
        import msparallel.compile.build
        import msparallel.compile.target  # noqa: F401 - here for its time, not for its names
    running: dict[int, Path] = {}
    unread, is_open = b"", True
    while is_open or running:
        if is_open and select.select([source], [], [], POLL_S)[0]:
            given = os.read(source, 65536)
            is_open = bool(given)
            *lines, unread = (unread + given).split(b"\n")
            for path in map(Path, map(os.fsdecode, lines)):
                running[_fork(path)] = path.parent
        elif not is_open:
            time.sleep(POLL_S)
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            write_json(running.pop(ended[0]) / EXIT_FILE, os.waitstatus_to_exitcode(ended[1]))


def _fork(path: Path) -> int:
    """Compile one request beside this process; returns the process's number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent()
        log = os.open(path.parent / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = main(path)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # neither MindSpore's nor the parent's own ending


def main(path: Path) -> int:
    """Exit code of a fork."""
    request = Request(**json.loads(path.read_text(encoding="utf-8")))
    folder = Path(request.folder)
    write_json(folder / PID_FILE, os.getpid())
    try:
        compile_rank(request, folder)
    except Exception as error:  # MindSpore raises many kinds; who asked translates the words
        traceback.print_exc()
        text = str(error)
        code = error.exit_code if isinstance(error, UserError) else None
        if isinstance(error, OSError):  # the machine's, not the engine's
            text, code = f"Compiling rank {request.rank} failed: {text}.", RunError.exit_code
        write_json(folder / FAILURE_FILE, {"type": type(error).__name__, "text": text, "exit_code": code})
        return 1
    return 0


def compile_rank(request: Request, folder: Path) -> None:
    """Compile every graph of the step and write what came out."""
    # What MindSpore leaves of a failed analysis, and its notices, belong into the folder too.
    os.environ["MS_DEV_SAVE_GRAPHS_PATH"] = str(folder)
    started = time.monotonic()

    def says(stage: str) -> None:
        (folder / STAGE_FILE).write_text(stage, encoding="utf-8")

    says("importing MindSpore")
    from msparallel.compile.build import build
    from msparallel.compile.target import SimulatedAscend

    target = SimulatedAscend(rank=request.rank, world_size=request.world_size)
    says("building the model")
    step = build(request)
    built = time.monotonic()
    graphs = []
    for number, graph in enumerate(step.graphs):
        place = folder / f"graph_{number}"
        place.mkdir()
        says(f"MindSpore's engine, graph {number + 1} of {len(step.graphs)}")
        phase = target.compile(graph.cell, *graph.inputs)
        target.export_graph(phase, place)
        layouts = getattr(graph.cell, "parameter_layout_dict", None) or {}
        write_json(place / "layouts.json", layouts)
        write_json(place / "strategies.json", target.strategies(graph.cell))
        graphs.append(GraphResult(folder=str(place), executions=graph.executions))
    result = Result(
        graphs=graphs,
        roles=step.roles,
        build_s=built - started,
        compile_s=time.monotonic() - built,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        notes=step.notes,
    )
    write_json(folder / RESULT_FILE, result.to_json())


if __name__ == "__main__":
    serve(sys.stdin.fileno())
