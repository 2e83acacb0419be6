"""Why a key of a MindFormers YAML is not in the recipe that comes from it.

In: a key that nothing was made of, and its value. Out: one of the kinds and a sentence. `decided`: msparallel does
this in its own way. `no_effect`: it changes nothing here. `unknown`: no word for it. `differs`: results differ from
MindFormers' because of it. `same`, which only `import` itself can tell: it holds in the recipe without a key.

>>> why_left("context.save_graphs", False)
('no_effect', 'off')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msparallel.interop.model_names import Why

KINDS: Mapping[Why, str] = {
    "differs": "carried otherwise, results differ",
    "unknown": "no word for it here",
    "decided": "decided by msparallel",
    "no_effect": "without effect here",
    "same": "the same here without a key",
}
"""Kind -> heading, the weightiest first."""
_CHECKPOINT = ("decided", "a run goes on from the checkpoints below its own train.output_dir")
_DATA = ("decided", "text and a tokenizer are read here: data.corpus and data.tokenizer")
_PROFILE = ("unknown", "profiling is no part of a recipe")
_GENERATE = ("no_effect", "only generating text reads it")
_LAYOUT = ("decided", "how weights lie in memory; the mathematics is the same")
_KERNEL = ("decided", "which kernel computes it; the mathematics is the same")
_FLOAT32 = ("decided", "norms, softmax, rotary positions and router compute in float32 here")
_LEGACY = ("no_effect", "only the legacy models read it")
_REASONS: dict[str, tuple[Why, str]] = {
    "trainer": ("no_effect", "names MindFormers' trainer"),
    "train_dataset": _DATA, "train_dataset_task": _DATA, "processor": _DATA,
    "eval_dataset": _DATA, "eval_dataset_task": _DATA,
    "do_eval": ("decided", "evaluation is part of every run: train.eval_interval"),
    "eval_step_interval": ("decided", "train.eval_interval"), "eval_epoch_interval": ("decided", "train.eval_interval"),
    "metric": ("decided", "evaluation prints loss and perplexity"),
    "load_checkpoint": _CHECKPOINT, "load_ckpt_format": _CHECKPOINT, "src_strategy_path_or_dir": _CHECKPOINT,
    "auto_trans_ckpt": _CHECKPOINT, "only_save_strategy": _CHECKPOINT, "resume_training": _CHECKPOINT,
    "transform_process_num": _CHECKPOINT, "remove_redundancy": _CHECKPOINT,
    "pretrained_model_dir": ("decided", "shape and tokenizer are read from it, weights are not"),
    "print_separate_loss": ("decided", "the log holds the loss without the experts' part"),
    "train_precision_sync": ("unknown", "deterministic kernels are no part of a recipe"),
    "remote_save_url": ("unknown", "only this machine's folders are written"),
    "profile": _PROFILE, "profile_start_step": _PROFILE, "profile_stop_step": _PROFILE,
    "init_start_profile": _PROFILE, "profile_communication": _PROFILE, "profile_memory": _PROFILE,
    "profiler_level": _PROFILE, "profile_level": _PROFILE, "profile_rank_ids": _PROFILE, "mstx": _PROFILE,
    "layer_scale": ("unknown", "one learning rate for all layers"),
    "layer_decay": ("no_effect", "layer_scale is off"),
    "lr_scale": ("unknown", "the learning rate is stated, never scaled"),
    "lr_scale_factor": ("no_effect", "lr_scale is off"),
    "auto_tune": ("unknown", "not part of a recipe"), "filepath_prefix": ("no_effect", "auto_tune is off"),
    "autotune_per_step": ("no_effect", "auto_tune is off"),
    "moe_config": ("no_effect", "with use_legacy false MindFormers reads experts from model_config"),
    "swap_config": ("unknown", "activations are kept or recomputed, never moved to the host"),
    "monitor_config": ("unknown", "not part of a recipe"),
    "grouped_lr_schedule.grouped": ("differs", "one schedule for all weights here, the default one"),
    "context": ("decided", "MindSpore's context is written by msparallel; see `show --context`"),
    "context.max_device_memory": ("decided", "memory is that of the hardware profile, cluster.hardware"),
    "context.mempool_block_size": ("decided", "memory is that of the hardware profile, cluster.hardware"),
    "context.memory_optimize_level": ("unknown", "MindSpore's default is kept"),
    "context.jit_config": ("unknown", "MindSpore's default is kept"),
    "context.ascend_config.precision_mode": ("decided", "train.dtype says what is computed in what"),
    "context.ascend_config.parallel_speed_up_json_path": ("unknown", "of that file only gradient overlap has a word"),
    "runner_config.epochs": ("decided", "steps are counted here: train.steps"),
    "runner_config.sink_mode": ("decided", "batches are fed step by step"),
    "runner_config.sink_size": ("decided", "batches are fed step by step"),
    "runner_config.stop_step": ("unknown", "a run ends after train.steps"),
    "runner_config.num_classes": ("no_effect", "only classifiers read it"),
    "runner_wrapper.type": ("no_effect", "names MindFormers' training step"),
    "runner_wrapper.scale_sense": ("no_effect", "a loss scale belongs to float16"),
    "optimizer.learning_rate": ("no_effect", "lr_schedule gives the learning rate"),
    "optimizer.swap": ("unknown", "optimizer state stays on the device"),
    "lr_schedule.lr_end": ("no_effect", "this schedule ends at learning_rate"),
    "lr_schedule.warmup_lr_init": ("differs", "warm-up starts at 0 here"),
    "micro_batch_interleave_num": ("unknown", "a micro-batch is never halved; MindFormers takes 1 only as well"),
    "parallel_config.gradient_aggregation_group": ("unknown", "the nearest word is parallel.comm_fusion"),
    "parallel_config.vocab_emb_dp": ("no_effect", "MindFormers always cuts the vocabulary over model_parallel"),
    "parallel_config.seq_split_num": ("unknown", "a sequence is never sent through the pipeline in pieces"),
    "parallel_config.ulysses_degree_in_cp": ("unknown", "context_parallel is all_gather or ulysses, not both"),
    "parallel_config.mem_coeff": ("unknown", "a weight of MindSpore's search"),
    "parallel_config.optimizer_shard": ("no_effect", "MindFormers reads parallel.enable_parallel_optimizer instead"),
    "parallel.gradients_mean": ("decided", "gradients are added: the loss is already divided by the global tokens"),
    "parallel.loss_repeated_mean": ("decided", "gradients are added: the loss is divided by the global tokens"),
    "parallel.enable_alltoall": ("decided", "always on"),
    "parallel.full_batch": ("decided", "each replica reads its own rows"),
    "parallel.dataset_strategy": ("decided", "each replica reads its own rows"),
    "parallel.search_mode": ("no_effect", "only auto_parallel searches"),
    "parallel.strategy_ckpt_config.only_trainable_params": ("decided", "MindSpore's default is kept"),
    "parallel.pipeline_config.pipeline_interleave": ("no_effect", "one group of layers on each stage"),
    "parallel.parallel_optimizer_config": ("no_effect", "enable_parallel_optimizer is off"),
    "recompute_config.mp_comm_recompute": ("decided", "collectives inside a recomputed layer run again"),
    "recompute_config.parallel_optimizer_comm_recompute": ("decided", "optimizer_shard level3 gathers weights again"),
    "recompute_config.select_comm_recompute": ("unknown", "recompute is none, selective or full"),
    "recompute_config.recompute_slice_activation": ("unknown", "MindFormers refuses it too with use_legacy false"),
    "recompute_config.select_recompute_exclude": ("unknown", "recompute is none, selective or full"),
    "recompute_config.select_comm_recompute_exclude": ("unknown", "recompute is none, selective or full"),
}  # fmt: skip
"""Dotted key, or the section around it -> kind and reason."""
_MODEL_REASONS: dict[str, tuple[Why, str]] = {
    "use_cache": _GENERATE, "eos_token_id": _GENERATE, "bos_token_id": _GENERATE, "pad_token_id": _GENERATE,
    "use_past": _GENERATE, "max_decode_length": _GENERATE, "repetition_penalty": _GENERATE, "top_k": _GENERATE,
    "top_p": _GENERATE, "do_sample": _GENERATE, "block_size": _GENERATE, "num_blocks": _GENERATE,
    "is_dynamic": _GENERATE, "batch_size": _GENERATE, "checkpoint_name_or_path": _CHECKPOINT,
    "layernorm_compute_dtype": _FLOAT32, "softmax_compute_dtype": _FLOAT32, "rotary_dtype": _FLOAT32,
    "router_dense_type": _FLOAT32,
    "qkv_concat": _LAYOUT, "use_contiguous_weight_layout_attention": _LAYOUT, "mlp_concat": _LAYOUT,
    "use_interleaved_weight_layout_mlp": _LAYOUT, "input_sliced_sig": ("decided", "sequences have one length here"),
    "moe_grouped_gemm": _KERNEL, "bias_swiglu_fusion": _KERNEL, "apply_rope_fusion": _KERNEL, "fused_norm": _KERNEL,
    "use_fused_ops_topkrouter": _KERNEL, "moe_permute_fusion": _KERNEL, "use_pad_tokens": _KERNEL,
    "moe_token_dispatcher_type": ("decided", "tokens travel to experts by all-to-all"),
    "npu_nums_per_device": ("no_effect", "only another token dispatcher reads it"),
    "use_attn_mask_compression": _KERNEL,
    "use_flash_attention": ("no_effect", "flash attention is the default on Ascend"),
    "gated_linear_unit": ("no_effect", "the feed-forward layer is gated"), "normalization": ("no_effect", "RMSNorm"),
    "add_bias_linear": ("no_effect", "no bias, as stated"),
    "untie_embeddings_and_output_weights": ("no_effect", "tie_word_embeddings says it"),
    "position_embedding_type": ("no_effect", "rotary positions"),
    "router_aux_loss_coef": ("no_effect", "MindFormers reads moe_aux_loss_coeff instead"),
    "moe_router_pre_softmax": ("no_effect", "softmax before the choice, as here"),
    "moe_token_drop_policy": ("no_effect", "no token is dropped without a capacity"),
    "moe_router_load_balancing_type": ("no_effect", "one balance loss for each sequence"),
    "pp_interleave_num": ("no_effect", "pipeline_interleave is off, or it is 1"),
    "transformers_version": ("no_effect", "says who wrote the config"),
    "torch_dtype": ("no_effect", "compute_dtype says it"), "dtype": ("no_effect", "compute_dtype says it"),
    "max_window_layers": ("no_effect", "use_sliding_window is off"),
    "sliding_window": ("no_effect", "use_sliding_window is off"),
    "use_sliding_window": ("no_effect", "off"), "layer_types": ("no_effect", "full attention in every layer"),
    "output_router_logits": ("no_effect", "only evaluation elsewhere reads it"),
}  # fmt: skip
MODEL = "model.model_config."
_WITH_WORDS = {
    "parallel_config": ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel",
                        "micro_batch_num", "use_seq_parallel", "context_parallel_algo"),
    "recompute_config": ("recompute", "select_recompute"),
    "runner_config": ("batch_size", "gradient_accumulation_steps"),
}  # fmt: skip
"""Section that takes no other keys than MindFormers' own -> those that a recipe has words for."""


