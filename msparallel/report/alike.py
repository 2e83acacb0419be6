"""What is alike in the reports of several ranks, told once.

In: the reports of a DryRun. Out: ranks that hold equally much, parameters of one kind over all layers, collectives and
operators that several stages have in common, tensors of one kind at the peak.

>>> [kind.name for kind in parameter_kinds(job.ranks) if kind.role == "weight"][:2]
['model.embed_tokens.weight', 'model.layers.0-31.input_layernorm.weight']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msparallel.compile.collectives import CollectiveUse
from msparallel.compile.order import LiveTensor, Peak
from msparallel.compile.rank_report import HeldParameter, RankReport
from msparallel.compile.request import Role
from msparallel.compile.searched import SearchedOperator
from msparallel.compile.strategies import Strategy, ranges, strategy_words

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")


@dataclass(frozen=True, kw_only=True)
class AlikeRanks:
    """Ranks of a stage that hold equally much, and the report of the first of them."""

    ranks: tuple[int, ...]
    report: RankReport
    compile_s: float

    @property
    def total_bytes(self) -> int:
        return total_bytes(self.report)


def total_bytes(report: RankReport) -> int:
    """Weights, gradients, optimizer state, a server's keys and values, and the peak of live activations."""
    kept = report.weights_bytes + report.gradients_bytes + report.optimizer_bytes + report.cache_bytes
    return kept + report.peak.bytes


def alike_ranks(reports: Iterable[RankReport]) -> list[AlikeRanks]:
    """Ranks with the same stage and the same bytes together; compile_s is the longest."""
    found: dict[tuple[int, ...], list[RankReport]] = {}
    for report in reports:
        sizes = (report.weights_bytes, report.gradients_bytes, report.optimizer_bytes, report.peak.bytes)
        found.setdefault((report.stage, *sizes), []).append(report)
    return [
        AlikeRanks(
            ranks=tuple(report.rank for report in same),
            report=same[0],
            compile_s=max(report.compile_s for report in same),
        )
        for same in found.values()
    ]


@dataclass(frozen=True, kw_only=True)
class ParameterKind:
    """Kept values that differ in their layer only.

    Attributes:
        name: with all layers, `model.layers.0-31.mlp.up_proj.weight`.
        example: one of them, as a rank holds it.
        count: of them over the stages that were compiled.
        stages: on which they are.
    """

    name: str
    example: HeldParameter
    count: int
    stages: tuple[int, ...]

    @property
    def role(self) -> Role:
        return self.example.role


def parameter_kinds(reports: Iterable[RankReport]) -> list[ParameterKind]:
    """Kinds in the order of the model; a kind has one role, dtype, shape and cut."""
    found: dict[tuple[object, ...], dict[str, tuple[HeldParameter, set[int]]]] = {}
    for report in reports:
        for held in report.parameters:
            kind = found.setdefault(_kind(held), {})
            kind.setdefault(held.name, (held, set()))[1].add(report.stage)
    return [
        ParameterKind(
            name=_told_once(list(members)),
            example=next(iter(members.values()))[0],
            count=len(members),
            stages=tuple(sorted(set().union(*(stages for _, stages in members.values())))),
        )
        for members in found.values()
    ]


def _kind(held: HeldParameter) -> tuple[object, ...]:
    pattern = _LAYER.sub("*", held.name, count=1)
    return pattern, held.role, held.dtype, held.part.shape, held.local_shape, held.part.cut_by, held.optimizer_shard


def is_of_kind(held: HeldParameter, kind: ParameterKind) -> bool:
    """Whether a value is one of a kind's."""
    return _kind(held) == _kind(kind.example)


def _told_once(names: Sequence[str]) -> str:
    """Names that differ in their layer as one.

    >>> _told_once(["model.layers.0.norm.weight", "model.layers.1.norm.weight"])
    'model.layers.0-1.norm.weight'
    """
    layers = sorted({int(found[0]) for name in names if (found := _LAYER.search(name))})
    return _LAYER.sub(ranges(layers), names[0], count=1)


