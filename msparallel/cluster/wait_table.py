"""Wait for a rank table that an operator is still writing.

In: a path, seconds. Out: the table once its status is completed; or what it was at the end.

>>> wait_for_table("/user/serverid/devindex/config/hccl.json", wait_s=600)  # doctest: +SKIP
"""

from __future__ import annotations

import time
from pathlib import Path

from msparallel.cluster.rank_table import RankTable
from msparallel.cluster.read_table import read_rank_table
from msparallel.errors import RecipeError, RunError, short

_PAUSE_S = 0.5


def wait_for_table(path: str | Path, wait_s: float) -> RankTable:
    """The table, completed.

    A file that is not there yet, or half written, is waited for like one whose status is initializing.

    Raises RunError where the time is over and the file is missing or not completed, RecipeError where it is then not a
    rank table.
    """
    end = time.monotonic() + wait_s
    while True:
        problem: RecipeError | None = None
        table: RankTable | None = None
        try:
            table = read_rank_table(path)
            if table.status not in ("initializing", "unknown"):
                return table
        except RecipeError as error:
            problem = error
        left = end - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(_PAUSE_S, left))
    if table is not None:
        raise RunError(f"{path}: status is still {short(table.status, 40)} after {wait_s:g} s. The operator has not "
        "got all "
                       "devices yet: look whether every pod of the job runs, then wait longer.")  # fmt: skip
    if not Path(path).exists():
        raise RunError(f"{path}: there is still no such file after {wait_s:g} s.")
    assert problem is not None
    raise problem
