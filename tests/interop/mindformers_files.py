"""MindFormers training YAMLs of our own, small and complete, and how to change one.

In: dotted keys with new values. Out: the text of a file in MindFormers' format. `GONE` takes a key away.
"""

from __future__ import annotations

import copy
import importlib.util
import os
from pathlib import Path
from typing import Any

import yaml

GONE = object()
VARIABLE = "MSPARALLEL_MINDFORMERS_CONFIGS"
"""Environment variable that names the folder `configs` of MindFormers' wheel, where Python does not find it."""


def wheel_configs() -> Path | None:
    """Folder of the YAMLs that come with MindFormers' wheel, None where it is not installed. Imports nothing of it."""
    spec = importlib.util.find_spec("mindformers")
    folder = os.environ.get(VARIABLE) or (Path(spec.origin).parents[1] / "configs" if spec and spec.origin else "")
    return Path(folder) if folder and Path(folder).is_dir() else None


DENSE: dict[str, Any] = {
    "seed": 7,
    "output_dir": "./runs/small",
    "run_mode": "train",
    "use_parallel": True,
    "use_legacy": False,
    "load_checkpoint": "",
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "small"},
    "runner_config": {"epochs": 3, "batch_size": 2, "gradient_accumulation_steps": 1},
    "optimizer": {"type": "AdamW", "betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.05},
    "lr_schedule": {"type": "CosineWithWarmUpLR", "learning_rate": 2e-4, "lr_end": 1e-5, "warmup_steps": 20,
                    "total_steps": -1},
    "runner_wrapper": {"type": "MFTrainOneStepCell", "use_clip_grad": True, "max_grad_norm": 0.5, "scale_sense": 1.0},
    "train_dataset": {
        "data_loader": {"type": "BlendedMegatronDatasetDataLoader", "sizes": [3200, 0, 0],
                        "config": {"seq_length": 2048, "data_path": ["1", "/data/none_such_text_document"]}},
        "input_columns": ["input_ids", "labels", "loss_mask", "position_ids"],
    },
    "train_dataset_task": {"type": "CausalLanguageModelDataset"},
    "context": {"mode": 0, "device_target": "Ascend", "max_device_memory": "58GB"},
    "parallel_config": {"data_parallel": 2, "model_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 4,
                        "use_seq_parallel": True, "gradient_aggregation_group": 4},
    "parallel": {"parallel_mode": 1, "full_batch": False, "enable_alltoall": True,
                 "dataset_strategy": [[2, 1], [2, 1], [2, 1], [2, 1]], "enable_parallel_optimizer": True,
                 "parallel_optimizer_config": {"parallel_optimizer_threshold": 32}},
    "recompute_config": {"recompute": True},
    "model": {"model_config": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 32000, "hidden_size": 512,
        "intermediate_size": 1536, "num_hidden_layers": 9, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 64, "max_position_embeddings": 4096, "seq_length": 2048, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "initializer_range": 0.01, "tie_word_embeddings": False, "hidden_act": "silu",
        "offset": [0, 1], "compute_dtype": "bfloat16", "params_dtype": "float32",
    }},
    "callbacks": [{"type": "MFLossMonitor", "per_print_times": 5},
                  {"type": "CheckpointMonitor", "prefix": "small", "save_checkpoint_steps": 100,
                   "keep_checkpoint_max": 3}],
}  # fmt: skip
"""dp2 x tp4 x pp2 with optimizer shard: 3200 samples x 3 epochs / (2 x 2 x 4) = 600 steps."""

EXPERTS = {
    "model.model_config.model_type": "qwen3_moe", "model.model_config.architectures": "Qwen3MoeForCausalLM",
    "model.model_config.num_experts": 16, "model.model_config.num_experts_per_tok": 2,
    "model.model_config.moe_intermediate_size": 256, "model.model_config.norm_topk_prob": True,
    "model.model_config.moe_aux_loss_coeff": 0.01, "parallel_config.expert_parallel": 4,
}  # fmt: skip
"""Changes that make the model a mixture of experts."""


def document(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """DENSE with dotted keys replaced."""
    result = copy.deepcopy(DENSE)
    for key, value in (changes or {}).items():
        *way, name = key.split(".")
        section = result
        for part in way:
            section = section.setdefault(part, {})
        if value is GONE:
            section.pop(name, None)
        else:
            section[name] = value
    return result


def write(folder: Path, changes: dict[str, Any] | None = None, name: str = "small.yaml") -> Path:
    """Write such a file; returns its path."""
    path = folder / name
    path.write_text(yaml.safe_dump(document(changes), sort_keys=False, width=1000), encoding="utf-8")
    return path


def line_of(path: Path, text: str) -> int:
    """Line of the first mention of a text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if text in line)
