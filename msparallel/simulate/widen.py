"""Graphs that were compiled in 16 bits, made to compute in float32.

In: a RankProgram. Out: the same operators, inputs and messages with float32 in the place of float16, constants too.
Some of Ascend's operators take 16 bits only, so a graph that has them is compiled so; rounding to 16 bits would hide
small mistakes and tip near ties between tokens. What is executed is what was compiled but for the width of numbers.

>>> widened(program).graphs[0].execution.operators[7].type
TensorType(dtype='Float32', shape=(16, 64))
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from msparallel.compile.expand import Operator
from msparallel.compile.graph import Constant, TensorType, Type
from msparallel.simulate.program import ProgramGraph, RankProgram

NARROW, WIDE = "Float16", "Float32"
_NARROW_ID, _WIDE_ID = 42, 43
"""MindSpore's numbers of the two, as Cast takes them."""


def widened(program: RankProgram) -> RankProgram:
    """The program in float32."""
    return replace(program, graphs=tuple(map(_graph, program.graphs)))


def _graph(graph: ProgramGraph) -> ProgramGraph:
    execution = graph.execution
    return replace(
        graph,
        execution=replace(
            execution,
            parameters=tuple(replace(one, type=_type(one.type)) for one in execution.parameters),
            operators=tuple(map(_operator, execution.operators)),
        ),
        constants={key: _array(values) for key, values in graph.constants.items()},
    )


def _operator(operator: Operator) -> Operator:
    inputs = operator.inputs
    if operator.op == "Cast" and isinstance(inputs[1], Constant) and inputs[1].value == _NARROW_ID:
        inputs = (inputs[0], Constant(_WIDE_ID), *inputs[2:])
    return replace(operator, node=replace(operator.node, type=_type(operator.node.type)), inputs=inputs)


def _type(kind: Type) -> Type:
    if isinstance(kind, tuple):
        return tuple(map(_type, kind))
    return replace(kind, dtype=WIDE) if isinstance(kind, TensorType) and kind.dtype == NARROW else kind


def _array(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32) if values.dtype == np.float16 else values
