"""Compile one case for one rank of a simulated Ascend job, in a process of its own; prints JSON.

    python compile_case.py WORLD_SIZE RANK CASE FOLDER

CASE is JSON: `parallel` (OpParallelConfig), and optionally `shape` (ModelShape), `layer_stages`, `batch` (sequences of
a rank), `dtype`, `attention`, `optimizer_shard`. Out: the collectives of the compiled graph in order, each with its
scope, result shape and group size, and every parameter's layout.
"""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

from msparallel.compile.graph import read_graph, tensors
from msparallel.compile.order import is_collective
from msparallel.compile.target import SimulatedAscend
from msparallel.model.shape import ModelShape
from msparallel.model.transformer import build_model
from msparallel.parallel_config import OpParallelConfig

SHAPE = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 8,
    "num_kv_heads": 4,
    "ffn_size": 96,
    "vocab_size": 250,
    "vocab_multiple": 64,
}
SEQ, MICRO_BATCHES = 32, 2


def training_step(case: dict) -> tuple[nn.Cell, list[Tensor]]:
    """The model of a case with its optimizer, and inputs."""
    stages = case.get("layer_stages")
    shape = ModelShape(**{**SHAPE, **case.get("shape", {})})
    model = build_model(
        shape,
        OpParallelConfig(**case["parallel"]),
        seq_length=SEQ,
        compute_dtype=getattr(ms, case.get("dtype", "float32")),
        attention=case.get("attention", "plain"),
        layer_stages=stages,
    )
    net = nn.PipelineCell(model, MICRO_BATCHES) if stages else model
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-3)
    step = (_TrainGradAccuStepCell if stages else nn.TrainOneStepCell)(net, optimizer).set_train()
    batch = case.get("batch", 4) * (MICRO_BATCHES if stages else 1)
    dtypes = (np.int32, np.int32, np.float32, np.int32, np.int32)
    return step, [Tensor(np.zeros((batch, SEQ), dtype)) for dtype in dtypes]


def collectives(folder: Path) -> list[dict]:
    """Every collective of the compiled graph, in order; a function's once, however often it is called."""
    found = []
    for node in (node for function in read_graph(folder).functions for node in function.nodes):
        if is_collective(node.op):
            result = next(tensors(node.type), None)
            found.append(
                {
                    "op": node.op,
                    "scope": node.name,
                    "shape": list(result.shape) if result else None,
                    "group_size": len(node.attributes.get("group_rank_ids", ())),
                }
            )
    return found


def main() -> None:
    world_size, rank, case, folder = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), Path(sys.argv[4])
    stages = case.get("layer_stages") or [0]
    target = SimulatedAscend(rank=rank, world_size=world_size)
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel",
        device_num=world_size,
        global_rank=rank,
        dataset_strategy=((case["parallel"].get("data_parallel", 1), 1),) * 5,
        enable_alltoall=True,
        pipeline_stages=max(stages) + 1,
        enable_parallel_optimizer=case.get("optimizer_shard", False),
    )
    if case.get("optimizer_shard"):
        ms.set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 0})
    if stages != sorted(stages):
        ms.set_auto_parallel_context(pipeline_config={"pipeline_interleave": True, "pipeline_scheduler": "1f1b"})
    step, inputs = training_step(case)
    target.export_graph(target.compile(step, *inputs), folder)
    parameters = {
        name: {"slice": list(layout[2]), "shape": list(layout[6]), "optimizer_group": layout[5]}
        for name, layout in step.parameter_layout_dict.items()
        if name.startswith(("model.", "lm_head."))
    }
    print(json.dumps({"collectives": collectives(folder), "parameters": parameters}))


if __name__ == "__main__":
    main()