def cut_words(held: HeldParameter) -> str:
    """What cuts a parameter.

    >>> cut_words(held)
    'dim 0 by tp and optimizer shard (4)'
    """
    told = []
    for dim, axes in enumerate(held.part.cut_by):
        if axes:
            names = [f"optimizer shard ({held.optimizer_shard})" if a == "optimizer_shard" else a for a in axes]
            told.append(f"dim {dim} by {' and '.join(names)}")
    return ", ".join(told) or "whole"


@dataclass(frozen=True, kw_only=True)
class CollectiveKind:
    """Messages of one kind.

    Attributes:
        use: of the first rank that has it.
        rank: that rank.
        stages: which have it, too.
    """

    use: CollectiveUse
    rank: int
    stages: tuple[int, ...]


def collective_kinds(reports: Iterable[RankReport]) -> list[CollectiveKind]:
    """Collectives that differ in nothing but their ranks together, largest traffic first."""
    found: dict[tuple[object, ...], tuple[CollectiveUse, int, set[int]]] = {}
    for report in reports:
        seen: dict[tuple[object, ...], int] = {}
        for use in report.collectives:
            alike = (use.op, use.axes, len(use.ranks), use.bytes, use.count, use.links, use.purpose)
            seen[alike] = seen.get(alike, 0) + 1  # a middle stage receives from both neighbours
            found.setdefault((*alike, seen[alike]), (use, report.rank, set()))[2].add(report.stage)
    kinds = [CollectiveKind(use=use, rank=rank, stages=tuple(sorted(s))) for use, rank, s in found.values()]
    return sorted(kinds, key=lambda kind: -kind.use.total_bytes)


@dataclass(frozen=True, kw_only=True)
class CutKind:
    """Operators of one cell that are cut alike: `words` says how, `is_cut` whether at all."""

    layers: str
    cell: str
    ops: tuple[str, ...]
    words: str
    is_cut: bool
    count: int


def cut_kinds(reports: Iterable[RankReport]) -> list[CutKind]:
    """Operators' strategies of all reports, in the order of execution."""
    cuts = dict.fromkeys(cut for report in reports for cut in report.cuts)
    found: dict[tuple[str, str, str, bool], dict[str, int]] = {}
    for cut in cuts:
        is_cut = any(pieces > 1 for dims in cut.strategy for pieces in dims)
        ops = found.setdefault((cut.layers, cut.cell, cut_in_words(cut.op, cut.strategy), is_cut), {})
        ops[cut.op] = ops.get(cut.op, 0) + cut.count
    return [
        CutKind(layers=layers, cell=cell, ops=tuple(ops), words=words, is_cut=is_cut, count=sum(ops.values()))
        for (layers, cell, words, is_cut), ops in found.items()
    ]


def cut_in_words(op: str, strategy: Strategy) -> str:
    """A strategy in words, several equal inputs told once.

    >>> cut_in_words("Add", ((2, 1), (2, 1)))
    'each input 2 x 1'
    """
    words = strategy_words(op, strategy)
    parts = words.split(", ")
    return f"each input {parts[0]}" if len(parts) > 1 and len(set(parts)) == 1 else words


@dataclass(frozen=True, kw_only=True)
class SearchedKind:
    """Operators that a search cuts alike, and that are cut alike by hand.

    Attributes:
        cells: where they are.
        chosen, by_hand: pieces of each dim; "-" where that form has no strategy for them.
        meaning: of both, where they are told for the primitive.
    """

    layers: str
    op: str
    cells: tuple[str, ...]
    chosen: str
    by_hand: str
    meaning: tuple[str, str]
    same: bool
    count: int


