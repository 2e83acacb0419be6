"""A model's numbers under Hugging Face's names, which MindFormers shares, and under ours.

In: a config (of a config.json, or of a YAML's model_config) and its model_type. Out: values of the recipe's `model`
section, and for every other key why it was left. What our blocks cannot build is a Problem: another attention, other
layers. Defaults: MindFormers 1.9.0, `models/*/configuration_*.py`; for llama, qwen2 and gpt2 transformers 4.57.

>>> read_model({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}, "llama").values["num_heads"]
4
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from msparallel.errors import UserError
from msparallel.model.presets import PRESETS
from msparallel.model.shape import ModelShape

TRAINED = ("qwen3", "qwen3_moe", "telechat3")
"""model_types of our kind that MindFormers 1.9.0 trains with use_legacy false."""
KNOWN = (*TRAINED, "qwen2", "llama", "gpt2")
"""model_types that our blocks can build."""
FOREIGN = {
    "deepseek_v3": "multi-latent attention, shared experts and multi-token prediction",
    "telechat3_moe": "multi-latent attention, shared experts and multi-token prediction",
    "glm4": "norms behind attention and feed-forward layer, and rotary positions on half of each head",
    "glm4_moe": "shared experts, leading dense layers and rotary positions on half of each head",
    "mamba": "a state-space layer", "mamba2": "a state-space layer", "qwen3_next": "linear attention",
}  # fmt: skip
"""model_types that need blocks which we do not have -> what is missing."""
NAMES = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "intermediate_size": "ffn_size",
    "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim", "max_position_embeddings": "max_positions", "rms_norm_eps": "norm_eps",
    "rope_theta": "rope_theta", "initializer_range": "init_std", "tie_word_embeddings": "tie_embeddings",
    "attention_bias": "attention_bias",
}  # fmt: skip
"""Their name -> ours, where the value stays as it is."""
EXPERT_NAMES = {
    "num_experts": "num_experts", "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_ffn_size", "norm_topk_prob": "normalize_expert_weights",
    "moe_aux_loss_coeff": "router_aux_loss",
}  # fmt: skip
GPT2_NAMES = {
    "vocab_size": "vocab_size", "n_embd": "hidden_size", "n_layer": "num_layers", "n_head": "num_heads",
    "n_inner": "ffn_size", "n_positions": "max_positions", "layer_norm_epsilon": "norm_eps",
    "initializer_range": "init_std", "tie_word_embeddings": "tie_embeddings",
}  # fmt: skip
_SHARED = {"initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False}
DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3": {**_SHARED, "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
              "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
              "max_position_embeddings": 32768, "attention_bias": False},
    "qwen3_moe": {**_SHARED, "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
                  "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
                  "max_position_embeddings": 32768, "attention_bias": False, "num_experts": 128,
                  "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False},
    "telechat3": {**_SHARED, "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 22016,
                  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
                  "max_position_embeddings": 32768, "attention_bias": False},
    "qwen2": {**_SHARED, "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
              "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
              "max_position_embeddings": 32768, "attention_bias": True},
    "llama": {**_SHARED, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
              "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
              "attention_bias": False},
    "gpt2": {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
             "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": True},
}  # fmt: skip
_SWIGLU = ("silu", "swiglu", "fusedswiglu")
_MISSING_BLOCKS = {
    "multi_latent_attention": ("multi-latent attention", (False,)),
    "kv_lora_rank": ("multi-latent attention", (0,)),
    "num_nextn_predict_layers": ("multi-token prediction", (0,)),
    "mtp_num_layers": ("multi-token prediction", (0,)),
    "n_shared_experts": ("shared experts", (0,)),
    "shared_expert_num": ("shared experts", (0,)),
    "shared_expert_intermediate_size": ("shared experts", (0,)),
    "first_k_dense_replace": ("dense layers before the first with experts", (0, False)),
    "mlp_only_layers": ("dense layers among those with experts", ([],)),
    "decoder_sparse_step": ("dense layers among those with experts", (1,)),
    "moe_layer_freq": ("dense layers among those with experts", (1,)),
    "moe_router_enable_expert_bias": ("a router with a bias for each expert", (False,)),
    "n_group": ("a router that chooses groups of experts first", (0, 1)),
    "use_sliding_window": ("sliding-window attention", (False,)),
    "window_size": ("sliding-window attention", ()),
    "model_architecture": ("another architecture", ("decoder_only",)),
    "sandwich_norm": ("norms behind attention and feed-forward layer", (False,)),
    "experimental_attention_variant": ("sparse attention", ()),
    "scoring_func": ("a router with sigmoid scores", ("softmax",)),
    "moe_router_score_function": ("a router with sigmoid scores", ("softmax",)),
    "use_gating_sigmoid": ("a router with sigmoid scores", (False,)),
}
"""Key -> what it asks for, and the values that do not."""

Why = Literal["unknown", "no_effect", "decided", "differs", "same"]
Left = tuple[str, Why, str]
"""A key that was not carried: the key, which kind, and why."""


@dataclass(frozen=True, kw_only=True)
class ModelRead:
    """Attributes:
    values: the recipe's `model` section; a preset alone where every number agrees.
    origin: our key -> theirs.
    left: keys of theirs that were not carried.
    missing: keys whose block we do not have, and which; values are not to be used then.
    """

    values: dict[str, Any]
    origin: dict[str, str]
    left: list[Left] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)


def missing_blocks(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Keys that ask for a block we do not have, and which block that is; the first key for each block."""
    found: dict[str, str] = {}
    for key, (told, harmless) in _MISSING_BLOCKS.items():
        value = config.get(key)
        if value is not None and value not in harmless:
            found.setdefault(told, key)
    layers = config.get("layer_types")
    if isinstance(layers, list) and any(layer != "full_attention" for layer in layers):
        found.setdefault("layers other than full attention", "layer_types")
    return [(key, told) for told, key in found.items()]


