"""Compile one rank's training step of a recipe for a simulated Ascend target, and report on its graph as JSON.

MS_DEV_PRECOMPILE_ONLY=1 RANK_SIZE=8 RANK_ID=5 python compile_sharded.py RECIPE [section.key=value ...]
`simulated_ascend` and its library lie on the path.
"""

from __future__ import annotations

import json
import math
import os
import sys

import mindspore as ms
import numpy as np
import simulated_ascend
from mindspore.graph.api import _cell_graph_executor
from mindspore.train import mind_ir_pb2

from msparallel import context
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.train.assemble import assemble, placeholder_inputs
from msparallel.train.slices import parameter_slices


def main() -> None:
    plan, rank = resolve(load_recipe(sys.argv[1], sys.argv[2:])), int(os.environ["RANK_ID"])
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    simulated_ascend.activate()
    ms.set_auto_parallel_context(**context.context_kwargs(plan, rank))
    step, inputs = assemble(plan).step, placeholder_inputs(plan)
    simulated_ascend.flip()
    phase, _ = _cell_graph_executor.compile(step, *inputs, phase="train")
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(_cell_graph_executor._get_func_graph_proto(step, phase, "mind_ir", False))
    print(json.dumps(report(Graph(model), step.parameter_layout_dict, plan.mesh, rank)))


class Graph:
    """The flat list of primitives, with look-ups."""

    def __init__(self, model):
        self.nodes = model.graph.node
        self.made_by = {output: node for node in self.nodes for output in node.output}
        self.primitives = {p.name: {a.name: a for a in p.attribute} for p in model.primitives}
        self.shapes = {p.name.split(":")[-1]: list(p.dims) for p in model.graph.parameter}

    def kind(self, node) -> str:
        return node.op_type.removeprefix("REF::").split(":")[0]

    def attributes(self, node):
        return self.primitives.get(node.op_type.removeprefix("REF::"), {})

    def of(self, kind):
        return [node for node in self.nodes if self.kind(node) == kind]

    def number(self, name: str) -> float:
        value = self.made_by[name].attribute[0]
        tensor = value.tensors[0] if value.tensors else value.t
        return float(np.frombuffer(tensor.raw_data, np.float32).ravel()[0])


def report(graph: Graph, layouts, mesh, rank) -> dict:
    updated = [node.input[0].split(":")[-1] for node in graph.of("AdamWeightDecay")]
    marks = [node for node in graph.of("ExpandDims") if "grad_scale" in graph.attributes(node)]
    sums = [
        node
        for node in graph.of("AddN")
        if len(terms := graph.made_by[node.input[0]].input) == len(marks)
        and all(graph.made_by.get(term) in marks for term in terms)
    ]
    norms = {}
    for name, term in zip(updated, graph.made_by[sums[0].input[0]].input, strict=True):
        source = graph.made_by[graph.made_by[term].input[0]]
        divided = graph.number(source.input[1]) if graph.kind(source) == "RealDiv" else 1.0
        layout, local = layouts[name], graph.shapes[name]
        copies = math.prod(layout[0]) // (math.prod(layout[6]) // math.prod(local))
        norms[name] = {"divided_by": divided, "ranks_with_this_slice": copies, "local": local}
    added_over, value = [], next(s for s in graph.of("Sqrt") if graph.kind(graph.made_by[s.input[0]]) == "AllReduce")
    node = graph.made_by[value.input[0]]
    while graph.kind(node) == "AllReduce":
        added_over.append(len(graph.attributes(node)["group_rank_ids"].values))
        node = graph.made_by[node.input[0]]
    held = {name: graph.shapes[name] for name in updated}
    slices = parameter_slices(layouts, held, mesh=mesh, rank=rank)
    return {
        "norms": norms,
        "norm_sum_is_reduced": graph.kind(node) == "AddN",
        "added_over": added_over,
        "transfers": [kind for node in graph.nodes if (kind := graph.kind(node)) in ("Send", "Receive")],
        "slices": {name: [part.shape, part.bounds, part.cut_by] for name, part in slices.items()},
    }


if __name__ == "__main__":
    main()
