"""A recipe -> a MindFormers training YAML.

In: a Recipe. Out: an `Exported`: the YAML's text, and each value of the recipe that MindFormers has no word for; they
also stand in the head of the file. A model that MindFormers 1.9.0 cannot train is an error. Names and checks:
MindFormers 1.9.0, `tools/register/template.py` and `parallel_core/transformer_config.py`.

>>> from msparallel.recipe.load import load_recipe
>>> exported = export_mindformers(load_recipe("qwen3_32b_tp4_pp4"))
>>> exported.document["parallel_config"]["pipeline_stage"]
4
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from msparallel.context import comm_fusion, parallel_optimizer_config, pipeline_config
from msparallel.errors import Problem, RecipeError
from msparallel.interop.import_sections import ATTENTION_CORE
from msparallel.interop.mindformers import ENGINE_MODES, VERSION
from msparallel.interop.model_names import model_config
from msparallel.plan import CONTEXT_PARALLEL_ALGO, DEFAULT_SEARCH_MODE, Plan, resolve
from msparallel.recipe.override import section_values
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.schema import SECTIONS

DATA_PATH = "/path/to/tokenized_text_document"
"""Stands in the file for the Megatron data set that only the user has."""
_ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "telechat3": "TeleChat3ForCausalLM",
}  # fmt: skip
_MODES = {"data_parallel": 0, "semi_auto_parallel": 1, "auto_parallel": 2, "hybrid_parallel": 3}
_COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")
_DATA = "MindFormers reads tokenized Megatron files, train_dataset.data_loader.config.data_path"
_MACHINES = "msrun says it: --worker_num, --local_worker_num"
_OTHER_FILES = {
    "serve": "MindFormers serves with other files",
    "supervise": "MindFormers leaves restarts to the scheduler of the cluster",
}
_UNSAID = {
    "data.corpus": _DATA, "data.text_field": _DATA, "data.tokenizer": _DATA, "data.eval_fraction": _DATA,
    "data.cache_dir": _DATA,
    "train.eval_interval": "MindFormers evaluates on a data set of its own (eval_dataset)",
    "train.eval_sequences": "MindFormers evaluates on a data set of its own (eval_dataset)",
    "train.sample_tokens": "no text is written at the end", "train.sample_prompt": "no text is written at the end",
    "train.tensorboard": "a section of its own there (tensorboard), which is not written",
    "cluster.nodes": _MACHINES, "cluster.devices_per_node": _MACHINES,
    "cluster.hardware": "MindFormers' files name no machine",
}  # fmt: skip
"""Keys of a recipe for which MindFormers has no word -> why."""


@dataclass(frozen=True, kw_only=True)
class NotExported:
    """A value of the recipe that is not in the YAML: key, value and half a sentence."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Attributes:
    text: the YAML, with what is not in it as comments in its head.
    document: the same as plain values.
    not_exported: in the order of the recipe.
    """

    text: str
    document: dict[str, Any]
    not_exported: tuple[NotExported, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields of `export --json`."""
        return {"yaml": self.text, "not_exported": [asdict(item) for item in self.not_exported]}


def export_mindformers(recipe: Recipe) -> Exported:
    """Write a recipe as a MindFormers YAML.

    Raises:
        RecipeError: MindFormers cannot train this model, or the recipe does not train.
    """
    plan = resolve(recipe)
    problems = list(_cannot(plan))
    if problems:
        raise RecipeError(problems)
    document = _document(plan)
    left = tuple(_not_exported(plan))
    return Exported(text=_text(plan, document, left), document=document, not_exported=left)


def family(plan: Plan) -> str:
    """MindFormers' model_type whose training graph is this model: QK-norm is Qwen3's; TeleChat3's dense model is
    Llama's, with or without bias on query, key and value."""
    if plan.shape.num_experts:
        return "qwen3_moe"
    return "qwen3" if plan.shape.qk_norm else "telechat3"


