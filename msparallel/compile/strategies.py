"""How every operator is cut, by layer and in words.

In: MindSpore's strategies, operator -> for each input into how many pieces each dim is cut. Out: one `OperatorCut` for
each operator of the model; layers that are cut alike are told once.

>>> for cut in operator_cuts(strategies): print(cut.layers, cut.cell, cut.op, cut.words)
0-19 self_attn.q_proj MatMul input 4 x 1, weight 4 x 1: every device computes a part of the output
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msparallel.compile.order import cell_path

Strategy = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class OperatorCut:
    """Attributes:
    layers: "0-19", "0, 2", or "" outside the layers.
    cell: path of cells below the layer or the model.
    op: MindSpore's primitive.
    strategy: for each input into how many pieces each dim is cut.
    count: operators of that kind in one layer.
    """

    layers: str
    cell: str
    op: str
    strategy: tuple[tuple[int, ...], ...]
    count: int

    @property
    def words(self) -> str:
        return strategy_words(self.op, self.strategy)


def operator_cuts(strategies: Mapping[str, Strategy], scopes: Iterable[str] = ()) -> list[OperatorCut]:
    """Cuts of all operators.

    Args:
        strategies: operator -> strategy, as MindSpore names operators.
        scopes: of the compiled operators in the order of their execution, which the result follows.
    """
    places: dict[str, int] = {}
    for scope in scopes:
        places.setdefault(operator_place(scope + "/")[1], len(places))
    found: dict[tuple[str, str, tuple[tuple[int, ...], ...]], dict[int | None, int]] = {}
    for name, strategy in strategies.items():
        layer, cell, op = operator_place(name)
        key = (cell, op, tuple(tuple(dims) for dims in strategy))
        layers = found.setdefault(key, {})
        layers[layer] = layers.get(layer, 0) + 1
    cuts = [
        OperatorCut(layers=layers, cell=cell, op=op, strategy=strategy, count=count)
        for (cell, op, strategy), counts in found.items()
        for layers, count in alike_layers(counts)
    ]
    return sorted(cuts, key=lambda cut: places.get(cut.cell, len(places)))


def alike_layers(counts: Mapping[int | None, int]) -> list[tuple[str, int]]:
    """Layers that have equally many of something, and how many; None is outside the layers.

    >>> alike_layers({0: 1, 1: 2, 2: 2})
    [('0', 1), ('1-2', 2)]
    """
    found: dict[tuple[bool, int], list[int]] = {}
    for layer, count in counts.items():
        found.setdefault((layer is None, count), []).extend([] if layer is None else [layer])
    return [(ranges(sorted(layers)), count) for (_, count), layers in found.items()]


def layout_strategy(layouts: Iterable[Mapping[str, Any] | list[Any]]) -> Strategy:
    """The strategy that layouts of an operator's inputs come to.

    Operators that got a `mindspore.parallel.Layout` instead of numbers carry it as their attribute in_layout:
    tensor_map has for every dim the axes of device_matrix, counted from its end, that cut it, -1 for none. An input
    that is a tuple of tensors has a list of layouts.

    >>> layout_strategy([{"device_matrix": [2, 1, 4], "tensor_map": [2, [0, 1], -1]}])
    ((2, 4, 1),)
    """
    return tuple(
        tuple(
            math.prod(
                layout["device_matrix"][-1 - axis]
                for axis in (axes if isinstance(axes, (list, tuple)) else [axes])
                if axis >= 0
            )
            for axes in layout["tensor_map"]
        )
        for layout in _flat(layouts)
    )


def _flat(layouts: Iterable[Mapping[str, Any] | list[Any]]) -> Iterator[Mapping[str, Any]]:
    for layout in layouts:
        if isinstance(layout, Mapping):
            yield layout
        else:
            yield from _flat(layout)


def operator_place(name: str) -> tuple[int | None, str, str]:
    """Layer, cell and primitive of MindSpore's name of an operator.

    >>> operator_place("Default/network-Net/model-Decoder/layers-CellList/3-TransformerLayer/mlp-FeedForward/Add-op12")
    (3, 'mlp', 'Add')
    """
    scope, _, last = name.rpartition("/")
    op = re.sub(r"-op\d+.*$", "", last)
    layer = _LAYER.match(scope)
    if layer is not None:
        return int(layer["number"]), cell_path(layer["below"] or ""), op
    return None, cell_path(scope).rpartition("transformer.")[2], op


_LAYER = re.compile(r".*/layers-[^/]*/(?P<number>\d+)-[^/]*(?:/(?P<below>.*))?$")


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers as text.

    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def numbers(text: str) -> list[int]:
    """What `ranges` told.

    >>> numbers("0-2, 5")
    [0, 1, 2, 5]
    """
    ends = [part.split("-") for part in text.split(", ") if part]
    return [number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)]


def strategy_words(op: str, strategy: Strategy) -> str:
    """A strategy as a person says it.

    >>> strategy_words("MatMul", ((2, 4), (1, 4)))
    'input 2 x 4, weight 1 x 4: partial sums, added over 4 devices'
    """
    if all(pieces == 1 for dims in strategy for pieces in dims):
        return "whole on every device"
    if op in ("MatMul", "BatchMatMul") and len(strategy) >= 2:
        return f"input {_by(strategy[0])}, weight {_by(strategy[1])}: {_product_words(strategy)}"
    return ", ".join(_by(dims) for dims in strategy)


def _product_words(strategy: Strategy) -> str:
    """Of x [..., in] and a weight whose cut dims are told apart by which of them x shares."""
    inner = strategy[0][-1]
    if inner > 1:
        return f"partial sums, added over {inner} devices"
    if max(strategy[1]) > 1:
        return "every device computes a part of the output"
    return "every device has the whole weight and a part of the rows"


def _by(dims: Sequence[int]) -> str:
    return " x ".join(map(str, dims)) if dims else "scalar"
