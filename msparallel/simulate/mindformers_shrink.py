"""A MindFormers YAML made small enough to execute here, its strategy untouched; and the same training on one device.

In: a MindFormersConfig. Out: `dotted key -> value` over the file's own; what the user typed wins. Pure.

>>> changes = shrunk(read_mindformers("pretrain_qwen3_32b_4k.yaml"))  # doctest: +SKIP
>>> changes["model.model_config.num_hidden_layers"], changes["model.model_config.hidden_size"]  # doctest: +SKIP
(4, 32)
"""

from __future__ import annotations

import math
from typing import Any

from msparallel.errors import UserError
from msparallel.interop.mindformers import MindFormersConfig
from msparallel.simulate.shrink import EXPERTS_PER_TOKEN, HEAD_DIM, LENGTH, WIDTH, Changes, multiple

MODEL = "model.model_config."
VOCABULARY = 64
LEARNING_RATE, EPS = 1e-4, 1e-6
"""As for recipes: a few steps move the weights, and Adam does not divide rounding noise by its own size."""
SCHEDULE_STEPS = 100
"""After which a cosine has brought the learning rate to zero."""
_DTYPES = (
    "compute_dtype", "params_dtype", "layernorm_compute_dtype", "softmax_compute_dtype", "rotary_dtype",
)  # fmt: skip
_LAYERS, _HEADS, _WIDTH = ("num_hidden_layers", "num_layers"), ("num_attention_heads",), ("hidden_size",)
_KV_HEADS, _HEAD_DIM = ("num_key_value_heads", "num_query_groups"), ("head_dim", "kv_channels")
_FFN, _EXPERT_FFN = ("intermediate_size", "ffn_hidden_size"), ("moe_intermediate_size", "moe_ffn_hidden_size")
_EXPERTS = ("num_experts", "n_routed_experts", "num_moe_experts")
_CHOSEN = ("num_experts_per_tok", "moe_router_topk")
"""MindFormers' names of one number, the usual first."""
KV_HEADS = tuple(MODEL + name for name in _KV_HEADS)
_COMPRESSED = ("use_attn_mask_compression", "use_eod_attn_mask_compression")
"""Masks that stand for longer ones; they need use_flash_attention."""
_LENGTH, _DATA_LENGTH = MODEL + "seq_length", "train_dataset.data_loader.config.seq_length"
_THRESHOLD = "parallel.parallel_optimizer_config.parallel_optimizer_threshold"
_RATES = ("lr_schedule.learning_rate", "optimizer.learning_rate")


def shrunk(config: MindFormersConfig, *, full: bool = False) -> Changes:
    """What is changed to execute a file's training step in float32.

    Args:
        full: keep the model's sizes and the batch.

    Raises:
        UserError: a schedule of the learning rate was typed.
    """
    sizes = {} if full else {**_sizes(config), **_batch(config)}
    heads_key = _key(config, _HEADS)
    heads = config.changes.get(heads_key, sizes.get(heads_key, config.model.get(_HEADS[0])))
    wanted = {**_precision(config, heads), **_optimizer(config, full), **sizes}
    return {key: v for key, v in wanted.items() if key not in config.changes and v != _stated(config, key)}


def alone(config: MindFormersConfig) -> Changes:
    """What makes a file, already small, the training of one process with the same model, sequences and optimizer."""
    return {
        "use_parallel": False,
        "runner_config.batch_size": global_batch(config),
        "runner_config.gradient_accumulation_steps": 1,
        "parallel_config.data_parallel": 1,
        "parallel_config.model_parallel": 1,
        "parallel_config.context_parallel": 1,
        "parallel_config.expert_parallel": 1,
        "parallel_config.pipeline_stage": 1,
        "parallel_config.micro_batch_num": 1,
        "parallel_config.use_seq_parallel": False,
        MODEL + "pp_interleave_num": 1,
        MODEL + "offset": 0,
        "recompute_config.recompute": False,
        "recompute_config.select_recompute": False,
    }


def global_batch(config: MindFormersConfig) -> int:
    """Sequences of one optimizer step."""
    return config.batch_size * replicas(config) * config.micro_batches


def replicas(config: MindFormersConfig) -> int:
    """Groups of ranks that read different sequences."""
    return 1 if config.mode == "stand_alone" else config.data_parallel


