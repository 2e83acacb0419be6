"""The sections `train`, `optimizer` and `data` of a recipe, from a MindFormersConfig.

In: a Draft whose `parallel` section is filled. Out: the same, with the other sections. Steps of the run are the
schedule's total_steps, else samples x epochs / global batch, else the recipe's default, which is told.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msparallel.errors import short
from msparallel.interop.draft import Draft
from msparallel.interop.mindformers import ENGINE_MODES
from msparallel.interop.mindformers_keys import MODEL
from msparallel.recipe.schema import Train

_SCHEDULES = {"CosineWithWarmUpLR": "cosine", "ConstantWarmUpLR": "constant"}
_RATE = 5e-5
"""Learning rate where neither lr_schedule nor optimizer states one (MindFormers' template)."""


def fill_training(draft: Draft) -> None:
    """`train`, `optimizer` and `data`."""
    _batch(draft)
    _optimizer(draft)
    _data(draft)
    _train(draft)
    _callbacks(draft)


def _batch(draft: Draft) -> None:
    config, cut = draft.config, draft.values["parallel"]["mode"] in ENGINE_MODES
    micro, accumulation = "parallel_config.micro_batch_num", "runner_config.gradient_accumulation_steps"
    draft.put("train.micro_batch_size", config.batch_size, "runner_config.batch_size")
    draft.use(micro, accumulation)
    pipelined = cut and config.pipeline_stages > 1
    if pipelined:
        draft.put("parallel.micro_batch_num", config.micro_batch_num, micro)
    else:
        steps = config.gradient_accumulation_steps if cut else 1
        draft.put("parallel.micro_batch_num", steps, accumulation)
    if pipelined and config.gradient_accumulation_steps > 1:
        draft.leave(accumulation, "no_effect", "the pipeline's micro-batches take its place")
    if not pipelined and config.micro_batch_num > 1:
        draft.leave(micro, "no_effect", "MindFormers sets it to 1 without a pipeline")
    if not cut and config.gradient_accumulation_steps > 1:
        mode = draft.values["parallel"]["mode"]
        draft.leave(accumulation, "no_effect", f"MindFormers sets it to 1 in mode {mode}")


def _optimizer(draft: Draft) -> None:
    read, tree = draft.read, draft.config.tree
    lr = "lr_schedule"
    if isinstance(tree.get("grouped_lr_schedule"), dict):
        lr = "grouped_lr_schedule.default"
        draft.leave_idle("grouped_lr_schedule takes its place", "lr_schedule")
    kind = read.text("optimizer.type", "AdamW")
    if kind not in ("AdamW", "AdamWeightDecay", "FusedAdamWeightDecay"):
        draft.leave("optimizer.type", "differs", "the optimizer here is AdamW")
    rate = read.number(f"{lr}.learning_rate", None)
    origin = f"{lr}.learning_rate"
    if rate is None:
        rate, origin = read.number("optimizer.learning_rate", None), "optimizer.learning_rate"
    if rate is None:
        rate, origin = _RATE, ""
        draft.leave(f"{lr}.learning_rate", "decided", f"is not stated; MindFormers' default {_RATE} is taken")
    draft.put("optimizer.learning_rate", rate, *([origin] if origin else ()))
    name = read.text(f"{lr}.type", "CosineWithWarmUpLR")
    schedule = _SCHEDULES.get(name, "cosine")
    draft.put("optimizer.schedule", schedule, f"{lr}.type")
    if name not in _SCHEDULES:
        draft.leave(f"{lr}.type", "differs", "schedules here are cosine and constant; cosine is taken")
    end = read.number(f"{lr}.lr_end", None)
    if end is not None and schedule == "cosine":
        draft.put("optimizer.min_learning_rate", end, f"{lr}.lr_end")
    elif end is not None:
        draft.leave(f"{lr}.lr_end", "no_effect", "a constant schedule stays at learning_rate")
    start = read.number(f"{lr}.warmup_lr_init", 0.0)
    if start:
        draft.leave(f"{lr}.warmup_lr_init", "differs", "warm-up starts at 0 here")
    decay = read.number("optimizer.weight_decay", 0.0)
    draft.put("optimizer.weight_decay", decay, "optimizer.weight_decay")
    eps = read.number("optimizer.eps", 1e-8)
    draft.put("optimizer.eps", eps, "optimizer.eps")
    _betas(draft)
    _clip(draft)
    _steps(draft, lr)


def _betas(draft: Draft) -> None:
    """betas, [0.9, 0.999] where unsaid (MindFormers' AdamW)."""
    betas = draft.config.tree.get("optimizer.betas")
    if betas is None:
        betas = [0.9, 0.999]
    elif not isinstance(betas, list) or len(betas) != 2 or any(type(beta) not in (int, float) for beta in betas):
        draft.read.problem("wrong_type", "optimizer.betas", "betas takes two numbers, as [0.9, 0.95].")
        return
    draft.put("optimizer.beta1", float(min(betas[0], 2)), "optimizer.betas")
    draft.put("optimizer.beta2", float(min(betas[1], 2)), "optimizer.betas")


def _clip(draft: Draft) -> None:
    """use_clip_grad, true where the section is absent, and max_grad_norm."""
    section = draft.config.tree.get("runner_wrapper")
    on = draft.read.flag("runner_wrapper.use_clip_grad", not section)
    norm = draft.read.number("runner_wrapper.max_grad_norm", 1.0)
    keys = ("runner_wrapper.use_clip_grad", "runner_wrapper.max_grad_norm")
    draft.put("optimizer.clip_norm", norm if on else 0.0, *keys[: 1 + on])
    if not on:
        draft.leave_idle("use_clip_grad is false", keys[1])


def _steps(draft: Draft, lr: str) -> None:
    """Steps of the run: the schedule's, or as many as the data are said to last; and those of the warm-up."""
    config, read = draft.config, draft.read
    total = read.whole(f"{lr}.total_steps", None, least=-1)
    lasts = _steps_of_data(draft)
    stated, data = f"{lr}.total_steps", ("train_dataset.data_loader.sizes", "runner_config.epochs")
    if total is not None and total > 0:
        draft.put("train.steps", total, stated, *(data if lasts == total else ()))
        if lasts != total:
            told = f"the data would end after {lasts} steps; " if lasts else ""
            for key in filter(draft.in_file, data):
                draft.leave(key, "decided", told + "the schedule's total_steps is taken")
    elif lasts:
        draft.put("train.steps", lasts, *data, stated)
    else:
        steps = Train.model_fields["steps"].default
        told = f"the steps follow from data that are not read here; {steps} are taken (train.steps)"
        draft.put("train.steps", steps)
        draft.leave(data[1], "decided", told)
    steps = draft.values["train"]["steps"]
    warmup = read.whole(f"{lr}.warmup_steps", 0, least=0)
    ratio = read.number(f"{lr}.warmup_ratio", None)
    if ratio is not None and warmup:
        draft.leave(f"{lr}.warmup_steps", "no_effect", "MindFormers takes warmup_ratio where both are stated")
    if ratio is not None and ratio < 1:
        draft.put("optimizer.warmup_steps", int(ratio * steps), f"{lr}.warmup_ratio")
    elif ratio is not None:
        read.problem("wrong_type", f"{lr}.warmup_ratio", "warmup_ratio takes a number from 0 to below 1.")
    else:
        draft.put("optimizer.warmup_steps", warmup, f"{lr}.warmup_steps")
    if config.tree.get(f"{lr}.warmup_epochs"):
        draft.leave(f"{lr}.warmup_epochs", "unknown", "warm-up is counted in steps: optimizer.warmup_steps")


def _steps_of_data(draft: Draft) -> int | None:
    """samples x epochs / global batch, where the file says how many samples there are."""
    config = draft.config
    sizes = config.tree.get("train_dataset.data_loader.sizes")
    samples = sizes[0] if isinstance(sizes, list) and sizes else None
    epochs = draft.read.whole("runner_config.epochs", 1)
    if type(samples) is not int or samples < 1:
        return None
    replicas = draft.values["parallel"].get("data_parallel", 1)
    batch = config.batch_size * replicas * draft.values["parallel"]["micro_batch_num"]
    return samples // batch * epochs or None


def _data(draft: Draft) -> None:
    draft.put("data.corpus", "data/corpus/*.jsonl")
    folder = draft.read.text("pretrained_model_dir", "")
    tokenizer = str(Path(folder) / "tokenizer.json") if folder else "data/tokenizer.json"
    draft.put("data.tokenizer", tokenizer, *(["pretrained_model_dir"] if folder else ()))


def _train(draft: Draft) -> None:
    config, read = draft.config, draft.read
    in_model = draft.in_file(MODEL + "seq_length")
    draft.put("train.seq_length", config.seq_length,
              MODEL + "seq_length" if in_model else "train_dataset.data_loader.config.seq_length")  # fmt: skip
    draft.use("train_dataset.data_loader.config.seq_length")
    other = config.tree.get("train_dataset.data_loader.config.seq_length")
    if other is not None and other != config.seq_length:
        draft.leave("train_dataset.data_loader.config.seq_length", "decided", "model_config.seq_length is taken")
    draft.put("train.dtype", config.compute_dtype, MODEL + "compute_dtype")
    if config.params_dtype == "float32":
        draft.use(MODEL + "params_dtype")
    draft.put("train.seed", read.whole("seed", 1, least=0), "seed")
    draft.put("train.output_dir", read.text("output_dir", "./output"), "output_dir")
    target = read.text("context.device_target", "Ascend")
    if target != "Ascend":
        draft.leave("context.device_target", "differs", "MindFormers trains on Ascend; so does this recipe")
    if config.compute_dtype == "float16":
        _loss_scale(draft)


def _loss_scale(draft: Draft) -> None:
    key = "runner_wrapper.scale_sense"
    scale: Any = draft.config.tree.get(key)
    if isinstance(scale, dict):
        draft.put("train.loss_scale", "dynamic", f"{key}.type")
        for name in scale.keys() - {"type"}:
            draft.leave(f"{key}.{name}", "decided", "a dynamic scale starts and moves by msparallel's own numbers")
    elif type(scale) in (int, float) and math.isfinite(scale) and scale >= 1 and scale == int(scale):
        draft.put("train.loss_scale", int(scale), key)
    elif scale is not None:
        draft.leave(key, "differs", "train.loss_scale is dynamic or a whole number; dynamic is taken")


def _callbacks(draft: Draft) -> None:
    """Checkpoints and the log's interval."""
    steps = draft.values["train"]["steps"]
    for at, item in enumerate(draft.callbacks):
        kind = item.get("type") if isinstance(item, dict) else None
        key = f"callbacks.{at}"
        if kind == "CheckpointMonitor":
            _interval(draft, item, f"{key}.save_checkpoint_steps", "checkpoint_interval", steps)
            kept = item.get("keep_checkpoint_max")
            if type(kept) is int and kept >= 2:
                draft.put("train.keep_checkpoints", kept, f"{key}.keep_checkpoint_max")
            elif kept is not None:
                told = "at least 2 are kept, so that a damaged newest one has a predecessor"
                draft.leave(f"{key}.keep_checkpoint_max", "decided", told)
            draft.use(f"{key}.type")
            for name in item:
                if f"{key}.{name}" not in draft.read.read:
                    draft.leave(f"{key}.{name}", "decided", "checkpoints are safetensors, one folder a step")
        elif kind == "MFLossMonitor":
            draft.use(f"{key}.type")
            _interval(draft, item, f"{key}.per_print_times", "log_interval", steps)
            for name in item:
                if f"{key}.{name}" not in draft.read.read:
                    draft.leave(f"{key}.{name}", "unknown", "the log has a form of its own")
        else:
            for name in item if kind else [""]:
                draft.leave(f"{key}.{name}".rstrip("."), "unknown", f"no callback {short(kind, 40)} here")


def _interval(draft: Draft, item: dict[str, Any], key: str, name: str, steps: int) -> None:
    interval = item.get(key.rpartition(".")[2])
    if type(interval) is not int or interval < 1:
        return
    if interval <= steps:
        draft.put(f"train.{name}", interval, key)
    else:
        draft.leave(key, "no_effect", f"every {interval} steps is never in a run of {steps}")
