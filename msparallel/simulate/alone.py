"""What processes have in common that compute something on one device beside the virtual cluster.

In: the path of a request in JSON, the request's class, the work. Out: an exit code, and in the request's folder the
stage that the work has reached, or why it ended.

>>> run_alone("/tmp/x/request.json", SingleRequest, train_alone)  # doctest: +SKIP
0
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msparallel.compile.request import FAILURE_FILE, STAGE_FILE, write_json
from msparallel.errors import UserError

Request = TypeVar("Request")
Says = Callable[[str], object]


def run_alone(path: str, kind: type[Request], work: Callable[[Request, Path, Says], None]) -> int:
    """Exit code of the process. `work` is given the request, its folder, and what it tells its stages."""
    request = kind(**json.loads(Path(path).read_text(encoding="utf-8")))
    folder = Path(path).resolve().parent
    try:
        work(request, folder, lambda stage: (folder / STAGE_FILE).write_text(stage, encoding="utf-8"))
    except Exception as error:  # told to who asked; MindSpore and MindFormers raise many kinds
        traceback.print_exc()
        code = error.exit_code if isinstance(error, UserError) else None
        write_json(folder / FAILURE_FILE, {"type": type(error).__name__, "text": str(error), "exit_code": code})
        return 1
    return 0
