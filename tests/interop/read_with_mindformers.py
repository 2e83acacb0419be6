"""What MindFormers itself makes of YAMLs: run by test_mindformers_itself.py in a process of its own.

In: paths of YAMLs; `--build` makes the network too, which small models only allow. Out: one JSON line for each: the
classes MindFormers built, what its transformer config holds, the layers of each stage, which cells it recomputes, the
global batch, the network's trainable values.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from typing import Any

import mindspore as ms
from mindformers.core.context.build_context import MFContextOperator, build_mf_context, build_parallel_context
from mindformers.core.parallel_config import build_parallel_config
from mindformers.models.build_config import get_model_config
from mindformers.parallel_core.training_graph.transformer.utils import LayerSetting
from mindformers.tools.register import MindFormerConfig
from mindformers.tools.register.register import MindFormerModuleType, MindFormerRegister


def read(path: str, build: bool) -> dict[str, Any]:
    ms.reset_auto_parallel_context()
    MFContextOperator.reset_instance()
    config = MindFormerConfig(path)
    build_mf_context(MindFormerConfig(path))
    operator = build_parallel_context(MindFormerConfig(path))
    set_by_mindformers = dict(operator.parallel_ctx)
    strategy = set_by_mindformers.pop("dataset_strategy")
    ms.set_auto_parallel_context(device_num=1, dataset_strategy=tuple(map(tuple, strategy)), **set_by_mindformers)
    build_parallel_config(config)
    parallel, runner = config.parallel_config, config.runner_config
    model = get_model_config(config.model)
    model.parallel_config = parallel
    transformer = model.convert_to_transformer_config()
    layers = LayerSetting(transformer.num_layers, transformer.offset, transformer,
                          transformer.virtual_pipeline_model_parallel_size)  # fmt: skip
    trained = MindFormerRegister.get_cls(MindFormerModuleType.MODELS, architecture(model))
    counts = parallel.micro_batch_num if parallel.pipeline_stage > 1 else runner.gradient_accumulation_steps
    names = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
             "vocab_size", "seq_length", "max_position_embeddings", "layernorm_epsilon", "rotary_base",
             "init_method_std", "add_qkv_bias", "qk_layernorm", "num_moe_experts", "moe_router_topk",
             "moe_ffn_hidden_size", "norm_topk_prob", "moe_aux_loss_coeff", "data_parallel_size",
             "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
             "expert_model_parallel_size", "sequence_parallel", "use_flash_attention")  # fmt: skip
    return {
        **(network(model) if build else {}),
        "config_class": type(model).__name__,
        "model_class": trained.__name__,
        "transformer": {name: getattr(transformer, name) for name in names},
        "compute_dtype": str(transformer.compute_dtype),
        "stage_layers": [int(count) for row in layers.layer_list for count in row],
        "layer_recompute": [int(count) for row in layers.layer_recompute for count in row],
        "select_recompute": {name: rows for name, rows in layers.select_recompute.items() if any(map(any, rows))},
        "global_batch_size": runner.batch_size * parallel.data_parallel * counts,
        "context": {key: ms.get_auto_parallel_context(key) for key in
                    ("parallel_mode", "enable_parallel_optimizer", "pipeline_stages", "pipeline_interleave",
                     "pipeline_scheduler")},
    }  # fmt: skip


def architecture(model: Any) -> str:
    """Name of the model's class; `architectures` is a list or one name."""
    return model.architectures if isinstance(model.architectures, str) else model.architectures[0]


def network(model: Any) -> dict[str, Any]:
    """The training network of one device: which cells it recomputes, and how many values it trains."""
    module = importlib.import_module(f"mindformers.models.{model.model_type}.modeling_{model.model_type}_train")
    trained = getattr(module, f"Training{architecture(model)}")
    layout = ms.get_auto_parallel_context("parallel_mode")
    ms.set_auto_parallel_context(parallel_mode="stand_alone")  # otherwise communication groups are created
    try:
        net = trained(model)
    finally:
        ms.set_auto_parallel_context(parallel_mode=layout)
    values = sum(math.prod(weight.shape) for weight in net.get_parameters() if weight.requires_grad)
    layer = net.model.decoder.layers[0]
    recomputed = {name for name, cell in layer.cells_and_names() if cell.get_scope() == "recompute_"}
    return {"network_class": type(net).__name__, "network_values": values, "recomputed": sorted(recomputed)}


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    for file in sys.argv[1:]:
        if file != "--build":
            print("READ " + json.dumps(read(file, "--build" in sys.argv), default=str))
