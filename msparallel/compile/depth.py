"""Deep models from shallow ones: two compilations of a few layers say what any number of them gives.

In: a Plan; reports of one rank with two and with three layers in every group. Out: the report with all layers. Layers
of a group are alike, so everything that is counted grows by the same amount with each; what does not is refused. That
the result equals a compilation at full depth is tested on small models (tests/compile/test_depth.py).

>>> shallow = shallow_plans(plan)
>>> [sum(p.stage_layers) for p in shallow]
[4, 6]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from msparallel.compile.collectives import CollectiveUse
from msparallel.compile.order import Peak
from msparallel.compile.rank_report import HeldParameter, RankReport, layers_of_stage
from msparallel.compile.strategies import OperatorCut, numbers, ranges
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe

LAYERS_OF_A_GROUP = (2, 3)
FULL_DEPTH_LAYERS = 16
"""Up to here a model is compiled as it is; it takes less than half a minute."""
Key = TypeVar("Key")


class NotLinear(Exception):
    """Something does not grow evenly with the layers; the text says what."""


def is_worth_it(stage_layers: Sequence[int]) -> bool:
    """Whether a model is deep, and every group has more layers than are compiled."""
    return sum(stage_layers) > FULL_DEPTH_LAYERS and min(stage_layers) > max(LAYERS_OF_A_GROUP)


def note(stage_layers: Sequence[int]) -> str:
    """What the reader of an inferred result is told."""
    first, second = (layers * len(stage_layers) for layers in LAYERS_OF_A_GROUP)
    return (
        f"Compiled with {first} and with {second} layers; what {sum(stage_layers)} layers give follows from the two, "
        "since layers are alike (--depth full compiles all)."
    )


def shallow_plans(plan: Plan) -> tuple[Plan, Plan]:
    """The plan with two and with three layers in every group."""
    first, second = (_with_layers(plan, layers) for layers in LAYERS_OF_A_GROUP)
    return first, second


def _with_layers(plan: Plan, layers: int) -> Plan:
    groups = len(plan.stage_layers)
    changes = {"model.num_layers": str(layers * groups)}
    if plan.recipe.stated("parallel.stage_layers"):
        changes["parallel.stage_layers"] = str([layers] * groups).replace(" ", "")
    return replanned(plan, changes)


def replanned(plan: Plan, changes: Mapping[str, str]) -> Plan:
    """The recipe's plan with other values, as typed on a command line; "null" takes a key away.

    Raises:
        UserError: rules that the values break.
    """
    others = [text for text in plan.recipe.overrides if text.partition("=")[0] not in changes]
    return resolve(load_recipe(plan.recipe.path, [*others, *(f"{key}={value}" for key, value in changes.items())]))


def at_full_depth(stage_layers: Sequence[int], stages: int, first: RankReport, second: RankReport) -> RankReport:
    """The report of a rank with all layers, from those with two and with three in every group.

    Args:
        stage_layers: layers of each group at full depth.
        stages: pipeline stages; group g lives on stage g % stages.

    Raises:
        NotLinear: a count or a size that does not grow evenly.
    """
    layers = layers_of_stage(stage_layers, stages, first.stage)
    grown = _Growth(len(first.layers), len(second.layers), len(layers))
    return replace(
        second,
        layers=layers,
        parameters=tuple(_parameters(stage_layers, second)),
        collectives=tuple(_collectives(grown, first.collectives, second.collectives)),
        cuts=tuple(_cuts(stage_layers, second.cuts)),
        operators=grown.counts(first.operators, second.operators),
        peak=Peak(bytes=_peak(grown, first.peak, second.peak), tensors=second.peak.tensors),
        build_s=first.build_s + second.build_s,
        compile_s=first.compile_s + second.compile_s,
        process_peak_bytes=max(first.process_peak_bytes, second.process_peak_bytes),
        compiled_layers=(len(first.layers), len(second.layers)),
    )


class _Growth:
    """A straight line through what two numbers of layers gave, read at a third."""

    def __init__(self, first: int, second: int, full: int):
        self.steps, self.rest = divmod(full - first, second - first)
        self.spread = second - first

    def estimate(self, first: int, second: int) -> int:
        return round(first + (second - first) * (self.steps + self.rest / self.spread))

    def number(self, first: int, second: int) -> int:
        change = (second - first) * self.rest
        if change % self.spread:
            raise NotLinear(f"{first} and {second} do not grow by whole numbers a layer")
        return first + (second - first) * self.steps + change // self.spread

    def counts(self, first: Mapping[Key, int], second: Mapping[Key, int]) -> dict[Key, int]:
        return {key: self.number(first.get(key, 0), second[key]) for key in second}


def _peak(grown: _Growth, first: Peak, second: Peak) -> int:
    """The largest of what is alive at any kind of operator with all layers.

    Which kind has the peak may change with depth: what is stored for the backward pass, logits, and gradients that wait
    for the optimizer grow at different rates. So each kind is followed by itself.
    """
    kinds = first.profile.keys() & second.profile.keys()
    return max(grown.estimate(first.profile[kind], second.profile[kind]) for kind in kinds)


def _collectives(
    grown: _Growth, first: Sequence[CollectiveUse], second: Sequence[CollectiveUse]
) -> list[CollectiveUse]:
    before, after = ({replace(use, count=0): use.count for use in uses} for uses in (first, second))
    if before.keys() - after.keys():
        raise NotLinear("messages change their size with the number of layers")
    found = [replace(use, count=count) for use, count in grown.counts(before, after).items()]
    return sorted(found, key=lambda use: (-use.total_bytes, use.op, use.ranks))


def _copies(stage_layers: Sequence[int]) -> dict[int, list[int]]:
    """Compiled layer -> the layers that it stands for."""
    copies: dict[int, list[int]] = {}
    compiled = max(LAYERS_OF_A_GROUP)
    start = 0
    for group, layers in enumerate(stage_layers):
        for place in range(layers):
            copies.setdefault(group * compiled + min(place, compiled - 1), []).append(start + place)
        start += layers
    return copies


def _parameters(stage_layers: Sequence[int], report: RankReport) -> list[HeldParameter]:
    """Those of the compiled layers, for every layer that they stand for."""
    copies = _copies(stage_layers)
    found = []
    for layer, run in groupby(report.parameters, key=lambda parameter: _layer_of(parameter.name)):
        alike = list(run)
        for copy in [None] if layer is None else copies[layer]:
            found += [p if copy is None else replace(p, name=_in_layer(p.name, copy)) for p in alike]
    return found


_LAYER = re.compile(r"\blayers\.(\d+)\.")


def _layer_of(name: str) -> int | None:
    layer = _LAYER.search(name)
    return int(layer[1]) if layer else None


def _in_layer(name: str, layer: int) -> str:
    return _LAYER.sub(f"layers.{layer}.", name)


def _cuts(stage_layers: Sequence[int], cuts: Sequence[OperatorCut]) -> list[OperatorCut]:
    copies = _copies(stage_layers)
    return [
        replace(cut, layers=ranges(sorted(layer for number in numbers(cut.layers) for layer in copies[number])))
        for cut in cuts
    ]
