"""What the report page of a dry run shows, as one JSON document.

In: a DryRun, the machine if it is known. Out: plain values with their texts; the page computes nothing but positions.

>>> document = dryrun_data(job, load_hardware("atlas_800t_a2"), mindspore="2.9.0")
>>> document["devices"][5]
{'rank': 5, 'node': 0, 'at': {'pp': 1, 'dp': 0, 'cp': 0, 'tp': 1}, 'compiled': False}
"""

from __future__ import annotations

from typing import Any

from msparallel.compile.dryrun import DryRun
from msparallel.compile.rank_report import HeldParameter
from msparallel.compile.searched import costs
from msparallel.compile.serving import ServingDryRun
from msparallel.compile.strategies import ranges
from msparallel.errors import printable
from msparallel.hardware import Hardware
from msparallel.mesh import AXES
from msparallel.report.alike import (
    ParameterKind,
    alike_ranks,
    bytes_text,
    collective_kinds,
    cut_kinds,
    cut_words,
    parameter_kinds,
    peak_kinds,
    peak_rest,
    ranks_text,
    searched_kinds,
    shape_text,
)
from msparallel.report.slices import Bounds, slices_by_rank

AXIS_NAMES = {"pp": "pipeline stage", "dp": "data parallel", "cp": "context parallel", "tp": "tensor parallel"}
NOT_HERE, UNKNOWN = -1, -2
"""In place of a slice's number: the rank does not have the parameter; nothing tells which slice it has."""


def dryrun_data(job: DryRun, hardware: Hardware | None = None, mindspore: str | None = None) -> dict[str, Any]:
    """The document.

    Args:
        hardware: the machine; its memory becomes the line beside the bars.
        mindspore: version of the engine, None where it is not known.
    """
    return {
        "title": printable(job.source),
        "overrides": printable(" ".join(job.overrides)),
        "facts": _facts(job, hardware, mindspore),
        "notes": [printable(note) for note in job.notes],
        "axes": [{"axis": axis, "name": AXIS_NAMES[axis], "degree": getattr(job.mesh, axis)} for axis in AXES],
        "devices": _devices(job),
        "memory": _memory(job, hardware),
        "parameters": [_parameter(job, kind) for kind in parameter_kinds(job.ranks)],
        "collectives": _collectives(job),
        "strategies": _strategies(job),
        "search": _search(job),
        "peaks": _peaks(job),
    }


def serving_data(found: ServingDryRun, hardware: Hardware, mindspore: str | None = None) -> dict[str, Any]:
    """The document of a recipe that serves: messages and the peak are those of a token step, memory has the largest."""
    data = dryrun_data(found.token_step, hardware, mindspore)
    worst = max(found.runs, key=lambda run: max(report.peak.bytes for report in run.ranks))
    graphs = " and ".join(graph.words for graph in found.graphs)
    note = f"Compiled: {graphs}. Collectives and tensors at the peak are of a token; memory has the larger of both."
    return data | {"memory": _memory(worst, hardware), "notes": [*data["notes"], note]}