def _precision(config: MindFormersConfig, heads: Any) -> Changes:
    """Everything in float32, nothing left to chance."""
    changes: Changes = {MODEL + name: "float32" for name in _DTYPES}
    changes |= {MODEL + "hidden_dropout": 0.0, MODEL + "attention_dropout": 0.0}
    # With use_flash_attention MindFormers casts float32 queries and keys to float16 before its attention; without it
    # the same kernel gets them as they are, but then keys cannot serve several queries' heads.
    changes |= {MODEL + "use_flash_attention": config.context_parallel > 1, _key(config, _KV_HEADS): heads}
    changes |= {MODEL + name: False for name in _COMPRESSED if config.model.get(name)}
    # Parts of the loss are there to be read; where there is no balance loss, MindFormers' pipeline divides 0 by 0.
    changes["print_separate_loss"] = False
    if type(config.tree.get("runner_wrapper.scale_sense")) not in (int, float, type(None)):
        changes["runner_wrapper.scale_sense"] = 1.0
    return changes


def _optimizer(config: MindFormersConfig, full: bool) -> Changes:
    """A schedule of the learning rate without branches: a compiled graph has one way of each.

    The step's number is all that a schedule depends on. A constant optimizer.learning_rate is none that MindFormers'
    step can be built with.
    """
    if typed := [key for key in config.changes if key.startswith("lr_schedule.") and key not in _RATES]:
        raise UserError(
            f"{typed[0]}: simulate takes one schedule of the learning rate for all files. "
            f"Leave it out; {_RATES[0]} is the rate that it begins with."
        )
    own = [rate for key in _RATES if (full or key in config.changes) and (rate := config.tree.get(key)) is not None]
    rate = own[0] if own else LEARNING_RATE
    schedule = {"type": "CosineAnnealingLR", "base_lr": rate, "eta_min": 0.0, "t_max": SCHEDULE_STEPS}
    changes: Changes = {f"lr_schedule.{name}": value for name, value in schedule.items()}
    changes["grouped_lr_schedule"] = None
    if config.tree.get("optimizer.use_fused"):
        changes["optimizer.use_fused"] = False  # one primitive, which no processor has
    return changes if full else changes | {"optimizer.eps": EPS}


def _sizes(config: MindFormersConfig) -> Changes:
    stage = config.data_parallel * config.context_parallel * config.model_parallel
    groups = config.context_parallel * config.model_parallel
    heads = config.changes.get(_key(config, _HEADS)) or multiple(groups, 2)
    sizes = {
        _LAYERS: max(2, config.pipeline_stages * config.virtual_stages),
        _WIDTH: multiple(math.lcm(stage, heads), WIDTH),
        _HEADS: heads,
        _HEAD_DIM: HEAD_DIM,
        _FFN: multiple(stage, WIDTH),
        ("vocab_size",): multiple(stage, VOCABULARY),
        ("seq_length",): multiple(groups, LENGTH),
    }
    if any(config.model.get(name) for name in _EXPERTS):
        sizes |= {
            _EXPERTS: multiple(config.expert_parallel, 2 * EXPERTS_PER_TOKEN),
            _CHOSEN: EXPERTS_PER_TOKEN,
            _EXPERT_FFN: multiple(stage, WIDTH),
        }
    changes: Changes = {_key(config, names): _at_most(config, names, size) for names, size in sizes.items()}
    changes |= {MODEL + "offset": 0, _DATA_LENGTH: config.changes.get(_LENGTH, changes[_LENGTH])}
    if config.optimizer_shard:
        changes[_THRESHOLD] = 0  # every parameter is below the usual one
    return changes


def _at_most(config: MindFormersConfig, names: tuple[str, ...], size: int) -> int:
    """The size, or the file's own where that is less."""
    own = _stated(config, _key(config, names))
    return min(own, size) if type(own) is int else size


def _batch(config: MindFormersConfig) -> Changes:
    """At most two micro-batches a stage, of one sequence each."""
    changes: Changes = {"runner_config.batch_size": 1}
    if config.pipeline_stages > 1:
        changes["parallel_config.micro_batch_num"] = min(config.micro_batch_num, 2 * config.pipeline_stages)
    else:
        changes["runner_config.gradient_accumulation_steps"] = min(config.gradient_accumulation_steps, 2)
    return changes


def _key(config: MindFormersConfig, names: tuple[str, ...]) -> str:
    """The name that the model's config uses for a number."""
    return MODEL + next((name for name in names if name in config.model), names[0])


def _stated(config: MindFormersConfig, key: str) -> Any:
    """Value of a key in the file, or in the Hugging Face config below it."""
    return config.model.get(key[len(MODEL) :]) if key.startswith(MODEL) else config.tree.get(key)
