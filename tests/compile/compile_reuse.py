"""Compile a pipeline's first stage with micro-batches that share a graph, or that do not; prints counts as JSON.

python compile_reuse.py reused|written_out FOLDER
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import mindspore as ms
from compiled import plan_of

from msparallel import context
from msparallel.compile.collectives import collective_uses
from msparallel.compile.expand import expand
from msparallel.compile.graph import read_graph
from msparallel.compile.order import live_bytes
from msparallel.compile.target import SimulatedAscend
from msparallel.model import transformer
from msparallel.train.assemble import assemble, placeholder_inputs

RANK = 0


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind == "written_out":
        transformer.ReusedTrainingModel = transformer.TrainingModel
    plan = plan_of("llama2_7b_dp2_tp2_pp2", "model.num_layers=4", "train.global_batch_size=8")
    target = SimulatedAscend(rank=RANK, world_size=plan.world_size)
    ms.set_auto_parallel_context(**context.context_kwargs(plan, RANK))
    target.export_graph(target.compile(assemble(plan, draw=False).step, *placeholder_inputs(plan)), folder)
    graph = read_graph(folder)
    execution = expand(graph)
    uses = collective_uses([(execution, 1)], rank=RANK, mesh=plan.mesh, devices_per_node=8)
    print(
        json.dumps(
            {
                "functions": len(graph.functions),
                "collectives": sorted([use.op, use.ranks, use.bytes, use.count, use.purpose] for use in uses),
                "products": Counter(operator.op for operator in execution.operators)["MatMul"],
                "live_bytes": live_bytes(execution).bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
