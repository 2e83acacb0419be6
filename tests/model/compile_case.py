"""Compile one case for one rank of a simulated Ascend job, in a process of its own; prints JSON.

    MS_DEV_PRECOMPILE_ONLY=1 RANK_SIZE=2 RANK_ID=0 python compile_case.py LIBRARY CASE

LIBRARY is the compiled simulated target; CASE is JSON: `parallel` (OpParallelConfig), and optionally `shape`
(ModelShape), `layer_stages`, `batch` (sequences of a rank), `dtype`, `attention`, `optimizer_shard`. Out: the
collectives of the compiled graph in order, each with its scope, result shape and group size, and every parameter's
layout.
"""

import ctypes
import json
import os
import sys

import mindspore as ms
import mindspore.communication as communication
import numpy as np
from mindspore import Tensor, context, nn
from mindspore.communication import _comm_helper as helper
from mindspore.communication import management
from mindspore.graph.api import _cell_graph_executor
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell
from mindspore.train import mind_ir_pb2

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
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Send", "Receive")


def simulate_ascend(library: str) -> ctypes.CDLL:
    """Answer MindSpore's questions about groups; the target itself is switched right before the compilation."""
    simulated = ctypes.CDLL(library)

    def create(group, ranks, options=None):
        simulated.sim_create_group(group.encode(), len(ranks), (ctypes.c_uint * len(ranks))(*ranks))

    class Queries:
        get_rank_size = staticmethod(lambda group="hccl_world_group": simulated.sim_group_size(group.encode()))
        get_rank_id = staticmethod(lambda group="hccl_world_group": simulated.sim_group_rank(group.encode()))
        create_group = staticmethod(lambda group, number, ranks: create(group, ranks))

    simulated.sim_register_comm()
    helper._hccl_test = helper._is_initialized = lambda: True
    helper.hccl = Queries
    helper.GlobalComm.INITED = True
    helper.GlobalComm.BACKEND = helper.Backend("hccl")
    helper.GlobalComm.WORLD_COMM_GROUP = "hccl_world_group"
    management.create_group = communication.create_group = create
    return simulated


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


def collectives(model: mind_ir_pb2.ModelProto) -> list[dict]:
    """Every collective of the compiled graph, in order."""
    primitives = {primitive.name: primitive for primitive in model.primitives}
    found = []
    for graph in (model.graph, *model.functions):
        for node in graph.node:
            reference = node.op_type.removeprefix("REF::")
            op = reference.split(":")[0]
            if op not in COLLECTIVES:
                continue
            attributes = {a.name: a for a in (*node.attribute, *primitives[reference].attribute)}
            result = attributes["shape"].tensors if "shape" in attributes else []
            found.append(
                {
                    "op": op,
                    "scope": node.domain or node.name,
                    "shape": list(result[0].dims) if result else None,
                    "group_size": len(attributes["group_rank_ids"].values),
                }
            )
    return found


def main() -> None:
    library, case = sys.argv[1], json.loads(sys.argv[2])
    stages = case.get("layer_stages") or [0]
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")  # parameters need a device that exists
    simulated = simulate_ascend(library)
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel",
        device_num=int(os.environ["RANK_SIZE"]),
        global_rank=int(os.environ["RANK_ID"]),
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
    simulated.sim_register_target()
    context._context()._context_handle.set_device_target_inner("Ascend")
    phase, _ = _cell_graph_executor.compile(step, *inputs, phase="train")
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(_cell_graph_executor._get_func_graph_proto(step, phase, "mind_ir", False))
    parameters = {
        name: {"slice": list(layout[2]), "shape": list(layout[6]), "optimizer_group": layout[5]}
        for name, layout in step.parameter_layout_dict.items()
        if name.startswith(("model.", "lm_head."))
    }
    print(json.dumps({"collectives": collectives(model), "parameters": parameters}))


if __name__ == "__main__":
    main()