def _cannot(plan: Plan) -> Iterator[Problem]:
    """What MindFormers 1.9.0 cannot train."""
    recipe, shape = plan.recipe, plan.shape
    trains = f"MindFormers {VERSION} trains Qwen3, Qwen3-MoE and (as TeleChat3) Llama's and Qwen2's blocks"
    key = "model.preset" if recipe.model.preset else "model"
    if recipe.train is None:
        yield recipe.problem("export", "train", "A MindFormers training YAML needs a recipe with a `train:` section.")
        return
    foreign = {
        "learned positions": shape.position == "learned", "LayerNorm": shape.norm == "layer",
        "a GELU feed-forward layer": shape.activation == "gelu", "bias on the attention output": shape.output_bias,
        "bias in the feed-forward layer": shape.ffn_bias,
    }  # fmt: skip
    found = [name for name, present in foreign.items() if present]
    if found:
        yield recipe.problem("export", key, f"{trains}; this model has {', '.join(found)}.")
    elif shape.num_experts and not shape.qk_norm:
        yield recipe.problem("export", key, f"{trains}; experts there come with QK-norm (model.qk_norm), as in Qwen3.")
    elif shape.tie_embeddings and not shape.qk_norm:
        told = f"{trains}; of these only Qwen3 (with QK-norm) has one matrix for token embedding and LM head."
        yield recipe.problem("export", "model.tie_embeddings" if recipe.model.tie_embeddings else key, told)
    if plan.hardware.target != "Ascend":
        told = f"MindFormers trains on Ascend only; this recipe's hardware is {plan.hardware.name}."
        yield recipe.problem("export", "cluster.hardware", told + " Name a machine: cluster.hardware=atlas_800t_a2.")
    if plan.shape.padded_vocab_size % plan.mesh.tp:
        rows, tp = plan.shape.padded_vocab_size, plan.mesh.tp
        told = f"MindFormers always cuts the vocabulary over model_parallel: {rows} % {tp} = {rows % tp}."
        yield recipe.problem("export", "parallel.vocab_parallel", told)
    if recipe.parallel.mode not in ENGINE_MODES and plan.accumulation_steps > 1:
        told = (
            f"{plan.accumulation_steps} accumulation steps: MindFormers accumulates gradients in semi_auto_parallel "
            f"and auto_parallel only; in mode {recipe.parallel.mode} it takes 1 step."
        )
        suggestion = f"train.global_batch_size={plan.global_batch_size // plan.accumulation_steps}"
        yield recipe.problem("export", "train.global_batch_size", told, suggestion)
    if plan.mesh.cp > 1 and plan.attention == "plain":
        told = "MindFormers has context parallel with flash attention only."
        yield recipe.problem("export", "model.attention", told)


def _document(plan: Plan) -> dict[str, Any]:
    recipe = plan.recipe
    train, mode = recipe.train, recipe.parallel.mode
    assert train is not None, "_cannot asked"
    dataset = _dataset(plan)
    document: dict[str, Any] = {
        "seed": train.seed, "output_dir": train.output_dir, "run_mode": "train",
        "use_parallel": mode != "stand_alone", "use_legacy": False, "load_checkpoint": "",
        "load_ckpt_format": "safetensors", "auto_trans_ckpt": False, "only_save_strategy": False,
        "resume_training": False,
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": recipe.name},
        "runner_config": {"epochs": 1, "batch_size": plan.micro_batch_size, "sink_mode": True, "sink_size": 1,
                          "gradient_accumulation_steps": plan.accumulation_steps},
        **_optimizer(plan),
        "train_dataset": dataset,
        "train_dataset_task": {"type": "CausalLanguageModelDataset", "dataset_config": dataset},
        "context": {"mode": 0, "device_target": "Ascend", "max_device_memory": _memory(plan),
                    "jit_config": {"jit_level": "O0"}},
        "parallel_config": _parallel_config(plan),
        "micro_batch_interleave_num": 1,
        "parallel": _parallel(plan),
        "recompute_config": _recompute(plan),
        "model": {"model_config": _model(plan)},
        "callbacks": [
            {"type": "MFLossMonitor", "per_print_times": train.log_interval},
            {"type": "CheckpointMonitor", "prefix": recipe.name,
             "save_checkpoint_steps": train.checkpoint_interval or train.steps,
             "keep_checkpoint_max": train.keep_checkpoints, "integrated_save": False, "async_save": False,
             "checkpoint_format": "safetensors"},
        ],
    }  # fmt: skip
    return document


def _memory(plan: Plan) -> str:
    """Nine tenths of the device's memory, as MindFormers' own files leave room."""
    return f"{int(plan.hardware.memory_gib * 0.9)}GB"


