"""What the report page of a simulation shows, as one JSON document.

In: a Simulation, or a Timed where nothing was executed. Out: plain values with their texts; the page computes nothing
but positions, and texts of what the pointer is at.

>>> document = simulation_data(simulate(plan, steps=3), mindspore="2.9.0")
>>> document["verdict"]["text"]
'The strategy computes the same as one device.'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msparallel.compile.strategies import ranges
from msparallel.errors import printable
from msparallel.plan import Plan
from msparallel.recipe.override import format_override
from msparallel.report.alike import below_model, bytes_text, peak_kinds, peak_rest, shape_text
from msparallel.report.step import micro_batch_count, place_text, seconds_text, shown_ranks
from msparallel.report.thinned import drawn_memory, drawn_spans, unit_s
from msparallel.simulate.compare import Difference
from msparallel.simulate.execution import LIMITS
from msparallel.simulate.simulate import Simulation
from msparallel.simulate.timed import Timed

MOST_RANKS = 8
"""More are not drawn at first: one of each stage is."""
MOST_TENSORS = 5
"""Gradients and weights that are told by name."""


def simulation_data(found: Simulation, mindspore: str | None = None) -> dict[str, Any]:
    """The document of what was executed.

    Args:
        mindspore: version of the engine, None where it is not known.
    """
    plan = found.plan
    typed = [text for text in plan.recipe.overrides if text.partition("=")[0] not in found.changes]
    facts = _facts(plan, mindspore) | {
        "tokens": "drawn from the seed" if found.random_tokens else "the recipe's own text",
        "took": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in _parts(found.seconds).items()),
    }
    return {
        **_head(plan, typed, facts),
        "changes": [printable(format_override(key, value)) for key, value in sorted(found.changes.items())],
        "verdict": _verdict(found),
        "losses": _losses(found),
        "gradients": _apart(found.gradients.relative, LIMITS.gradient) if found.gradients else None,
        "parameters": _apart(found.parameters.absolute, LIMITS.parameter) if found.parameters else None,
        "zero": [printable(name) for name in found.gradients.zero] if found.gradients else [],
        "copies": _copies(found.gradients, found.replicas_apart),
        "step": _step(found.timed) if found.timed else None,
    }


def timed_data(timed: Timed, mindspore: str | None = None) -> dict[str, Any]:
    """The document of a recipe's timeline, nothing executed. Its arguments are `simulation_data`'s."""
    plan, ranks = timed.plan, [times.rank for times in timed.timeline.ranks]
    facts = _facts(plan, mindspore)
    if len(ranks) < plan.world_size:
        facts["compiled ranks"] = f"{ranges(ranks)}; the others of a stage are taken to be alike"
    return {
        **_head(plan, list(plan.recipe.overrides), facts),
        **{"changes": [], "verdict": None, "losses": [], "zero": [], "copies": ""},
        **{"gradients": None, "parameters": None},
        "step": _step(timed),
    }


def _head(plan: Plan, typed: list[str], facts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "title": printable(plan.recipe.path),
        "overrides": printable(" ".join(typed)),
        "facts": [{"label": label, "value": printable(value)} for label, value in facts.items() if value],
        "notes": [],
    }


def _facts(plan: Plan, mindspore: str | None) -> dict[str, str]:
    shape, train, hardware = plan.shape, plan.recipe.train, plan.hardware
    assert train is not None, "what is simulated trains"
    layers = [sum(plan.stage_layers[stage :: plan.mesh.pp]) for stage in range(plan.mesh.pp)]
    stages = f" ({' + '.join(map(str, layers))})" if len(layers) > 1 else ""
    experts = f", {shape.num_experts} experts" if shape.num_experts else ""
    return {
        "mesh": str(plan.mesh).rpartition(" (")[0] or "one device",
        "devices": f"{plan.world_size} on {plan.nodes} node{'s' * (plan.nodes > 1)} x {plan.devices_per_node}",
        "hardware": f"{hardware.name} ({hardware.chip})",
        "model": f"{shape.num_layers} layers{stages}, hidden {shape.hidden_size}, {shape.num_heads} heads{experts}",
        "batch": f"{plan.global_batch_size} x {train.seq_length} tokens a step, {plan.micro_batch_num} "
        f"micro-batch{'es' * (plan.micro_batch_num > 1)}",
        "numbers": f"{train.dtype}, {plan.attention} attention",
        "engine": f"MindSpore {mindspore}" if mindspore else "MindSpore",
    }


def _parts(seconds: Mapping[str, float]) -> dict[str, float]:
    names = {"compile": "compiling", "execute": "executing"}
    return {told: seconds[name] for name, told in names.items() if name in seconds}


def _verdict(found: Simulation) -> dict[str, Any]:
    allowed = (
        f"Allowed in float32: losses {LIMITS.loss:.0e} and gradients {LIMITS.gradient:.0e} relative, weights "
        f"{LIMITS.parameter:.0e}."
    )
    if found.deadlock:
        waits = [
            {
                "rank": wait.rank,
                "at": place_text(wait.rank, found.plan.mesh),
                "op": wait.op,
                "cell": printable(below_model(wait.where)),
                "group": " -> ".join(map(str, wait.group)) if wait.op in ("Send", "Receive") else ranges(wait.group),
                "missing": ranges(wait.missing),
            }
            for wait in found.deadlock.waits
        ]
        reason = printable(f"{found.deadlock.reason}.")
        return {"kind": "hangs", "text": "This job would hang.", "detail": reason, "waits": waits}
    if found.same:
        text = "The strategy computes the same as one device."
        return {"kind": "same", "text": text, "detail": allowed, "waits": []}
    text = "The strategy does NOT compute the same as one device."
    return {"kind": "differs", "text": text, "detail": allowed, "waits": []}


def _losses(found: Simulation) -> list[dict[str, Any]]:
    rows = []
    for step, (here, there) in enumerate(zip(found.single_losses, found.cluster_losses, strict=False), 1):
        apart = abs(there - here) / abs(here)
        rows.append(
            {
                "step": step,
                "single": f"{here:.6f}",
                "cluster": f"{there:.6f}",
                "apart": apart,
                "apart_text": f"{apart:.1e}",
                "over": apart > LIMITS.loss,
            }
        )
    return rows


def _apart(values: Mapping[str, float], limit: float) -> dict[str, Any]:
    """The tensors that are furthest apart."""
    worst = sorted(values.items(), key=lambda one: -one[1])[:MOST_TENSORS]
    return {
        "limit": f"{limit:.0e}",
        "count": len(values),
        "rows": [
            {"name": printable(name), "value": value, "text": f"{value:.1e}", "over": value > limit}
            for name, value in worst
        ],
    }


def _copies(gradients: Difference | None, apart: float) -> str:
    if gradients is None:
        return ""
    return "equal, bit by bit" if apart == 0 else f"up to {apart:.1e} apart"


def _step(timed: Timed) -> dict[str, Any]:
    """The timeline with memory, shares and links."""
    line, plan = timed.timeline, timed.plan
    train = plan.recipe.train
    assert train is not None, "what is simulated trains"
    bubble = max(line.ranks, key=lambda times: times.bubble)
    link = line.busiest_link
    tokens = plan.global_batch_size * train.seq_length / line.step_time_s if line.step_time_s else 0.0
    tiles = {
        "step": (seconds_text(line.step_time_s), f"{tokens:,.0f} tokens/s on all devices"),
        "bubble": (f"{bubble.bubble:.1%}", f"of the step on rank {bubble.rank}, the most of all"),
        "busiest link": (link.name, f"busy {link.busy_s / line.step_time_s:.1%} of the step") if link else ("none", ""),
    }
    shown = set(shown_ranks(line, MOST_RANKS))
    return {
        "hardware": f"{plan.hardware.name} ({plan.hardware.chip})",
        "tiles": [{"label": label, "value": value, "detail": told} for label, (value, told) in tiles.items()],
        "unit_s": unit_s(line),
        "length": round(line.step_time_s / unit_s(line)),
        "micro_batches": micro_batch_count(line),
        "ranks": [
            {"rank": times.rank, "at": place_text(times.rank, line.mesh), "shown": times.rank in shown}
            for times in line.ranks
        ],
        "spans": drawn_spans(line),
        "memory": drawn_memory([timed.memory[times.rank] for times in line.ranks], line),
        "peaks": [_peak(timed, times.rank) for times in line.ranks],
        "shares": _shares(timed),
        "links": _links(timed),
    }


def _peak(timed: Timed, rank: int) -> dict[str, Any]:
    curve = timed.memory[rank]
    return {
        "rank": rank,
        "text": bytes_text(curve.peak_bytes),
        "at_text": seconds_text(curve.peak_s),
        "rest": peak_rest(curve.peak),
        "tensors": [
            {
                "count": kind.count,
                "op": kind.tensor.op,
                "cell": printable(kind.cell),
                "dtype": kind.tensor.type.dtype,
                "shape": shape_text(kind.tensor.type.shape),
                "bytes": kind.bytes,
                "bytes_text": bytes_text(kind.bytes),
            }
            for kind in peak_kinds(curve.peak)
        ],
    }


def _shares(timed: Timed) -> dict[str, Any]:
    """Where the step of each rank goes: parts of it, in the order of the columns."""
    line = timed.timeline
    axes = sorted(line.exposed_s, key=lambda one: -line.exposed_s[one])
    columns = ["computes", *(f"waits for {' x '.join(one) or 'itself'}" for one in axes), "bubble"]
    rows = []
    for times in line.ranks:
        seconds = [times.busy_s, *(times.exposed_s.get(one, 0.0) for one in axes), times.bubble_s]
        parts = [
            {"share": one / line.step_time_s if line.step_time_s else 0.0, "seconds": seconds_text(max(0.0, one))}
            for one in seconds
        ]
        for part in parts:
            part["text"] = f"{part['share']:.1%}"
        peak = timed.memory[times.rank].peak_bytes
        place = place_text(times.rank, line.mesh)
        rows.append({"rank": times.rank, "at": place, "parts": parts, "peak": peak, "peak_text": bytes_text(peak)})
    return {"columns": columns, "rows": rows}


def _links(timed: Timed) -> list[dict[str, Any]]:
    line = timed.timeline
    who = "all" if len(line.ranks) == timed.plan.world_size else "compiled"
    return [
        {
            "name": link.name,
            "bytes": link.bytes,
            "bytes_text": bytes_text(link.bytes),
            "who": who,
            "share": link.busy_s / line.step_time_s,
            "share_text": f"{link.busy_s / line.step_time_s:.1%}",
            "rank": link.rank,
        }
        for link in line.links
    ]
