"""What an unknown name was meant to be.

In: a section or key that the schema does not have. Out: the one it stands for, by other frameworks' terms, by a slip of
section, or by spelling.

>>> meant_key("parallel", "tensor_parallel")
'parallel.model_parallel'
>>> meant_key("train", "dropuot") is None
True
"""

from __future__ import annotations

from difflib import get_close_matches

from msparallel.recipe.schema import SECTIONS

SECTION_TERMS = {
    "parallel_config": "parallel", "parallelism": "parallel", "distributed": "parallel", "strategy": "parallel",
    "auto_parallel": "parallel", "model_config": "model", "architecture": "model", "network": "model",
    "training": "train", "trainer": "train", "runner_config": "train", "training_args": "train",
    "optim": "optimizer", "lr_schedule": "optimizer", "scheduler": "optimizer", "adamw": "optimizer",
    "dataset": "data", "train_dataset": "data", "datasets": "data", "tokenizer": "data",
    "resources": "cluster", "hardware": "cluster", "machines": "cluster", "hosts": "cluster",
    "serving": "serve", "inference": "serve", "server": "serve",
    "fault_tolerance": "supervise", "ft": "supervise", "watchdog": "supervise", "elastic": "supervise",
}  # fmt: skip
"""Section names of MindFormers, Megatron, torchtitan and torchtune recipes -> ours."""