def _optimizer(plan: Plan) -> dict[str, Any]:
    optimizer, train = plan.recipe.optimizer, plan.recipe.train
    assert train is not None
    cosine = optimizer.schedule == "cosine"
    scale: Any = 1.0
    if train.dtype == "float16":
        scale = train.loss_scale if isinstance(train.loss_scale, int) else {
            "type": "DynamicLossScaleUpdateCell", "loss_scale_value": 65536, "scale_factor": 2, "scale_window": 1000,
        }  # fmt: skip
    return {
        "optimizer": {"type": "AdamW", "betas": [optimizer.beta1, optimizer.beta2], "eps": optimizer.eps,
                      "weight_decay": float(optimizer.weight_decay)},
        "lr_schedule": {"type": "CosineWithWarmUpLR" if cosine else "ConstantWarmUpLR",
                        "learning_rate": float(optimizer.learning_rate),
                        **({"lr_end": float(optimizer.min_learning_rate)} if cosine else {}),
                        "warmup_steps": optimizer.warmup_steps, "total_steps": train.steps},
        "runner_wrapper": {"type": "MFTrainOneStepCell", "use_clip_grad": optimizer.clip_norm > 0,
                           **({"max_grad_norm": float(optimizer.clip_norm)} if optimizer.clip_norm else {}),
                           "scale_sense": scale},
    }  # fmt: skip


def _dataset(plan: Plan) -> dict[str, Any]:
    train = plan.recipe.train
    assert train is not None
    return {
        "data_loader": {
            "type": "BlendedMegatronDatasetDataLoader", "datasets_type": "GPTDataset",
            "sizes": [train.steps * plan.global_batch_size, 0, 0],
            "config": {
                "seed": train.seed, "split": "1, 0, 0", "seq_length": train.seq_length, "eod_mask_loss": False,
                "reset_position_ids": False, "create_attention_mask": False, "reset_attention_mask": False,
                "create_compressed_eod_mask": False, "eod_pad_length": 128, "eod": 0, "pad": -1,
                "data_path": ["1", DATA_PATH],
            },
        },
        "input_columns": list(_COLUMNS), "construct_args_key": list(_COLUMNS), "num_parallel_workers": 8,
        "python_multiprocessing": False, "drop_remainder": True, "numa_enable": False, "prefetch_size": 1,
        "seed": train.seed,
    }  # fmt: skip


def _parallel_config(plan: Plan) -> dict[str, Any]:
    mesh, parallel = plan.mesh, plan.recipe.parallel
    config = {
        "data_parallel": mesh.dp, "model_parallel": mesh.tp, "pipeline_stage": mesh.pp,
        "context_parallel": mesh.cp, "expert_parallel": parallel.expert_parallel,
        "micro_batch_num": plan.micro_batch_num if mesh.pp > 1 else 1, "use_seq_parallel": parallel.sequence_parallel,
        "gradient_aggregation_group": 1,
    }  # fmt: skip
    if mesh.cp > 1:
        config["context_parallel_algo"] = CONTEXT_PARALLEL_ALGO[parallel.context_parallel_algo or "all_gather"]
    return config


def _parallel(plan: Plan) -> dict[str, Any]:
    """Arguments of set_auto_parallel_context, as MindFormers hands them on."""
    parallel = plan.recipe.parallel
    config: dict[str, Any] = {
        "parallel_mode": _MODES.get(parallel.mode, 1), "gradients_mean": False, "enable_alltoall": True,
        "full_batch": False, "dataset_strategy": [[plan.mesh.dp, 1] for _ in _COLUMNS],
    }  # fmt: skip
    if parallel.mode not in ENGINE_MODES:
        return config
    if parallel.mode == "auto_parallel":
        config["search_mode"] = parallel.search_mode or DEFAULT_SEARCH_MODE
    config["enable_parallel_optimizer"] = bool(parallel.optimizer_shard)
    if parallel.optimizer_shard:
        config["parallel_optimizer_config"] = parallel_optimizer_config(plan)
    if plan.mesh.pp > 1:
        config["pipeline_config"] = pipeline_config(plan)
    config["comm_fusion"] = comm_fusion(plan)
    files = {"save_file": parallel.strategy_save_file, "load_file": parallel.strategy_load_file}
    if any(files.values()):
        config["strategy_ckpt_config"] = {key: file for key, file in files.items() if file}
    return config


def _recompute(plan: Plan) -> dict[str, Any]:
    kind = plan.recipe.parallel.recompute
    return {"recompute": kind == "full", "select_recompute": [ATTENTION_CORE] if kind == "selective" else False,
            "parallel_optimizer_comm_recompute": plan.recipe.parallel.optimizer_shard == "level3",
            "mp_comm_recompute": True}  # fmt: skip


