"""A recipe made small enough to execute here, its strategy untouched; and the same recipe on one device.

In: a Plan. Out: the Plan whose graphs the virtual cluster runs, with what was changed; `alone`, the Plan of the single
process it is compared with. Pure.

>>> small, changes = shrunk(plan, steps=3)
>>> changes["model.num_layers"], changes["model.hidden_size"]
(2, 32)
"""

from __future__ import annotations

import math
from typing import Any

from msparallel.compile.depth import replanned
from msparallel.errors import UserError
from msparallel.plan import DEFAULT_SEARCH_MODE, Plan
from msparallel.recipe.override import format_override
from msparallel.recipe.rules.shape import BYTE_VOCAB

HEAD_DIM, WIDTH, LENGTH, EXPERTS_PER_TOKEN = 8, 32, 16, 2
"""Least sizes of a small model: of a head, of hidden and feed-forward layer, of a sequence."""
_OPTIMIZER = {
    "optimizer.learning_rate": 1e-4,
    "optimizer.min_learning_rate": 0.0,
    "optimizer.warmup_steps": 0,
    "optimizer.eps": 1e-6,
}
"""Without warm-up a few steps move the weights; the larger eps keeps Adam from dividing rounding noise by its own size
where a gradient is zero."""

Changes = dict[str, Any]


def shrunk(plan: Plan, steps: int) -> tuple[Plan, Changes]:
    """The recipe with the smallest sizes that its degrees divide, in float32 with plain attention.

    What the user typed as an override stays. Raises UserError for rules that the result breaks.
    """
    check_trains(plan)
    sizes = {**model_sizes(plan), **_length(plan)}
    return changed(plan, {**_precision(plan), **_run(plan, steps), **_OPTIMIZER, **sizes, **_batch(plan)})


def check_trains(plan: Plan) -> None:
    """Raise UserError for a recipe without a training step."""
    if plan.recipe.train is None:
        raise UserError(f"{plan.recipe.path}: it has no `train` section, so there is no training step to simulate.")


def _check_attention(plan: Plan) -> None:
    parallel = plan.recipe.parallel
    if parallel.mode == "auto_parallel" and (parallel.search_mode or DEFAULT_SEARCH_MODE) == "recursive_programming":
        problem = plan.recipe.problem(
            "search_needs_flash",
            "parallel.search_mode",
            "recursive_programming needs flash attention in half precision; ranks are executed and compared in float32 "
            "with plain attention. A search by propagation, or the blocks' own strategies, can be executed.",
            "parallel.search_mode=sharding_propagation",
        )
        raise UserError(str(problem))


def whole(plan: Plan, steps: int) -> tuple[Plan, Changes]:
    """The recipe with its own sizes, text and optimizer, in float32 with plain attention."""
    check_trains(plan)
    return changed(plan, {**_precision(plan), **_run(plan, steps)})


def alone(plan: Plan) -> Plan:
    """The same model, batch and optimizer on one device, on this machine's processor."""
    changes: Changes = {f"parallel.{key}": None for key in plan.recipe.keys_stated("parallel")}
    changes |= {
        "parallel.mode": "stand_alone",
        "train.global_batch_size": plan.global_batch_size,
        "train.micro_batch_size": plan.global_batch_size // plan.micro_batch_num,
        "cluster.nodes": 1,
        "cluster.devices_per_node": 1,
        "cluster.hardware": "cpu",
    }
    return _replanned(plan, changes)


def changed(plan: Plan, wanted: Changes) -> tuple[Plan, Changes]:
    """The plan with other values, and which they are; what the user typed as an override stays. Raises UserError for
    rules that the result breaks."""
    _check_attention(plan)
    typed = {text.partition("=")[0] for text in plan.recipe.overrides}
    changes = {key: value for key, value in wanted.items() if key not in typed and value != plan.recipe.value(key)}
    try:
        return _replanned(plan, changes), changes
    except UserError as error:
        told = " ".join(format_override(key, value) for key, value in changes.items())
        raise UserError(f"The recipe was made small for execution: {told}\n{error}") from None


def _replanned(plan: Plan, changes: Changes) -> Plan:
    return replanned(plan, {key: format_override(key, value).partition("=")[2] for key, value in changes.items()})


def _precision(plan: Plan) -> Changes:
    changes: Changes = {"train.dtype": "float32", "train.loss_scale": None}
    return changes | {"model.attention": "plain" if plan.hardware.target == "Ascend" else "auto"}


def _run(plan: Plan, steps: int) -> Changes:
    return {
        "train.steps": steps,
        "train.checkpoint_interval": None,
        "train.eval_interval": None,
        "train.log_interval": 1,
        "optimizer.warmup_steps": min(plan.recipe.optimizer.warmup_steps, steps - 1),
    }


def model_sizes(plan: Plan) -> Changes:
    """The smallest numbers of a model that the degrees divide."""
    shape, mesh, parallel = plan.shape, plan.mesh, plan.recipe.parallel
    stage = mesh.dp * mesh.cp * mesh.tp
    groups = mesh.tp * mesh.cp if parallel.context_parallel_algo == "ulysses" else mesh.tp
    kv_heads = groups if shape.num_kv_heads < shape.num_heads else min(shape.num_heads, multiple(groups, 2))
    heads = min(shape.num_heads, groups * 2 if shape.num_kv_heads < shape.num_heads else multiple(groups, 2))
    head_dim = min(shape.head_dim, HEAD_DIM)
    width = multiple(stage, max(WIDTH, heads * head_dim))
    segments = mesh.pp * parallel.virtual_stages
    changes: Changes = {
        "model.num_layers": min(shape.num_layers, max(2, segments)),
        "parallel.stage_layers": None,
        "model.hidden_size": min(shape.hidden_size, width),
        "model.num_heads": heads,
        "model.num_kv_heads": kv_heads,
        "model.head_dim": head_dim,
        "model.ffn_size": min(shape.ffn_size, multiple(stage, WIDTH)),
        "model.vocab_size": min(shape.vocab_size, BYTE_VOCAB),
        "model.vocab_multiple": multiple(stage, 8),
    }
    if shape.num_experts:
        chosen = min(shape.experts_per_token, EXPERTS_PER_TOKEN)
        experts = multiple(parallel.expert_parallel, 2 * chosen)
        changes |= {
            "model.num_experts": min(shape.num_experts, experts),
            "model.experts_per_token": chosen,
            "model.expert_ffn_size": min(shape.expert_ffn_size, multiple(stage, WIDTH)),
        }
    return changes


def _length(plan: Plan) -> Changes:
    length = min(plan.seq_length, multiple(plan.mesh.cp * plan.mesh.tp, LENGTH))
    changes: Changes = {"train.seq_length": length}
    if plan.shape.position == "learned":
        changes["model.max_positions"] = length
    if plan.recipe.parallel.optimizer_shard:
        changes["parallel.optimizer_shard_threshold_kib"] = 0  # every parameter here is below the usual threshold
    return changes


def _batch(plan: Plan) -> Changes:
    """At most two micro-batches a stage, of one sequence each."""
    most = 2 * plan.mesh.pp
    number = plan.micro_batch_num if plan.micro_batch_num <= most else most
    return {
        "train.micro_batch_size": 1,
        "train.global_batch_size": plan.mesh.dp * number,
        "parallel.micro_batch_num": None,
    }


def multiple(unit: int, least: int) -> int:
    """Smallest multiple of `unit` that is at least `least`."""
    return math.ceil(least / unit) * unit