def read_model(config: Mapping[str, Any], model_type: str) -> ModelRead:
    """Values of the recipe's `model` section.

    Args:
        config: their names -> values. Values are taken as they are; the recipe's schema checks them.
        model_type: one of KNOWN.
    """
    names = dict(GPT2_NAMES if model_type == "gpt2" else NAMES)
    experts = config.get("num_experts", DEFAULTS[model_type].get("num_experts")) not in (None, 0)
    if experts:
        names |= EXPERT_NAMES
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    left: list[Left] = []
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict) and "rope_theta" in parameters and "rope_theta" not in config:
        config = {**config, "rope_theta": parameters["rope_theta"]}
    for theirs, ours in names.items():
        value = config.get(theirs)
        if value is None and theirs in DEFAULTS[model_type]:
            value = DEFAULTS[model_type][theirs]
            shown = str(value).lower() if isinstance(value, bool) else value
            left.append((theirs, "decided", f"is not stated; {model_type}'s default {shown} is taken"))
        if value is None:
            continue
        if ours in ("norm_eps", "rope_theta", "init_std", "router_aux_loss") and type(value) is int and value < 2**53:
            value = float(value)
        values[ours], origin[ours] = value, theirs
    if experts:
        values.setdefault("router_aux_loss", 0.0)
    if model_type == "gpt2":
        values |= {"position": "learned", "norm": "layer", "activation": "gelu", "attention_bias": True,
                   "output_bias": True, "ffn_bias": True}  # fmt: skip
        hidden = values.get("hidden_size")
        if "ffn_size" not in values and type(hidden) is int:
            values["ffn_size"] = 4 * hidden
    else:
        _gated(config, model_type, values, origin, left)
    missing = missing_blocks(config)
    activation = config.get("hidden_act", config.get("activation_function"))
    gelu = ("gelu_new", "gelu_pytorch_tanh") if model_type == "gpt2" else _SWIGLU
    if activation is not None and activation not in gelu:
        missing.append(("activation_function" if "activation_function" in config else "hidden_act",
                        f"the activation {str(activation)[:40]}"))  # fmt: skip
    return ModelRead(values=values, origin=origin, left=left, missing=missing)


