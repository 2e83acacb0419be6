"""One process of a run that msrun started: `python -m msparallel.launch.worker RECIPE [section.key=value ...]`.

In: MindSpore's variables MS_ROLE and RANK_ID, the recipe. Out: the run, `logs/rank_N.json` and `logs/rank_N.beat`, and
from the rank that knows the loss `logs/result.json`. msrun starts the same command once more as its scheduler.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from msparallel.errors import RunError, UserError
from msparallel.launch.processes import die_with_parent
from msparallel.launch.status import Heartbeat, WorkerStatus
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe


def main(arguments: list[str]) -> int:
    """Exit code of this process."""
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings are for its developers
    die_with_parent()
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        from mindspore.communication import init

        init()  # serves the workers until they have gone
        return 0
    from msparallel.launch.msrun import logs_dir
    from msparallel.train.run import reporting_rank, run_recipe

    plan, rank = resolve(load_recipe(arguments[0], arguments[1:])), int(os.environ["RANK_ID"])
    status = WorkerStatus(logs_dir(plan), rank)
    try:
        result = run_recipe(plan, rank, Heartbeat(logs_dir(plan), rank))
    except UserError as error:
        return _failed(status, str(error), error.exit_code)
    except Exception as error:  # the worker's last word: its launcher reads it, the log keeps the traceback
        code = _failed(status, f"  {type(error).__name__}: {error}", RunError.exit_code)
        with suppress(OSError):
            traceback.print_exc()
        return code
    if rank == reporting_rank(plan):
        _write_result(plan, logs_dir(plan), result.to_json())
    status.done()
    return 0


def _failed(status: WorkerStatus, text: str, exit_code: int) -> int:
    status.failed(text, exit_code)
    with suppress(OSError):  # the disk of the log may be the one that is full
        print(text, file=sys.stderr, flush=True)
    return exit_code


def _write_result(plan: Plan, logs: Path, result: dict) -> None:
    partial = logs / "result.json.partial"
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(logs / "result.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
