"""The sections `model`, `parallel` and `cluster` of a recipe, from a MindFormersConfig.

In: a Draft. Out: the same, filled (`import_training` fills the other sections). What has no effect in the recipe is
left out with its reason, because rules refuse settings without effect; what breaks a rule is put in all the same, so
that the rule speaks.
"""

from __future__ import annotations

import math

from msparallel.interop import mindformers
from msparallel.interop.draft import Draft
from msparallel.interop.mindformers import ENGINE_MODES, MindFormersConfig
from msparallel.interop.mindformers_keys import MODEL
from msparallel.interop.model_names import TRAINED, as_preset, read_model
from msparallel.model.presets import PRESETS

HARDWARE = "atlas_800t_a2"
"""What stands in for the machines, which a MindFormers YAML does not name."""
ATTENTION_CORE = r"self_attention\.core_attention"
"""MindFormers' pattern for what `recompute: selective` recomputes here."""
_COPIES = ("data_parallel", "context_parallel")
"""Degrees whose devices hold the same part of a matrix."""
_CONTEXT_ALGO = {"colossalai_cp": "all_gather", "ulysses_cp": "ulysses"}


def fill_model_and_parallel(draft: Draft) -> None:
    """`model`, `parallel` and `cluster`."""
    draft.use("run_mode", "use_legacy", "use_parallel", "context.mode")
    _model(draft)
    _degrees(draft)
    _pipeline(draft)
    _shard_and_communication(draft)
    _recompute(draft)
    draft.put("cluster.hardware", HARDWARE)
    draft.leave("cluster.hardware", "decided", f"MindFormers' files name no machine; {HARDWARE} is taken")


def _model(draft: Draft) -> None:
    config = draft.config
    assert config.model_type is not None, "require_blocks held"
    found = read_model(config.model, config.model_type)
    for key, block in found.missing:
        draft.read.problem("architecture", MODEL + key, f"This needs {block}; msparallel has no such block.")
    draft.read.raise_problems()
    draft.use(*(MODEL + name for name in ("model_type", "architectures", "hidden_act", "qk_layernorm")))
    for key, kind, reason in found.left:
        draft.leave(MODEL + key, kind, reason)
    preset = as_preset(found.values)
    if preset:
        draft.put("model.preset", preset, MODEL.rstrip("."), *(MODEL + name for name in found.origin.values()))
        if "attention" in found.values:
            draft.put("model.attention", found.values["attention"])
    else:
        for name, value in found.values.items():
            draft.put(f"model.{name}", value, *([MODEL + found.origin[name]] if name in found.origin else ()))
    if config.model_type not in TRAINED:
        told = f"MindFormers {mindformers.VERSION} itself does not train {config.model_type} with use_legacy false"
        draft.leave(MODEL + "model_type", "decided", told)


def _degrees(draft: Draft) -> None:
    config = draft.config
    mode = _mode(draft)
    draft.put("parallel.mode", mode, "parallel.parallel_mode")
    degrees = {
        "data_parallel": config.data_parallel, "model_parallel": config.model_parallel,
        "context_parallel": config.context_parallel, "pipeline_stages": config.pipeline_stages,
    }  # fmt: skip
    for key, degree in degrees.items():
        origin = "parallel_config." + ("pipeline_stage" if key == "pipeline_stages" else key)
        draft.use(origin)
        if degree > 1 and mode not in ENGINE_MODES and not (key == "data_parallel" and mode != "stand_alone"):
            draft.leave(origin, "no_effect", f"MindFormers sets it to 1 in mode {mode}")
        elif degree > 1:
            draft.put(f"parallel.{key}", degree, origin)
    cut = mode in ENGINE_MODES
    _flag_for(draft, config.sequence_parallel, "parallel_config.use_seq_parallel", "sequence_parallel",
              cut and config.model_parallel > 1, "tokens are cut over model_parallel, which is 1")  # fmt: skip
    _experts(draft, cut)
    algo = draft.read.text("parallel_config.context_parallel_algo", "")
    if algo and not (cut and config.context_parallel > 1):
        draft.leave("parallel_config.context_parallel_algo", "no_effect", "context_parallel is 1")
    elif algo in _CONTEXT_ALGO:
        draft.put("parallel.context_parallel_algo", _CONTEXT_ALGO[algo], "parallel_config.context_parallel_algo")
    elif algo:
        draft.leave("parallel_config.context_parallel_algo", "differs", "all_gather is taken: all of it or ulysses")


def _mode(draft: Draft) -> str:
    """MindSpore's mode; one device has nothing to cut."""
    config = draft.config
    degrees = (config.data_parallel, config.model_parallel, config.context_parallel, config.pipeline_stages)
    if not draft.config.tree.get("use_parallel"):
        draft.leave("use_parallel", "decided", "one device: mode stand_alone")
        return "stand_alone"
    if math.prod(degrees) == 1 and config.mode in ENGINE_MODES:
        draft.leave("parallel.parallel_mode", "decided", "all degrees are 1, so one device: mode stand_alone")
        return "stand_alone"
    if config.mode == "stand_alone":
        draft.leave("parallel.parallel_mode", "decided", "mode stand_alone, one device")
    return config.mode


