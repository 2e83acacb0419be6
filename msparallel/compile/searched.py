"""What MindSpore's search chose, beside the strategies that the blocks have themselves.

In: reports of the same rank, compiled in auto_parallel and in semi_auto_parallel. Out: `Search`: both strategies of
every operator, and what either form sends and holds.

>>> for row in compare_cuts(chosen.cuts, by_hand.cuts): print(row.layers, row.cell, row.op, row.chosen, row.by_hand)
0-1 mlp.up_proj MatMul ((8, 1), (1, 1)) ((2, 1), (4, 1))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from msparallel.compile.rank_report import RankReport
from msparallel.compile.strategies import OperatorCut, alike_layers, numbers, strategy_words

Pieces = tuple[tuple[int, ...], ...]
"""For each input of an operator into how many pieces each dim is cut."""


@dataclass(frozen=True, kw_only=True)
class SearchedOperator:
    """Operators of one place with both strategies.

    Attributes:
        layers: "0-19", "0, 2", or "" outside the layers.
        cell: path of cells below the layer or the model.
        op: MindSpore's primitive.
        count: of them in one layer.
        chosen: by the search; None where it has no strategy for the operator.
        by_hand: by the blocks; None where they have none.
    """

    layers: str
    cell: str
    op: str
    count: int
    chosen: Pieces | None
    by_hand: Pieces | None

    @property
    def same(self) -> bool:
        return self.chosen == self.by_hand

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "cell": self.cell,
            "op": self.op,
            "count": self.count,
            "chosen": _listed(self.chosen),
            "chosen_words": None if self.chosen is None else strategy_words(self.op, self.chosen),
            "by_hand": _listed(self.by_hand),
            "by_hand_words": None if self.by_hand is None else strategy_words(self.op, self.by_hand),
            "same": self.same,
        }


@dataclass(frozen=True, kw_only=True)
class Search:
    """Attributes:
    how: where the chosen strategies are from, in words.
    chosen: the rank's report in auto_parallel.
    by_hand: the same rank in semi_auto_parallel, with the same degrees; None where that does not compile.
    refused: why it does not.
    """

    how: str
    chosen: RankReport
    by_hand: RankReport | None = None
    refused: str = ""

    @property
    def operators(self) -> list[SearchedOperator]:
        """All operators, in the order of execution; where the form by hand does not compile, without its strategies."""
        return compare_cuts(self.chosen.cuts, self.by_hand.cuts if self.by_hand else ())

    def to_json(self) -> dict[str, Any]:
        """Beside `searched`: what either form costs."""
        return {
            "rank": self.chosen.rank,
            "how": self.how,
            "chosen": costs(self.chosen),
            "by_hand": None if self.by_hand is None else costs(self.by_hand),
            "refused": self.refused or None,
        }


def costs(report: RankReport) -> dict[str, int]:
    """What a rank sends in a step and holds, in bytes."""
    return {
        "collective_bytes": sum(use.total_bytes for use in report.collectives),
        "weights_bytes": report.weights_bytes,
        "optimizer_bytes": report.optimizer_bytes,
        "peak_live_bytes": report.peak.bytes,
    }


def _listed(pieces: Pieces | None) -> list[list[int]] | None:
    return None if pieces is None else [list(dims) for dims in pieces]


def compare_cuts(chosen: Sequence[OperatorCut], by_hand: Sequence[OperatorCut]) -> list[SearchedOperator]:
    """Both strategies of every operator, in the order of `chosen`.

    Operators are matched by layer, cell and primitive. Of several in one cell those that are cut alike in both forms
    belong together; the others are matched in order.
    """
    ours, theirs = _by_place(chosen), _by_place(by_hand)
    found: dict[tuple[str, str, Pieces | None, Pieces | None], dict[int | None, int]] = {}
    for place in dict.fromkeys([*ours, *theirs]):
        layer, cell, op = place
        for pair in _pairs(ours.get(place, []), theirs.get(place, [])):
            layers = found.setdefault((cell, op, *pair), {})
            layers[layer] = layers.get(layer, 0) + 1
    return [
        SearchedOperator(layers=layers, cell=cell, op=op, count=count, chosen=first, by_hand=second)
        for (cell, op, first, second), counts in found.items()
        for layers, count in alike_layers(counts)
    ]


def _by_place(cuts: Iterable[OperatorCut]) -> dict[tuple[int | None, str, str], list[Pieces]]:
    """Layer, cell and primitive -> strategies of the operators there."""
    found: dict[tuple[int | None, str, str], list[Pieces]] = {}
    for cut in cuts:
        for layer in numbers(cut.layers) or [None]:
            found.setdefault((layer, cut.cell, cut.op), []).extend([cut.strategy] * cut.count)
    return found


def _pairs(chosen: Sequence[Pieces], by_hand: Sequence[Pieces]) -> list[tuple[Pieces | None, Pieces | None]]:
    """Equal ones together, the rest in order.

    >>> _pairs([((8, 1),), ((1, 8),)], [((1, 8),), ((2, 4),)])
    [(((1, 8),), ((1, 8),)), (((8, 1),), ((2, 4),))]
    """
    rest, equal, others = list(by_hand), [], []
    for strategy in chosen:
        if strategy in rest:
            rest.remove(strategy)
            equal.append((strategy, strategy))
        else:
            others.append(strategy)
    return [*equal, *zip_longest(others, rest)]