def _model(plan: Plan) -> dict[str, Any]:
    recipe, shape, kind = plan.recipe, plan.shape, family(plan)
    assert recipe.train is not None
    config = model_config(shape, kind)
    config |= {
        "architectures": [_ARCHITECTURES[kind]], "vocab_size": shape.padded_vocab_size,
        "seq_length": recipe.train.seq_length, "hidden_act": "silu" if shape.num_experts else "swiglu",
        "qk_layernorm": shape.qk_norm, "position_embedding_type": "rope", "add_bias_linear": False,
        "untie_embeddings_and_output_weights": not shape.tie_embeddings, "attention_dropout": 0.0,
        "hidden_dropout": 0.0, "use_flash_attention": plan.attention == "flash", "input_sliced_sig": True,
        "offset": _offset(plan), "compute_dtype": recipe.train.dtype, "params_dtype": "float32",
        "layernorm_compute_dtype": "float32", "softmax_compute_dtype": "float32", "rotary_dtype": "float32",
        "fp32_residual_connection": False,
    }  # fmt: skip
    if plan.mesh.pp > 1:  # MindFormers' default is no number, which interleaving cannot use
        config["pp_interleave_num"] = recipe.parallel.virtual_stages
    if shape.num_experts:
        config |= {"router_dense_type": "float32", "moe_grouped_gemm": True, "gated_linear_unit": True,
                   "routed_scaling_factor": 1.0, "moe_router_load_balancing_type": "seq_aux_loss",
                   "moe_token_dispatcher_type": "alltoall"}  # fmt: skip
    return config


def _offset(plan: Plan) -> int | list[Any]:
    """Layers of each group beyond num_layers // groups; 0 where all are equal."""
    layers, stages = plan.stage_layers, plan.mesh.pp
    if len(set(layers)) == 1:
        return 0
    share = plan.shape.num_layers // len(layers)
    rows = [[count - share for count in layers[at : at + stages]] for at in range(0, len(layers), stages)]
    return rows if len(rows) > 1 else rows[0]


def _not_exported(plan: Plan) -> Iterator[NotExported]:
    parallel, values = plan.recipe.parallel, section_values(plan.recipe)
    told = {
        "model.expert_capacity_factor": (
            plan.shape.num_experts and plan.shape.expert_capacity_factor,
            "MindFormers' training graph drops no tokens",
        ),
        "model.vocab_multiple": (
            plan.shape.padded_vocab_size != plan.shape.vocab_size and plan.shape.vocab_multiple,
            f"the padded size is written: vocab_size {plan.shape.padded_vocab_size}",
        ),
        "parallel.vocab_parallel": (not parallel.vocab_parallel and "false", "MindFormers always cuts the vocabulary"),
        "parallel.overlap_gradients": (
            parallel.overlap_gradients and "true",
            'a side file says it: {"grad_computation_allreduce_overlap": true}, named in '
            "context.ascend_config.parallel_speed_up_json_path",
        ),
    }
    for key, (value, reason) in told.items():
        if value:
            yield NotExported(key=key, value=value, reason=reason)
    for section, cls in SECTIONS.items():
        for name in cls.model_fields:
            reason = _OTHER_FILES.get(section) or _UNSAID.get(f"{section}.{name}")
            if reason and name in values.get(section, {}):
                yield NotExported(key=f"{section}.{name}", value=values[section][name], reason=reason)


def _text(plan: Plan, document: dict[str, Any], left: tuple[NotExported, ...]) -> str:
    """The YAML; its head says where it came from, how to start it, and what is not in it."""
    recipe = plan.recipe
    path = recipe.path if recipe.path.isprintable() else ascii(recipe.path)
    called = " ".join([path, *(text if text.isprintable() else ascii(text) for text in recipe.overrides)])
    # A line as long as it is: broken, lines below would count differently for every folder.
    source = (f"From {called}, for MindFormers {VERSION}: {plan.world_size} devices on {plan.nodes} "
              f"node{'s' * (plan.nodes > 1)} ({plan.mesh}).")  # fmt: skip
    head = [f"Write your data set into data_path, which holds {DATA_PATH} twice."]
    head.append("Documents that share a sequence see each other (reset_attention_mask); in msparallel they do not.")
    if left:
        head.append("Not in this file, because MindFormers has no word for it:")
    for reason in dict.fromkeys(item.reason for item in left):
        items = ", ".join(f"{item.key} {_plain(item.value)}" for item in left if item.reason == reason)
        head.append(f"  {items}: {reason}")
    lines = [f"# {source}"]
    lines += [f"# {line}" for text in head for line in textwrap.wrap(text, 116, subsequent_indent="    ")]
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return "\n".join(lines) + "\n\n" + body


def _plain(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text.isprintable() else ascii(text)


class _Dumper(yaml.SafeDumper):
    """Writes the data set in full both times: an alias would hide what the second mention holds."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
