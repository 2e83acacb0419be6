"""Which operators of a slow rank are slower than those of the others.

In: operators of ranks. Out: one sentence. A device with a low clock makes all operators slower alike; a larger share of
the work makes a few longer, or launches them more often.

>>> slower_operators(slow, others, steps=2)  # doctest: +SKIP
'All its operators are slower alike, by 13%.'
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msparallel.profiling.finding import percent, time_text
from msparallel.profiling.measured import Operator, RankOperators

ALIKE, SLOWER = 0.8, 0.02
"""Share of its time in operators that are slower, and by how much each must be."""
_COMPUTES = ("cube", "vector", "cpu", "other")


def slower_operators(own: RankOperators | None, others: Sequence[RankOperators], *, steps: int) -> str:
    """A sentence with a blank before it; "" where there is nothing to compare."""
    known: dict[tuple[str, str], list[Operator]] = {}
    for one in others:
        for operator in one.operators:
            known.setdefault((operator.type, operator.core), []).append(operator)
    if own is None or not known:
        return ""
    longer: list[tuple[float, float, Operator]] = []
    whole = slower = theirs = 0.0
    for operator in own.operators:
        same = known.get((operator.type, operator.core), [])
        if operator.core not in _COMPUTES or not same or not operator.count:
            continue
        usual = median(other.total_us / max(1, other.count) for other in same)
        often = median(other.count for other in same)
        each = operator.total_us / operator.count
        whole += operator.total_us
        theirs += usual * often
        slower += operator.total_us if each > usual * (1 + SLOWER) else 0.0
        longer.append((operator.total_us - usual * often, often, operator))
    more = whole - theirs
    if not longer or theirs <= 0 or more <= 0:
        return ""
    if slower >= ALIKE * whole:
        return f" All its operators are slower alike, by {percent(more / theirs)}: its device, not its work."
    longer.sort(key=lambda one: -one[0])
    told = []
    for excess, often, operator in longer[:2]:
        if excess > 0.1 * more:
            times = f", launched {operator.count:,} instead of {often:,.0f} times" if operator.count > often else ""
            told.append(f"{operator.type[:60]} {time_text(excess / steps)} a step{times}")
    return f" What takes longer: {'; '.join(told)}: its work, not its device." if told else ""