def _gated(
    config: Mapping[str, Any], model_type: str, values: dict[str, Any], origin: dict[str, str], left: list[Left]
) -> None:
    """What the Llama-like families have in common, and where they part."""
    if config.get("use_flash_attention") is False:
        values["attention"], origin["attention"] = "plain", "use_flash_attention"
    if model_type in ("qwen3", "qwen3_moe"):
        values["qk_norm"] = True
        if config.get("qk_layernorm") is False:
            left.append(("qk_layernorm", "no_effect", "MindFormers builds Qwen3 with QK-norm whatever it says"))
    elif model_type == "telechat3":
        values["qk_norm"], origin["qk_norm"] = config.get("qk_layernorm") is True, "qk_layernorm"
    if model_type == "llama" and values.get("attention_bias") is True:
        values["output_bias"] = True
    if model_type == "llama" and config.get("mlp_bias") is True:
        values["ffn_bias"], origin["ffn_bias"] = True, "mlp_bias"
    if config.get("add_bias_linear") is True:
        values |= {"attention_bias": True, "output_bias": True, "ffn_bias": True}
        origin |= dict.fromkeys(("attention_bias", "output_bias", "ffn_bias"), "add_bias_linear")


def preset_config(name: str) -> dict[str, Any]:
    """One of our presets as a config under their names.

    >>> preset_config("qwen3_8b")["intermediate_size"]
    12288
    """
    shape = PRESETS[name]
    if shape.position == "learned":
        found = {theirs: getattr(shape, ours) for theirs, ours in GPT2_NAMES.items()}
        return {"model_type": "gpt2", **found}
    return model_config(shape, "qwen3_moe" if shape.num_experts else "qwen3" if shape.qk_norm else
                        "qwen2" if shape.attention_bias else "llama")  # fmt: skip


def load_model_config(source: str) -> dict[str, Any]:
    """What `--model-config` names: one of our presets, or a Hugging Face config.json (or the folder around it).

    Raises:
        UserError: it is neither.
    """
    if source in PRESETS:
        return preset_config(source)
    path = Path(source)
    try:
        text = (path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, not UTF-8, a zero byte in the path
        close = get_close_matches(source.lower(), PRESETS, n=1)
        told = f" Did you mean the preset {close[0]}?" if close else " `msparallel ls --presets` lists presets."
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "this is not JSON"
        raise UserError(f"--model-config {source}: neither a preset nor a config.json ({reason}).{told}") from None
    if not isinstance(found, dict):
        raise UserError(f"--model-config {source}: a config.json holds one object; this holds something else.")
    inner = found.get("text_config")
    return inner if isinstance(inner, dict) and "hidden_size" not in found else found


def model_config(shape: ModelShape, model_type: str) -> dict[str, Any]:
    """A Llama-like shape under their names; vocab_size as the recipe has it, without padding."""
    names = NAMES | (EXPERT_NAMES if shape.num_experts else {})
    return {"model_type": model_type, **{theirs: getattr(shape, ours) for theirs, ours in names.items()}}


def as_preset(values: Mapping[str, Any]) -> str | None:
    """Preset whose every number is the one in these values; None where none is. Rows that only pad the vocabulary do
    not count."""
    stated = {key: value for key, value in values.items() if key != "attention"}
    if any(type(stated.get(key)) is not int or stated[key] < 1 for key in _REQUIRED):
        return None
    shape = ModelShape(**stated)
    return next((name for name, preset in PRESETS.items()
                 if replace(shape, vocab_multiple=preset.vocab_multiple) == preset), None)  # fmt: skip


_REQUIRED = ("num_layers", "hidden_size", "num_heads", "ffn_size", "vocab_size")