KEY_TERMS = {
    "model.n_layer": "model.num_layers", "model.n_layers": "model.num_layers", "model.layers": "model.num_layers",
    "model.num_hidden_layers": "model.num_layers", "model.depth": "model.num_layers",
    "model.n_head": "model.num_heads", "model.n_heads": "model.num_heads", "model.heads": "model.num_heads",
    "model.num_attention_heads": "model.num_heads", "model.n_kv_head": "model.num_kv_heads",
    "model.n_kv_heads": "model.num_kv_heads", "model.num_key_value_heads": "model.num_kv_heads",
    "model.num_query_groups": "model.num_kv_heads",
    "model.n_embd": "model.hidden_size", "model.dim": "model.hidden_size",
    "model.d_model": "model.hidden_size", "model.width": "model.hidden_size", "model.head_size": "model.head_dim",
    "model.intermediate_size": "model.ffn_size",
    "model.ffn_hidden_size": "model.ffn_size", "model.d_ff": "model.ffn_size",
    "model.n_inner": "model.ffn_size", "model.padded_vocab_size": "model.vocab_multiple",
    "model.make_vocab_size_divisible_by": "model.vocab_multiple",
    "model.max_position_embeddings": "model.max_positions",
    "model.n_positions": "model.max_positions",
    "model.block_size": "train.seq_length", "model.theta": "model.rope_theta",
    "model.rotary_base": "model.rope_theta", "model.rms_norm_eps": "model.norm_eps",
    "model.layernorm_epsilon": "model.norm_eps", "model.hidden_act": "model.activation",
    "model.tie_word_embeddings": "model.tie_embeddings", "model.num_local_experts": "model.num_experts",
    "model.n_routed_experts": "model.num_experts", "model.num_moe_experts": "model.num_experts",
    "model.num_experts_per_tok": "model.experts_per_token", "model.moe_router_topk": "model.experts_per_token",
    "model.top_k": "model.experts_per_token", "model.moe_intermediate_size": "model.expert_ffn_size",
    "model.capacity_factor": "model.expert_capacity_factor", "model.router_aux_loss_coef": "model.router_aux_loss",
    "model.initializer_range": "model.init_std", "model.use_flash_attention": "model.attention",
    "model.flash_attention": "model.attention", "model.name": "model.preset", "model.type": "model.preset",
    "model.flavor": "model.preset", "model.qkv_bias": "model.attention_bias",
    "parallel.parallel_mode": "parallel.mode", "parallel.dp": "parallel.data_parallel",
    "parallel.data_parallel_size": "parallel.data_parallel", "parallel.dp_size": "parallel.data_parallel",
    "parallel.tp": "parallel.model_parallel", "parallel.mp": "parallel.model_parallel",
    "parallel.tensor_parallel": "parallel.model_parallel", "parallel.tensor_parallel_degree": "parallel.model_parallel",
    "parallel.tensor_parallel_size": "parallel.model_parallel", "parallel.tp_size": "parallel.model_parallel",
    "parallel.tensor_model_parallel_size": "parallel.model_parallel",
    "parallel.model_parallel_size": "parallel.model_parallel", "parallel.pp": "parallel.pipeline_stages",
    "parallel.pipeline_stage": "parallel.pipeline_stages", "parallel.pipeline_parallel": "parallel.pipeline_stages",
    "parallel.pipeline_parallel_degree": "parallel.pipeline_stages", "parallel.pp_size": "parallel.pipeline_stages",
    "parallel.pipeline_model_parallel_size": "parallel.pipeline_stages", "parallel.stages": "parallel.pipeline_stages",
    "parallel.cp": "parallel.context_parallel", "parallel.context_parallel_size": "parallel.context_parallel",
    "parallel.context_parallel_degree": "parallel.context_parallel", "parallel.ep": "parallel.expert_parallel",
    "parallel.expert_model_parallel_size": "parallel.expert_parallel",
    "parallel.use_seq_parallel": "parallel.sequence_parallel", "parallel.sp": "parallel.sequence_parallel",
    "parallel.enable_parallel_optimizer": "parallel.optimizer_shard", "parallel.zero": "parallel.optimizer_shard",
    "parallel.zero1": "parallel.optimizer_shard", "parallel.zero_stage": "parallel.optimizer_shard",
    "parallel.fsdp": "parallel.optimizer_shard", "parallel.use_distributed_optimizer": "parallel.optimizer_shard",
    "parallel.optimizer_level": "parallel.optimizer_shard",
    "parallel.optimizer_weight_shard_size": "parallel.optimizer_shard_size",
    "parallel.parallel_optimizer_threshold": "parallel.optimizer_shard_threshold_kib",
    "parallel.vocab_emb_dp": "parallel.vocab_parallel", "parallel.vpp": "parallel.virtual_stages",
    "parallel.pp_interleave_num": "parallel.virtual_stages",
    "parallel.pipeline_scheduler": "parallel.pipeline_schedule",
    "parallel.schedule": "parallel.pipeline_schedule",
    "parallel.virtual_pipeline_model_parallel_size": "parallel.virtual_stages",
    "parallel.offset": "parallel.stage_layers",
    "parallel.layers_per_stage": "parallel.stage_layers", "parallel.micro_batches": "parallel.micro_batch_num",
    "parallel.num_microbatches": "parallel.micro_batch_num",
    "parallel.gradient_accumulation_steps": "parallel.micro_batch_num",
    "parallel.activation_checkpointing": "parallel.recompute", "parallel.select_recompute": "parallel.recompute",
    "parallel.auto_parallel_search_mode": "parallel.search_mode",
    "parallel.strategy_ckpt_save_file": "parallel.strategy_save_file",
    "parallel.strategy_ckpt_load_file": "parallel.strategy_load_file",
    "parallel.grad_computation_allreduce_overlap": "parallel.overlap_gradients",
    "optimizer.lr": "optimizer.learning_rate", "optimizer.max_lr": "optimizer.learning_rate",
    "optimizer.min_lr": "optimizer.min_learning_rate", "optimizer.lr_end": "optimizer.min_learning_rate",
    "optimizer.warmup": "optimizer.warmup_steps", "optimizer.lr_warmup_steps": "optimizer.warmup_steps",
    "optimizer.decay": "optimizer.weight_decay", "optimizer.epsilon": "optimizer.eps",
    "optimizer.adam_beta1": "optimizer.beta1", "optimizer.adam_beta2": "optimizer.beta2",
    "optimizer.grad_clip": "optimizer.clip_norm", "optimizer.max_grad_norm": "optimizer.clip_norm",
    "optimizer.max_norm": "optimizer.clip_norm",
    "data.path": "data.corpus", "data.dataset": "data.corpus", "data.dataset_dir": "data.corpus",
    "data.files": "data.corpus", "data.text_column": "data.text_field", "data.tokenizer_path": "data.tokenizer",
    "data.val_fraction": "data.eval_fraction", "data.validation_fraction": "data.eval_fraction",
    "train.batch_size": "train.micro_batch_size", "train.per_device_train_batch_size": "train.micro_batch_size",
    "train.local_batch_size": "train.micro_batch_size", "train.mbs": "train.micro_batch_size",
    "train.gbs": "train.global_batch_size", "train.train_batch_size": "train.global_batch_size",
    "train.seq_len": "train.seq_length", "train.sequence_length": "train.seq_length",
    "train.max_seq_len": "train.seq_length", "train.context_length": "train.seq_length",
    "train.max_steps": "train.steps", "train.train_iters": "train.steps", "train.num_steps": "train.steps",
    "train.epochs": "train.steps", "train.precision": "train.dtype", "train.compute_dtype": "train.dtype",
    "train.bf16": "train.dtype", "train.fp16": "train.dtype", "train.loss_scaling": "train.loss_scale",
    "train.log_every": "train.log_interval", "train.eval_every": "train.eval_interval",
    "train.save_interval": "train.checkpoint_interval", "train.save_steps": "train.checkpoint_interval",
    "train.save_dir": "train.output_dir", "train.out_dir": "train.output_dir", "train.random_seed": "train.seed",
    "train.gradient_accumulation_steps": "parallel.micro_batch_num", "train.lr": "optimizer.learning_rate",
    "cluster.num_nodes": "cluster.nodes", "cluster.nnodes": "cluster.nodes", "cluster.machines": "cluster.nodes",
    "cluster.nproc_per_node": "cluster.devices_per_node", "cluster.npus_per_node": "cluster.devices_per_node",
    "cluster.gpus_per_node": "cluster.devices_per_node", "cluster.devices": "cluster.devices_per_node",
    "cluster.device_num": "cluster.devices_per_node", "cluster.local_worker_num": "cluster.devices_per_node",
    "cluster.device_type": "cluster.hardware", "cluster.chip": "cluster.hardware", "cluster.device": "cluster.hardware",
    "serve.checkpoint": "serve.weights", "serve.model_path": "serve.weights", "serve.address": "serve.host",
    "serve.max_batch_size": "serve.max_concurrency", "serve.max_num_seqs": "serve.max_concurrency",
    "serve.max_model_len": "serve.max_length", "serve.max_seq_len": "serve.max_length",
}  # fmt: skip
"""`section.term` of MindFormers, Hugging Face, Megatron, torchtitan, vLLM -> our key."""