def _flag_for(draft: Draft, on: bool, origin: str, key: str, works: bool, why_not: str) -> None:
    draft.use(origin)
    if on and works:
        draft.put(f"parallel.{key}", True, origin)
    elif on:
        draft.leave(origin, "no_effect", why_not)


def _experts(draft: Draft, cut: bool) -> None:
    degree, origin = draft.config.expert_parallel, "parallel_config.expert_parallel"
    draft.use(origin)
    if degree == 1:
        return
    preset = PRESETS.get(draft.values["model"].get("preset", ""))
    if not (preset.num_experts if preset else draft.values["model"].get("num_experts")):
        draft.leave(origin, "no_effect", "the model has no experts")
    elif not cut:
        draft.leave(origin, "no_effect", f"every device holds all experts in mode {draft.values['parallel']['mode']}")
    else:
        draft.put("parallel.expert_parallel", degree, origin)


def _pipeline(draft: Draft) -> None:
    config, cut = draft.config, draft.values["parallel"]["mode"] in ENGINE_MODES
    origin, groups = "parallel.pipeline_config.pipeline_scheduler", MODEL + "pp_interleave_num"
    interleave = "parallel.pipeline_config.pipeline_interleave"
    draft.use(MODEL + "offset", groups)
    if not cut or config.pipeline_stages == 1:
        draft.leave_idle("there is one stage", "parallel.pipeline_config", MODEL + "offset", groups)
        return
    scheduler = draft.read.text(origin, "")
    interleaves = draft.read.flag(interleave, False)
    if scheduler and not interleaves:
        draft.leave(origin, "no_effect", "MindSpore reads it only where pipeline_interleave is true")
    elif scheduler == "gpipe" and config.virtual_stages == 1:
        draft.leave(origin, "no_effect", "with pp_interleave_num 1 MindSpore compiles 1f1b")
    elif scheduler in ("1f1b", "gpipe"):
        draft.put("parallel.pipeline_schedule", scheduler, origin)
    elif scheduler:
        draft.leave(origin, "differs", "schedules here are gpipe and 1f1b; 1f1b is taken")
    virtual = config.virtual_stages
    if virtual > 1:
        draft.put("parallel.virtual_stages", virtual, groups, interleave)
    elif config.pp_interleave_num > 1:
        draft.leave(groups, "no_effect", "pipeline_interleave is not true")
    elif interleaves:
        draft.leave(interleave, "no_effect", "pp_interleave_num is 1")
    _stage_layers(draft)


def _stage_layers(draft: Draft) -> None:
    """offset -> stage_layers, where the shares are not equal."""
    config, groups = draft.config, draft.config.pipeline_stages * draft.config.virtual_stages
    layers = config.model.get("num_hidden_layers", config.model.get("n_layer"))
    if type(layers) is not int or not 0 < layers <= 10_000 or (config.offset == 0 and layers % groups == 0):
        return
    if config.offset == 0 and groups <= layers:
        return  # a rule says that the layers cannot be spread evenly, at num_hidden_layers
    shares = config.stage_layers(layers)
    if shares is None:
        told = (
            f"{layers} layers over {config.pipeline_stages} stages x {config.virtual_stages} are "
            f"{layers // groups} each and {layers % groups} over; offset must be a list of {config.pipeline_stages} "
            f"numbers (or {config.virtual_stages} such lists) that add up to {layers % groups}. MindFormers refuses it."
        )
        draft.read.problem("offset", MODEL + "offset", told)
    elif min(shares) == 0:
        draft.read.problem("offset", MODEL + "offset", f"{list(shares)}: every stage needs at least one layer here.")
    elif len(set(shares)) > 1:
        draft.put("parallel.stage_layers", list(shares), MODEL + "offset")


def _shard_and_communication(draft: Draft) -> None:
    config, parallel = draft.config, draft.values["parallel"]
    cut, copies = parallel["mode"] in ENGINE_MODES, math.prod(parallel.get(key, 1) for key in _COPIES)
    origin, detail = "parallel.enable_parallel_optimizer", "parallel.parallel_optimizer_config"
    draft.use(origin)
    if config.optimizer_shard and not (cut and copies > 1):
        told = "no two devices hold the same part of a matrix: data_parallel x context_parallel is 1"
        draft.leave_idle(told if cut else f"mode {parallel['mode']} cuts no weights", origin, detail)
    elif config.optimizer_shard:
        draft.put("parallel.optimizer_shard", config.optimizer_shard, origin,
                  f"{detail}.gradient_accumulation_shard", f"{detail}.optimizer_level")  # fmt: skip
        if config.optimizer_shard_threshold_kib is not None:
            draft.put("parallel.optimizer_shard_threshold_kib", config.optimizer_shard_threshold_kib,
                      f"{detail}.parallel_optimizer_threshold")  # fmt: skip
        size = config.optimizer_shard_size
        if size is not None and copies % size == 0 and size > 1:
            draft.put("parallel.optimizer_shard_size", size, f"{detail}.optimizer_weight_shard_size")
        elif size is not None:
            told = f"it does not divide data_parallel x context_parallel = {copies}; all {copies} are taken"
            draft.leave(f"{detail}.optimizer_weight_shard_size", "differs", told)
    if cut:
        if parallel["mode"] == "auto_parallel":
            search = draft.read.text("parallel.search_mode", "sharding_propagation")
            draft.put("parallel.search_mode", search, "parallel.search_mode")
        for name in ("save_file", "load_file"):
            path = draft.read.text(f"parallel.strategy_ckpt_config.{name}", "")
            if path:
                draft.put(f"parallel.strategy_{name}", path, f"parallel.strategy_ckpt_config.{name}")
        _fusion(draft, copies)
    else:
        told = f"mode {parallel['mode']} does without MindSpore's engine"
        draft.leave_idle(told, "parallel.strategy_ckpt_config", "parallel.comm_fusion", "parallel.search_mode")