def searched_kinds(operators: Iterable[SearchedOperator]) -> list[SearchedKind]:
    """Operators with both strategies, in the order of execution; count is of one layer."""
    found: dict[tuple[str, str, str, str, bool], dict[str, int]] = {}
    for operator in operators:
        words = [
            "-" if strategy is None else cut_in_words(operator.op, strategy)
            for strategy in (operator.chosen, operator.by_hand)
        ]
        cells = found.setdefault((operator.layers, operator.op, words[0], words[1], operator.same), {})
        place = below_model(operator.cell) or ("the layer" if operator.layers else "the model")
        cells[place] = cells.get(place, 0) + operator.count
    kinds = []
    for (layers, op, first, second, same), cells in found.items():
        (chosen, _, why_chosen), (by_hand, _, why_by_hand) = first.partition(": "), second.partition(": ")
        kinds.append(
            SearchedKind(
                layers=layers,
                op=op,
                cells=tuple(cells),
                chosen=chosen,
                by_hand=by_hand,
                meaning=(why_chosen, why_by_hand),
                same=same,
                count=sum(cells.values()),
            )  # fmt: skip
        )
    return kinds


@dataclass(frozen=True, kw_only=True)
class PeakKind:
    """Tensors at the peak that differ in their layer only; `cell` has all layers, and is told from the model down."""

    tensor: LiveTensor
    cell: str
    count: int

    @property
    def bytes(self) -> int:
        return self.tensor.type.bytes * self.count


MOST_PEAK_KINDS = 12
"""Kinds of tensors at the peak that are told one by one."""


def peak_rest(peak: Peak) -> str:
    """What the kinds beyond `peak_kinds` are together; empty where there are none."""
    others = _all_peak_kinds(peak)[MOST_PEAK_KINDS:]
    count = f"{len(others)} more kind{'s' * (len(others) > 1)}"
    return f"... {count}, together {bytes_text(sum(kind.bytes for kind in others))}" if others else ""


def peak_kinds(peak: Peak) -> list[PeakKind]:
    """The kinds of tensors at the peak that take most, each with all its tensors."""
    return _all_peak_kinds(peak)[:MOST_PEAK_KINDS]


def _all_peak_kinds(peak: Peak) -> list[PeakKind]:
    found: dict[tuple[object, ...], list[LiveTensor]] = {}
    for tensor in peak.tensors:
        pattern = _LAYER.sub("*", tensor.scope, count=1)
        found.setdefault((tensor.op, pattern, tensor.type.dtype, tuple(tensor.type.shape)), []).append(tensor)
    kinds = [
        PeakKind(tensor=same[0], cell=below_model(_told_once([t.scope for t in same])), count=len(same))
        for same in found.values()
    ]
    return sorted(kinds, key=lambda kind: -kind.bytes)


PASS_MARKS = ("gradient of ", "recomputed ")
"""What `order.cell_path` puts before a cell of another pass."""


def below_model(cell: str) -> str:
    """A path of cells without what stands above the model.

    >>> below_model("gradient of network.network.transformer.model.layers.3.mlp")
    'gradient of model.layers.3.mlp'
    """
    mark = next((mark for mark in PASS_MARKS if cell.startswith(mark)), "")
    return mark + re.sub(r"^(network\.)*(transformer\.)?", "", cell.removeprefix(mark))


def ranks_text(use: CollectiveUse) -> str:
    """Who takes part, short.

    >>> ranks_text(use)  # of AllReduce over ranks 0, 8, 16, ... 56
    '0, 8 ... 56 (8)'
    """
    if use.op in ("Send", "Receive") and len(use.ranks) == 2:
        return f"{use.ranks[0]} -> {use.ranks[1]}"
    told = ranges(sorted(use.ranks))
    return told if told.count(",") < 4 else f"{use.ranks[0]}, {use.ranks[1]} ... {use.ranks[-1]} ({len(use.ranks)})"


def bytes_text(count: float) -> str:
    """Bytes with a unit that fits.

    >>> bytes_text(33554432), bytes_text(1610612736), bytes_text(4)
    ('32 MiB', '1.50 GiB', '4 B')
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            scaled = count / size
            digits = 0 if scaled == int(scaled) or unit in ("KiB", "MiB") and scaled >= 10 else 2
            return f"{scaled:,.{digits}f} {unit}"
    return f"{count:.0f} B"


def shape_text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "scalar"
