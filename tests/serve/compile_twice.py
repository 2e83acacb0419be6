"""Compiles prefill, gives every parameter this rank's slice as a device would hold it, and compiles decoding:
`python compile_twice.py RANK RANKS FOLDER`, a process of its own. Prints the shapes that the second graph has.

A server's graphs share their parameters, and the second is compiled when these have been cut already.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
os.environ.update(GLOG_v="3", MS_DEV_SAVE_GRAPHS_PATH=str(folder))

from msparallel.compile.target import SimulatedAscend  # noqa: E402

target = SimulatedAscend(rank=rank, world_size=ranks)

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import Tensor  # noqa: E402

from msparallel.compile.graph import read_graph  # noqa: E402
from msparallel.context import SERVING_INPUT_DIMS  # noqa: E402
from msparallel.model.cache_blocks import Blocks  # noqa: E402
from msparallel.model.served import PagedTransformer  # noqa: E402
from msparallel.model.shape import ModelShape  # noqa: E402
from msparallel.parallel_config import OpParallelConfig  # noqa: E402
from msparallel.serve.paged_inputs import input_shapes  # noqa: E402

ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel",
    device_num=ranks,
    global_rank=rank,
    dataset_strategy=tuple((1,) * dims for dims in SERVING_INPUT_DIMS),
)
shape = ModelShape(
    num_layers=2, hidden_size=64, num_heads=8, num_kv_heads=4, ffn_size=128, vocab_size=256, qk_norm=True
)
blocks = Blocks(slots=4, length=40, block_size=16)
model = PagedTransformer(shape, OpParallelConfig(model_parallel=ranks), ms.bfloat16, blocks).set_train(False)


def inputs(rows: int, new: int) -> list[Tensor]:
    return [Tensor(np.zeros(one, np.int32)) for one in input_shapes(blocks, rows, new)]


target.compile(model, *inputs(1, 16))
for parameter in model.get_parameters():
    if parameter.name in model.parameter_layout_dict:
        parameter.init_data(model.parameter_layout_dict[parameter.name], set_sliced=True)
held = {parameter.name: list(parameter.shape) for parameter in model.get_parameters()}
target.export_graph(target.compile(model, *inputs(4, 1)), folder)
graph = {one.name: list(one.type.shape) for one in read_graph(folder).functions[0].parameters if one.weight}
whole = {name: list(layout[6]) for name, layout in model.parameter_layout_dict.items()}
print(json.dumps({"held": held, "graph": graph, "whole": {name: whole.get(name, held[name]) for name in held}}))