def _fusion(draft: Draft, summing: int) -> None:
    """comm_fusion, and the gradient overlap of the side file."""
    fusion = draft.config.tree.get("parallel.comm_fusion")
    if isinstance(fusion, dict):
        parts = {name: part for name, part in fusion.items() if name != "openstate"}
        kinds = [(part.get("mode"), part.get("config")) if isinstance(part, dict) else None for part in parts.values()]
        keys = [key for key, _ in draft.config.tree.leaves() if key.startswith("parallel.comm_fusion.")]
        size = kinds[0][1] if kinds and kinds[0] else None
        if fusion.get("openstate") is False:
            draft.use(*keys)
        elif summing == 1:
            for key in keys:
                draft.leave(key, "no_effect", "no gradients are summed")
        elif kinds and all(kind is not None and kind[0] == "auto" for kind in kinds):
            draft.put("parallel.comm_fusion", "auto", "parallel.comm_fusion", *keys)
        elif kinds and type(size) is int and all(kind == ("size", size) for kind in kinds):
            draft.put("parallel.comm_fusion", size, "parallel.comm_fusion", *keys)
        else:
            for key in keys:
                draft.leave(key, "unknown", "comm_fusion is none, auto or one size in MiB")
    elif summing > 1:
        draft.leave("parallel.comm_fusion", "decided", "is not stated; MindSpore's default there, none here")
    side = mindformers.speed_up(draft.config.tree) or {}
    overlap = side.get("grad_computation_allreduce_overlap") is True or side.get("enable_grad_comm_opt") is True
    if overlap and summing > 1:
        draft.put("parallel.overlap_gradients", True, "context.ascend_config.parallel_speed_up_json_path")


def _recompute(draft: Draft) -> None:
    config = draft.config
    full, selected = "recompute_config.recompute", "recompute_config.select_recompute"
    draft.use(full, selected)
    share = _recomputed_share(config)
    if config.recompute is True or share == 1:
        draft.put("parallel.recompute", "full", full)
        if config.select_recompute:
            draft.leave(selected, "no_effect", "whole layers are recomputed")
    elif share:
        kept = "full" if share >= 0.5 else "none"
        told = f"{share:.0%} of the layers are recomputed; all of them or none can be here: {kept}"
        draft.leave(full, "differs", told)
        if kept == "full":
            draft.put("parallel.recompute", "full", full)
    elif config.recompute and not isinstance(config.recompute, bool):
        draft.leave(full, "unknown", "recompute is none, selective or full")
    if config.recompute or not config.select_recompute:
        if config.select_recompute:
            draft.leave(selected, "differs", "recompute is none, selective or full for all layers")
        return
    if config.select_recompute == [ATTENTION_CORE]:
        draft.put("parallel.recompute", "selective", selected)
    else:
        told = "MindFormers recomputes the feed-forward activation; selective is the attention core here. none is taken"
        if config.select_recompute is not True:
            told = f"selective here is the attention core ({ATTENTION_CORE}) and no other pattern; none is taken"
        draft.leave(selected, "differs", told)


def _recomputed_share(config: MindFormersConfig) -> float:
    """Part of the layers that a list of MindFormers' recomputes whole; 0 for anything but such a list.

    One number for each stage, or for each stage of each group; true is all, numbers above a stage's layers are all.
    """
    layers = config.model.get("num_hidden_layers")
    if not isinstance(config.recompute, list) or type(layers) is not int or not 0 < layers <= 10_000:
        return 0.0
    shares, stages = config.stage_layers(layers), config.pipeline_stages
    if shares is None:
        return 0.0
    rows = config.recompute if any(isinstance(row, list) for row in config.recompute) else None
    counts = [number for row in rows for number in (row if isinstance(row, list) else [row])] if rows else None
    if counts is None:  # one number a stage, over all its groups
        counts = config.recompute
        shares = tuple(sum(shares[stage::stages]) for stage in range(stages))
    if len(counts) != len(shares) or not all(isinstance(count, int) and count >= 0 for count in counts):
        return 0.0
    done = sum(share if count is True else min(count, share) for count, share in zip(counts, shares, strict=True))
    return done / layers
