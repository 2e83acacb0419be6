"""A dry run of serving as a person reads it at the terminal.

In: a ServingDryRun, the machine. Out: text: what a device holds, how weights and caches are cut, messages and live
memory of a token and of a piece of a prompt.

>>> print(serving_job_text(found, load_hardware("atlas_800t_a2"), "2.9.0"))
"""

from __future__ import annotations

from msparallel.cli.columns import table, terminal_width
from msparallel.cli.dryrun_text import (
    collectives_section,
    head_section,
    joined,
    operators_section,
    parameters_section,
    peak_section,
)
from msparallel.compile.serving import ServingDryRun
from msparallel.errors import printable
from msparallel.hardware import Hardware
from msparallel.report.alike import bytes_text, cut_words, parameter_kinds, shape_text


def serving_job_text(
    found: ServingDryRun, hardware: Hardware, mindspore: str | None = None, width: int | None = None
) -> str:
    """The whole report.

    Args:
        mindspore: version of the engine, None where it is not known.
        width: of a line; left out: the terminal's.
    """
    width = terminal_width(width)
    blocks = found.form.blocks(found.plan)
    head = [
        *head_section(found.token_step, hardware, mindspore),
        f"Served in {found.form.dtype}: {blocks.slots} requests of {blocks.length} tokens, {blocks.of_a_slot} blocks "
        f"of {blocks.block_size} each and one spare; not yet run on hardware",
    ]
    if hardware.target == "CPU":
        head.append("This is the form for Ascend; on a processor the recipe is served by plain attention in float32.")
    sections = [head, _memory(found, hardware, width), parameters_section(found.token_step, width),
                _caches(found, width)]  # fmt: skip
    for graph, run in zip(found.graphs, found.runs, strict=True):
        sections.append(collectives_section(run, width, of=graph.words))
    sections.append(operators_section(found.token_step, width))
    for graph, run in zip(found.graphs, found.runs, strict=True):
        sections.append(peak_section(run, width, of=f"{graph.words}, "))
    return printable(joined(sections, width))


def _memory(found: ServingDryRun, hardware: Hardware, width: int) -> list[str]:
    rows = [("rank", "weights", "keys and values", *(f"live: {graph.name}" for graph in found.graphs), "total",
             "compile")]  # fmt: skip
    most = 0
    for reports in zip(*(run.ranks for run in found.runs), strict=True):
        first = reports[0]
        live = [report.peak.bytes for report in reports]
        total = first.weights_bytes + first.cache_bytes + max(live)
        most = max(most, total)
        gib = [f"{value / 2**30:.2f}" for value in (first.weights_bytes, first.cache_bytes, *live, total)]
        rows.append((str(first.rank), *gib, f"{first.compile_s:.1f} s"))
    lines = ["Memory of a device, GiB", *table(rows, width, right=range(len(rows[0])))]
    lines.append("  live: peak of what operators hand on; one graph runs at a time, so the total has the larger")
    if hardware.memory_gib and most > hardware.memory_gib * 2**30:
        lines.append(f"  Too much for {hardware.memory_gib:g} GiB.")
    return lines


def _caches(found: ServingDryRun, width: int) -> list[str]:
    kinds = [kind for kind in parameter_kinds(found.token_step.ranks) if kind.role == "cache"]
    rows = [("cache", "whole -> part", "each", "cut")]
    for kind in kinds:
        held = kind.example
        whole, part, cut = shape_text(held.part.shape), shape_text(held.local_shape), cut_words(held)
        rows.append((kind.name, whole if cut == "whole" else f"{whole} -> {part}", bytes_text(held.bytes), cut))
    return ["Keys and values", *table(rows, width, right={2})]