def keys_of(section: str) -> list[str]:
    """Names of a section's keys, as far as they are known here."""
    told = [name.rpartition(".")[2] for name in _REASONS if name.rpartition(".")[0] == section]
    return [*_WITH_WORDS.get(section, ()), *told]


def why_left(key: str, value: Any) -> tuple[Why, str]:
    """Kind and reason for one key; the nearest section's where the key has none of its own."""
    found: tuple[Why, str] | None
    if key.startswith(MODEL):
        name = key[len(MODEL) :]
        found = _changed_numbers(name, value) or _MODEL_REASONS.get(name.partition(".")[0])
    else:
        section = key
        while section and section not in _REASONS:
            section = section.rpartition(".")[0]
        found = _REASONS.get(section)
        if section == "context" and _is_off(value):
            return _OFF
    if found is None or found[0] == "unknown":
        return _OFF if _is_off(value) or (key, value) == ("micro_batch_interleave_num", 1) else found or _UNKNOWN
    return found


_UNKNOWN: tuple[Why, str] = ("unknown", "not a key that msparallel knows")
_OFF: tuple[Why, str] = ("no_effect", "off")


def _is_off(value: Any) -> bool:
    return value is None or value in (False, 0, "", [], {})


def _changed_numbers(name: str, value: Any) -> tuple[Why, str] | None:
    """Settings of the model that our blocks do not have and that change its results."""
    if name == "routed_scaling_factor" and value not in (None, 1, 1.0):
        return "differs", "the experts' weights are not multiplied by a factor here"
    if name == "moe_router_load_balancing_type" and value not in (None, "seq_aux_loss"):
        return "differs", "the balance loss here is that of each whole sequence (seq_aux_loss)"
    if name == "moe_z_loss_coeff" and value:
        return "differs", "no z-loss on the router here"
    if name in ("attention_dropout", "hidden_dropout") and value:
        return "differs", "no dropout here"
    if name in ("rope_scaling", "rope_parameters") and isinstance(value, dict):
        kind = value.get("rope_type", value.get("type", "default"))
        return None if kind == "default" else ("differs", "rotary frequencies are not scaled here")
    if name.startswith(("rope_scaling.", "rope_parameters.")):
        return "differs" if name.startswith("rope_scaling.") else "no_effect", "rotary frequencies are not scaled here"
    if name == "position_embedding_type" and value not in (None, "rope"):
        return "differs", "plain rotary positions here"
    if name in ("layernorm_compute_dtype", "softmax_compute_dtype", "rotary_dtype", "router_dense_type"):
        return None if value in ("float32", "fp32") else ("differs", _FLOAT32[1])
    if name == "params_dtype" and value not in ("float32", "fp32"):
        return "differs", "weights and optimizer state are float32 here"
    if name == "fp32_residual_connection" and value is True:
        return "differs", "the residual stream has train.dtype here"
    if name == "moe_expert_capacity_factor" and value:
        return "no_effect", "MindFormers' training graph drops no tokens"
    if name in ("moe_router_force_expert_balance", "use_eod_attn_mask_compression") and value:
        return "differs", "not done here"
    return None
