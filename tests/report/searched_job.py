"""The small DryRun with a search: rank 0 as the search cut it, and by hand over dp2 x tp2."""

from __future__ import annotations

from dataclasses import replace

from report.small_job import small_job

from msparallel.compile.dryrun import DryRun
from msparallel.compile.searched import Search
from msparallel.compile.strategies import OperatorCut

ROWS, COLUMNS = ((4, 1), (1, 1)), ((2, 1), (2, 1))


def cut(layers: str, cell: str, op: str, strategy: tuple[tuple[int, ...], ...], count: int = 1) -> OperatorCut:
    return OperatorCut(layers=layers, cell=cell, op=op, strategy=strategy, count=count)


def searched_job(refused: str = "", same: bool = False) -> DryRun:
    """Two products that differ, an Add of two layers that does not, an Exp by hand only.

    Args:
        refused: why the form by hand does not compile.
        same: whether the search chose what stands there by hand.
    """
    job = small_job()
    by_hand = (
        cut("0-1", "up_proj", "MatMul", COLUMNS),
        cut("0-1", "gate_proj", "MatMul", COLUMNS),
        cut("0-1", "", "Add", ((4, 1), (4, 1)), 2),
        cut("", "head", "Exp", ((2, 2),)),
    )
    chosen = by_hand
    if not same:
        chosen = (*(replace(one, strategy=ROWS) for one in by_hand[:2]), by_hand[2])
    first = replace(job.ranks[0], cuts=chosen)
    search = Search(
        how="searched by recursive_programming",
        chosen=first,
        by_hand=None if refused else replace(first, cuts=by_hand, collectives=()),
        refused=refused,
    )
    return replace(job, ranks=(first, job.ranks[1]), search=search)
