"""The process that compiles one rank: `python -m msparallel.compile.worker REQUEST.json`.

In: a `request.Request`. Out, in the request's folder: a folder for every graph of the step with its graph, the
engine's layouts and strategies, and `result.json` (`request.Result`); or `failure.json` with MindSpore's words.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path

from msparallel.compile.request import FAILURE_FILE, RESULT_FILE, STAGE_FILE, GraphResult, Request, Result, write_json
from msparallel.errors import UserError


def main(path: str) -> int:
    """Exit code of this process."""
    request = Request(**json.loads(Path(path).read_text(encoding="utf-8")))
    folder = Path(request.folder)
    try:
        compile_rank(request, folder)
    except Exception as error:  # MindSpore raises many kinds; who asked translates the words
        traceback.print_exc()
        text = str(error)
        code = error.exit_code if isinstance(error, UserError) else None
        write_json(folder / FAILURE_FILE, {"type": type(error).__name__, "text": text, "exit_code": code})
        return 1
    return 0


def compile_rank(request: Request, folder: Path) -> None:
    """Compile every graph of the step and write what came out."""
    # What MindSpore leaves of a failed analysis, and its notices, belong into the folder too.
    os.environ.update(MS_DEV_SAVE_GRAPHS_PATH=str(folder), GLOG_v="3")
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
    sys.exit(main(sys.argv[1]))
