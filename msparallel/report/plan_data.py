"""What the report page of a plan shows, as one JSON document.

In: a Plan, the Estimate of its recipe as it is, a Search where there was one. Out: plain values with their texts: the
recipe and each strategy that was found in full, so that the page can show any of them; what was rejected.

>>> document = plan_data(plan, estimate(workload_of(plan), plan.hardware))
>>> document["plans"][0]["verdict"]
'Fits: stage 1 needs 29.29 GiB, 30.34 at the high end, of 58 GiB.'
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from msparallel.cli.plan_search_text import more_text
from msparallel.cli.plan_text import (
    MOST_REASONS,
    PARTS,
    limit_text,
    seconds_text,
    settings_text,
    shown_tasks,
    time_terms,
    verdict_lines,
)
from msparallel.errors import printable
from msparallel.plan import Plan
from msparallel.planner.estimate import Estimate
from msparallel.planner.memory import GIB, StageMemory
from msparallel.planner.placement import placement
from msparallel.planner.reasons import reasons
from msparallel.planner.search.changes import Change
from msparallel.planner.search.overrides import typed_overrides
from msparallel.planner.search.rejected import Rejection, rejections
from msparallel.planner.search.search import Search

AXIS_NAMES = {"pp": "pipeline stages", "dp": "data parallel", "cp": "context parallel", "tp": "model parallel"}


def plan_data(
    plan: Plan, as_it_is: Estimate, found: Search | None = None, changes: Sequence[Change] = ()
) -> dict[str, Any]:
    """The document. `changes` is what would help where nothing fits."""
    work, hardware = as_it_is.work, as_it_is.hardware
    facts = {
        "devices": f"{work.mesh.size} {hardware.chip}, {work.devices_per_node} a node",
        "hardware": hardware.name,
        "memory for a job": limit_text(as_it_is),
        "step": f"{work.global_batch_size} sequences of {work.seq_length} tokens",
    }
    plans = [_plan("the recipe", as_it_is, "")]
    if found is not None:
        for place, one in enumerate(found.candidates, 1):
            plans.append(_plan(f"{place}", one, shlex.join(typed_overrides(plan, one.work))))
    return {
        "title": printable(plan.recipe.path),
        "overrides": printable(" ".join(plan.recipe.overrides)),
        "facts": [{"label": label, "value": printable(value)} for label, value in facts.items()],
        "notes": ["All numbers are estimates on paper; none was measured."],
        "plans": plans,
        "search": _search(found) if found is not None else None,
        "rejected": [_rejection(one) for one in rejections(found)] if found is not None else [],
        "changes": [f"{change.told}: then {change.work.mesh} fits" for change in changes],
    }


def _plan(name: str, found: Estimate, typed: str) -> dict[str, Any]:
    work = found.work
    high_gib = found.fullest.high_bytes / GIB
    return {
        "name": name,
        "mesh_text": str(work.mesh),
        "settings": f"{settings_text(found)}; micro-batch {work.micro_batch_size} x {work.micro_batch_num}",
        "short": f"micro {work.micro_batch_size}, recompute {work.recompute}, shard {work.optimizer_shard}, "
        f"{more_text(found)}".removesuffix(", -"),
        "typed": printable(typed),
        "fits": found.fits,
        "verdict": verdict_lines(found)[0],
        "tiles": [
            {"label": "a step", "value": seconds_text(found.time.step_s), "detail": ""},
            {"label": "tokens/s", "value": f"{found.tokens_per_s_per_device:,.0f}", "detail": "on each device"},
            {"label": "MFU", "value": f"{found.mfu:.1%}", "detail": ""},
            {"label": "bubble", "value": f"{found.bubble:.1%}", "detail": "of the step"},
        ],
        "memory": {
            "limit": found.limit_bytes,
            "limit_text": limit_text(found),
            "rows": [_stage(stage) for stage in found.memory],
        },
        "time": [{"name": term, "seconds": seconds, "text": seconds_text(seconds),
                  "share_text": f"{seconds / found.time.step_s:.1%}"}
                 for term, seconds in time_terms(found) if seconds > 0],
        "reasons": [f"{one.share:.0%} {one.name}. {one.hint}" for one in reasons(work, found.time)[:MOST_REASONS]],
        "pipeline": _pipeline(found),
        "mesh": work.mesh.degrees,
        "per_node": work.devices_per_node,
        "axes": [
            {"axis": axis.name, "degree": axis.degree, "name": AXIS_NAMES.get(axis.name, "experts"),
             "where": f"{'crosses servers' if axis.crosses else 'inside a server'}, {' and '.join(axis.links)}"}
            for axis in placement(work.mesh, work.devices_per_node, found.hardware, work.expert_parallel)
        ],
        "point": {"gib": high_gib, "gib_text": f"{high_gib:.1f} GiB", "tokens": found.tokens_per_s_per_device,
                  "tokens_text": f"{found.tokens_per_s_per_device:,.0f} tokens/s"},
    }  # fmt: skip


def _stage(stage: StageMemory) -> dict[str, Any]:
    parts = [(name, getattr(stage, f"{name}_bytes")) for _, name in PARTS]
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "parts": [{"name": name, "bytes": count, "text": f"{count / GIB:.2f} GiB"} for name, count in parts],
        "total": {"bytes": stage.total_bytes, "text": f"{stage.total_bytes / GIB:.2f} GiB"},
        "high": {"bytes": stage.high_bytes, "text": f"{stage.high_bytes / GIB:.2f} GiB"},
        "low_text": f"{stage.low_bytes / GIB:.2f}",
    }


def _pipeline(found: Estimate) -> dict[str, Any] | None:
    if found.work.mesh.pp == 1:
        return None
    title, tasks = shown_tasks(found)
    end_s = max(task.end_s for task in tasks)
    return {
        "title": title,
        "stages": found.work.mesh.pp,
        "tasks": [[task.stage, task.micro, int(task.backward), round(task.start_s / end_s, 5),
                   round(task.end_s / end_s, 5)] for task in tasks],
    }  # fmt: skip


def _search(found: Search) -> dict[str, Any]:
    space = found.space
    counts = f"{found.combinations:,} combinations, {found.legal:,} legal, {found.fitting:,} fit"
    return {
        "text": f"{space.devices} devices, global batch {space.global_batch_size}: {counts}",
        "fits": bool(found.candidates),
    }


def _rejection(one: Rejection) -> dict[str, Any]:
    return {"what": one.what, "rule": one.rule, "count": one.count, "reason": one.reason, "change": one.change}