_ANYWHERE = {term.partition(".")[2]: key for term, key in KEY_TERMS.items()}


def meant_section(name: str) -> str | None:
    """Section that an unknown section name stands for."""
    plain = name.lower().replace("-", "_")
    if plain in SECTIONS:
        return plain
    if plain in SECTION_TERMS:
        return SECTION_TERMS[plain]
    return next(iter(get_close_matches(plain, SECTIONS, n=1, cutoff=0.75)), None)


def meant_key(section: str, name: str) -> str | None:
    """`section.key` that an unknown key stands for; the section may differ from the one it was found in."""
    plain = name.lower().replace("-", "_")
    own = list(SECTIONS[section].model_fields) if section in SECTIONS else []
    if plain in own:
        return f"{section}.{plain}"
    if f"{section}.{plain}" in KEY_TERMS:
        return KEY_TERMS[f"{section}.{plain}"]
    homes = [other for other, cls in SECTIONS.items() if plain in cls.model_fields]
    if homes:
        return f"{homes[0]}.{plain}"
    if plain in _ANYWHERE:
        return _ANYWHERE[plain]
    close = get_close_matches(plain, own, n=1, cutoff=0.75)
    if close:
        return f"{section}.{close[0]}"
    everywhere = {key: other for other, cls in SECTIONS.items() for key in cls.model_fields}
    close = get_close_matches(plain, everywhere, n=1, cutoff=0.85)
    return f"{everywhere[close[0]]}.{close[0]}" if close else None