def _facts(job: DryRun, hardware: Hardware | None, mindspore: str | None) -> list[dict[str, str]]:
    """Words of the page's head."""
    nodes = -(-job.world_size // job.devices_per_node)
    compiled = [report.rank for report in job.ranks]
    machines = f"{nodes} node{'s' * (nodes > 1)} x {min(job.devices_per_node, job.world_size)}"
    seconds = sum(report.compile_s for report in job.ranks)
    facts = {
        "mesh": str(job.mesh).rpartition(" (")[0],
        "devices": f"{job.world_size} on {machines}",
        "hardware": f"{hardware.chip}, {hardware.memory_gib:g} GiB" if hardware and hardware.memory_gib else "",
        "compiled ranks": "all" if len(compiled) == job.world_size else ranges(compiled),
        "engine": f"MindSpore {mindspore}" if mindspore else "MindSpore",
        "compile time": f"{seconds:.1f} s over all compiled ranks",
    }
    return [{"label": label, "value": value} for label, value in facts.items() if value]


def _devices(job: DryRun) -> list[dict[str, Any]]:
    compiled = {report.rank for report in job.ranks}
    return [
        {
            "rank": rank,
            "node": rank // job.devices_per_node,
            "at": job.mesh.coordinates(rank),
            "compiled": rank in compiled,
        }
        for rank in range(job.world_size)
    ]


def _memory(job: DryRun, hardware: Hardware | None) -> dict[str, Any]:
    rows = []
    for group in alike_ranks(job.ranks):
        report = group.report
        parts = {"weights": report.weights_bytes, "gradients": report.gradients_bytes,
                 "optimizer": report.optimizer_bytes, "live activations": report.peak.bytes}  # fmt: skip
        if report.cache_bytes:
            parts = {"weights": report.weights_bytes, "keys and values": report.cache_bytes,
                     "live activations": report.peak.bytes}  # fmt: skip
        rows.append(
            {
                "stage": report.stage,
                "ranks": ranges(group.ranks),
                "layers": ranges(report.layers) or "none",
                "parts": [{"name": n, "bytes": value, "text": bytes_text(value)} for n, value in parts.items()],
                "total": {"bytes": group.total_bytes, "text": bytes_text(group.total_bytes)},
                "compile": f"{group.compile_s:.1f} s",
            }
        )
    limit = int(hardware.memory_gib * 2**30) if hardware and hardware.memory_gib else None
    return {"rows": rows, "limit": limit, "limit_text": bytes_text(limit) if limit else ""}


def _parameter(job: DryRun, kind: ParameterKind) -> dict[str, Any]:
    """A row of the parameter table with the slice of every rank."""
    held, found = kind.example, slices_by_rank(job, kind)
    numbers: dict[Bounds, int] = {}
    by_rank = [NOT_HERE] * job.world_size
    for bounds in sorted(set(found.bounds.values())):
        numbers[bounds] = len(numbers)
    for rank, bounds in found.bounds.items():
        by_rank[rank] = numbers[bounds]
    for rank in found.unknown:
        by_rank[rank] = UNKNOWN
    per_stage = job.world_size // job.mesh.pp
    for stage in set(range(job.mesh.pp)) - {report.stage for report in job.ranks}:
        by_rank[stage * per_stage : (stage + 1) * per_stage] = [UNKNOWN] * per_stage
    return {
        "name": printable(kind.name),
        "role": kind.role,
        "dtype": held.dtype,
        "shape": shape_text(held.part.shape),
        "part": shape_text(held.local_shape),
        "cut": cut_words(held),
        "bytes": held.bytes,
        "bytes_text": bytes_text(held.bytes),
        "count": kind.count,
        "stages": ranges(kind.stages),
        "slices": [{"text": slice_text(held, bounds), "box": _box(held, bounds)} for bounds in numbers],
        "by_rank": by_rank,
    }


def slice_text(held: HeldParameter, bounds: Bounds) -> str:
    """Bounds as an index of the whole.

    >>> slice_text(held, ((2048, 4096), (0, 4096)))  # of [4096, 4096]
    '[2048:4096, :]'
    """
    told = [
        ":" if (start, stop) == (0, length) else f"{start}:{stop}"
        for (start, stop), length in zip(bounds, held.part.shape, strict=True)
    ]
    return "whole" if set(told) <= {":"} else f"[{', '.join(told)}]"


def _box(held: HeldParameter, bounds: Bounds) -> list[float]:
    """[top, bottom, left, right] of a slice in a unit square: dim 0 downwards; to the right the first other dim that is
    cut, or dim 1. A vector lies along the square's width."""
    fractions = [
        (start / length, stop / length) if length else (0.0, 1.0)
        for (start, stop), length in zip(bounds, held.part.shape, strict=True)
    ]
    if len(fractions) < 2:
        return [0.0, 1.0, *(fractions[0] if fractions else (0.0, 1.0))]
    across = next((dim for dim in range(1, len(fractions)) if held.part.cut_by[dim]), 1)
    return [*fractions[0], *fractions[across]]


def _collectives(job: DryRun) -> list[dict[str, Any]]:
    return [
        {
            "op": kind.use.op,
            "purpose": kind.use.purpose,
            "axes": " x ".join(kind.use.axes) or "-",
            "ranks": ranks_text(kind.use),
            "members": sorted(kind.use.ranks),
            "links": kind.use.links,
            "bytes": kind.use.bytes,
            "bytes_text": bytes_text(kind.use.bytes),
            "count": kind.use.count,
            "total": kind.use.total_bytes,
            "total_text": bytes_text(kind.use.total_bytes),
            "stages": ranges(kind.stages),
        }
        for kind in collective_kinds(job.ranks)
    ]


def _strategies(job: DryRun) -> list[dict[str, Any]]:
    rows = []
    for kind in cut_kinds(job.ranks):
        pieces, _, meaning = kind.words.partition(": ")
        row = {"layers": kind.layers, "cell": printable(kind.cell), "ops": ", ".join(kind.ops)}
        rows.append({**row, "pieces": pieces, "meaning": meaning, "cut": kind.is_cut, "count": kind.count})
    return rows


def _search(job: DryRun) -> dict[str, Any] | None:
    """What a search chose, beside the strategies by hand; None where nothing was searched."""
    search = job.search
    if search is None:
        return None
    forms = {"chosen": search.chosen} | ({"by hand": search.by_hand} if search.by_hand else {})
    return {
        "how": printable(search.how),
        "rank": search.chosen.rank,
        "refused": printable(search.refused),
        "costs": [
            {"form": name, "values": {key: bytes_text(value) for key, value in costs(report).items()}}
            for name, report in forms.items()
        ],
        "rows": [
            {
                "layers": kind.layers,
                "cell": printable(", ".join(kind.cells)),
                "op": kind.op,
                "chosen": kind.chosen,
                "chosen_meaning": kind.meaning[0],
                "by_hand": kind.by_hand,
                "by_hand_meaning": kind.meaning[1],
                "same": kind.same,
                "count": kind.count,
            }
            for kind in (searched_kinds(search.operators) if search.by_hand else [])
        ],
    }


def _peaks(job: DryRun) -> list[dict[str, Any]]:
    """Of each stage, the rank with the highest peak."""
    worst: dict[int, Any] = {}
    for report in job.ranks:
        if report.stage not in worst or report.peak.bytes > worst[report.stage].peak.bytes:
            worst[report.stage] = report
    return [
        {
            "stage": stage,
            "rank": report.rank,
            "total": report.peak.bytes,
            "compiled_layers": report.compiled_layers and report.compiled_layers[1],
            "total_text": bytes_text(report.peak.bytes),
            "rest": peak_rest(report.peak),
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
                for kind in peak_kinds(report.peak)
            ],
        }
        for stage, report in sorted(worst.items())
    ]
