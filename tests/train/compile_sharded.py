"""Compile one rank's training step of a recipe for a simulated Ascend target, and report on its graph as JSON.

python compile_sharded.py RANK FOLDER RECIPE [section.key=value ...]
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import mindspore as ms

from msparallel import context
from msparallel.compile.expand import Execution, Operator, Output, expand
from msparallel.compile.graph import CompiledGraph, ConstantTensor, Parameter, read_graph
from msparallel.compile.target import SimulatedAscend
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.train.assemble import assemble, placeholder_inputs
from msparallel.train.slices import parameter_slices


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    plan = resolve(load_recipe(sys.argv[3], sys.argv[4:]))
    target = SimulatedAscend(rank=rank, world_size=plan.world_size)
    ms.set_auto_parallel_context(**context.context_kwargs(plan, rank))
    step, inputs = assemble(plan, draw=False).step, placeholder_inputs(plan)
    target.export_graph(target.compile(step, *inputs), folder)
    graph = read_graph(folder)
    print(json.dumps(report(graph, expand(graph), step.parameter_layout_dict, plan.mesh, rank)))


def report(graph: CompiledGraph, execution: Execution, layouts, mesh, rank) -> dict:
    operators = execution.operators

    def of(kind: str) -> list[Operator]:
        return [operator for operator in operators if operator.op == kind]

    def behind(operator: Operator, place: int = 0) -> Operator:
        source = operator.inputs[place]
        assert isinstance(source, Output), operator.node.name
        return operators[source.index]

    def terms_of(operator: Operator) -> list[Operator]:
        terms = operator.inputs[0] if isinstance(operator.inputs[0], tuple) else operator.inputs
        return [operators[term.index] for term in terms if isinstance(term, Output)]

    updated = [operator.inputs[0] for operator in of("AdamWeightDecay")]
    assert all(isinstance(parameter, Parameter) for parameter in updated)
    local = {parameter.name: parameter.type.shape for parameter in updated}
    marks = [operator for operator in of("ExpandDims") if "grad_scale" in operator.node.attributes]
    total = next(s for s in of("AddN") if [t.index for t in terms_of(s)] == [m.index for m in marks])
    norms = {}
    for name, mark in zip(local, terms_of(total), strict=True):
        source, divided = behind(mark), 1.0
        if source.op == "RealDiv":
            divisor = source.inputs[1]
            assert isinstance(divisor, ConstantTensor)
            divided = float(graph.array(divisor).ravel()[0])
        layout = layouts[name]
        copies = math.prod(layout[0]) // (math.prod(layout[6]) // math.prod(local[name]))
        norms[name] = {"divided_by": divided, "ranks_with_this_slice": copies, "local": list(local[name])}
    added_over, node = [], next(behind(s) for s in of("Sqrt") if behind(s).op == "AllReduce")
    while node.op == "AllReduce":
        added_over.append(len(node.node.attributes["group_rank_ids"]))
        node = behind(node)
    slices = parameter_slices(layouts, local, mesh=mesh, rank=rank)
    return {
        "norms": norms,
        "norm_sum_is_reduced": node.op == "AddN",
        "added_over": added_over,
        "transfers": [operator.op for operator in operators if operator.op in ("Send", "Receive")],
        "slices": {name: [part.shape, part.bounds, part.cut_by] for name, part in slices.items()},
    }


if __name__ == "__main__":
    main()
