"""A plan as one JSON document.

In: a Plan, its Estimate, what a search found. Out: plain values; sizes in GiB, times in seconds, shares of one.

>>> plan_document(plan, estimate(workload_of(plan), plan.hardware))["fits"]
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from msparallel.plan import Plan
from msparallel.planner.estimate import Estimate
from msparallel.planner.memory import GIB, StageMemory
from msparallel.planner.placement import placement
from msparallel.planner.reasons import reasons
from msparallel.planner.search.changes import Change
from msparallel.planner.search.overrides import typed_overrides
from msparallel.planner.search.rejected import Rejection, rejections
from msparallel.planner.search.search import Search
from msparallel.recipe.override import format_override

TERMS = ("weights", "gradients", "optimizer", "activations", "other", "total", "low", "high")


def head_document(plan: Plan) -> dict[str, Any]:
    """What was asked about."""
    return {
        "name": plan.recipe.name,
        "path": plan.recipe.path,
        "overrides": list(plan.recipe.overrides),
        "notes": list(plan.recipe.notes),
        "hardware": plan.hardware.name,
        "mesh": plan.mesh.degrees,
        "world_size": plan.mesh.size,
    }


def plan_document(plan: Plan, found: Estimate) -> dict[str, Any]:
    """Of a recipe as it is."""
    work, time = found.work, found.time
    return {
        **head_document(plan),
        "limit_gib": found.limit_bytes / GIB,
        "fits": found.fits,
        "stages": [stage_document(stage) for stage in found.memory],
        "step_time_s": time.step_s,
        "time": {
            "compute_s": time.compute_parts_s,
            "recompute_s": time.recompute_s,
            "exposed_s": time.exposed_s,
            "bubble_s": time.bubble_s,
            "optimizer_s": time.optimizer_s,
        },
        "tokens_per_s_per_device": found.tokens_per_s_per_device,
        "mfu": found.mfu,
        "bubble": found.bubble,
        "reasons": [asdict(reason) for reason in reasons(work, time)],
        "placement": _placement(found),
        "candidates": [],
        "rejected": [],
    }


def stage_document(stage: StageMemory) -> dict[str, Any]:
    """Of one stage."""
    terms = {f"{name}_gib": getattr(stage, f"{name}_bytes") / GIB for name in TERMS}
    return {"stage": stage.stage, "layers": stage.layers, **terms}


def search_document(plan: Plan, found: Search, changes: Sequence[Change]) -> dict[str, Any]:
    """What a search adds to the document."""
    space = found.space
    return {
        "search": {
            "devices": space.devices,
            "devices_per_node": space.devices_per_node,
            "global_batch_size": space.global_batch_size,
            "most_micro_batch": space.most_micro_batch,
            "most_virtual_stages": space.most_virtual_stages,
            "most_context_parallel": space.most_context_parallel,
            "combinations": found.combinations,
            "legal": found.legal,
            "fit": found.fitting,
            "timed": found.timed,
        },
        "candidates": [candidate_document(plan, one) for one in found.candidates],
        "rejected": [_rejection(one) for one in rejections(found)],
        "changes": [_change(change) for change in changes],
    }


def mending_document(settings: tuple[dict[str, Any], Estimate] | None, changes: Sequence[Change]) -> dict[str, Any]:
    """What a recipe that does not fit adds: the change that is enough."""
    if settings is None:
        return {"changes": [_change(change) for change in changes]}
    typed = " ".join(format_override(key, value) for key, value in settings[0].items())
    return {"changes": [{"change": typed, "mesh": settings[1].work.mesh.degrees}]}


def _change(change: Change) -> dict[str, Any]:
    return {"change": change.told, "mesh": change.work.mesh.degrees}


def candidate_document(plan: Plan, found: Estimate) -> dict[str, Any]:
    """A strategy in the recipe's words, and what it costs."""
    work, mesh = found.work, found.work.mesh
    return {
        "data_parallel": mesh.dp,
        "model_parallel": mesh.tp,
        "pipeline_stages": mesh.pp,
        "context_parallel": mesh.cp,
        "expert_parallel": work.expert_parallel,
        "context_parallel_algo": work.context_parallel_algo if mesh.cp > 1 else None,
        "sequence_parallel": work.sequence_parallel,
        "optimizer_shard": False if work.optimizer_shard == "none" else work.optimizer_shard,
        "recompute": work.recompute,
        "virtual_stages": work.virtual_stages,
        "stage_layers": list(work.stage_layers),
        "micro_batch_size": work.micro_batch_size,
        "micro_batch_num": work.micro_batch_num,
        "global_batch_size": work.global_batch_size,
        "step_time_s": found.time.step_s,
        "tokens_per_s_per_device": found.tokens_per_s_per_device,
        "mfu": found.mfu,
        "bubble": found.bubble,
        "exposed_s": found.time.exposed_s,
        "total_gib": max(stage.total_bytes for stage in found.memory) / GIB,
        "high_gib": found.fullest.high_bytes / GIB,
        "placement": _placement(found),
        "overrides": typed_overrides(plan, work),
    }


def _placement(found: Estimate) -> list[dict[str, Any]]:
    work = found.work
    return [asdict(axis) for axis in placement(work.mesh, work.devices_per_node, found.hardware, work.expert_parallel)]


def _rejection(one: Rejection) -> dict[str, Any]:
    return {
        **one.settings,
        "rule": one.rule,
        "count": one.count,
        "reason": one.reason,
        "change": one.change,
        **({"needs_gib": one.needs_bytes / GIB} if one.needs_bytes else {}),
    }
