"""A dry run as a person reads it at the terminal.

In: a DryRun, the machine if it is known. Out: text without colours: memory of every compiled rank, parameters by kind,
collectives by traffic, operators by layer, the largest tensors at the peak.

>>> print(job_text(job, load_hardware("atlas_800t_a2")))
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from msparallel.cli.columns import fit, table, terminal_width
from msparallel.compile.dryrun import DryRun
from msparallel.compile.rank_report import RankReport
from msparallel.compile.searched import costs
from msparallel.compile.strategies import ranges
from msparallel.errors import printable
from msparallel.hardware import Hardware
from msparallel.report.alike import (
    AlikeRanks,
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

MOST_ROWS = 40
"""Of one table; the rest is counted."""
MOST_SEARCHED = 20
"""Kinds of operators that a search cuts otherwise; each takes three lines."""
PARTS = (("w", "weights"), ("g", "gradients"), ("o", "optimizer"), ("l", "live"))
"""Letter in a bar -> column."""


def mindspore_version() -> str | None:
    """Version of the installed MindSpore, without importing it."""
    try:
        return version("mindspore")
    except PackageNotFoundError:
        return None


def job_text(
    job: DryRun, hardware: Hardware | None = None, mindspore: str | None = None, width: int | None = None
) -> str:
    """The whole report.

    Args:
        hardware: the machine; its memory gives the bars their end.
        mindspore: version of the engine, None where it is not known.
        width: of a line; left out: the terminal's.
    """
    width = terminal_width(width)
    sections = [head_section(job, hardware, mindspore), _memory(job, hardware, width)]
    sections += [parameters_section(job, width), collectives_section(job, width), operators_section(job, width)]
    sections.append(_searched(job, width))
    sections.append(peak_section(job, width))
    return joined(sections, width)


def joined(sections: Sequence[Sequence[str]], width: int) -> str:
    """Sections with an empty line between them, no line wider than `width`."""
    lines = [line for section in sections if section for line in [*section, ""]][:-1]
    return printable("\n".join(part for line in lines for part in fit(line, width)))


def head_section(job: DryRun, hardware: Hardware | None, mindspore: str | None) -> list[str]:
    nodes = -(-job.world_size // job.devices_per_node)
    machines = f"{nodes} node{'s' * (nodes > 1)} x {min(job.devices_per_node, job.world_size)}"
    chip = f" ({hardware.chip})" if hardware else ""
    engine = f"MindSpore {mindspore}" if mindspore else "MindSpore"
    compiled = [report.rank for report in job.ranks]
    told = "every rank" if len(compiled) == job.world_size else f"rank{'s' * (len(compiled) > 1)} {ranges(compiled)}"
    return [
        " ".join([job.source, *job.overrides]),
        f"{job.mesh} on {machines}{chip}; {engine} compiled {told}",
        *job.notes,
    ]


def _memory(job: DryRun, hardware: Hardware | None, width: int) -> list[str]:
    alike = alike_ranks(job.ranks)
    if len(job.ranks) <= 16:
        alike = [AlikeRanks(ranks=(r.rank,), report=r, compile_s=r.compile_s) for r in job.ranks]
    rows = [("rank", "stage", "layers", *(name for _, name in PARTS), "total", "compile")]
    for group in alike:
        report = group.report
        gib = [f"{value / 2**30:.2f}" for value in (*_parts(report), group.total_bytes)]
        layers = ranges(report.layers) or "none"
        rows.append((ranges(group.ranks), str(report.stage), layers, *gib, f"{group.compile_s:.1f} s"))
    told = table(rows, width, right={0, 1, 3, 4, 5, 6, 7, 8})
    limit = hardware.memory_gib * 2**30 if hardware and hardware.memory_gib else 0.0
    end = max(limit, *(group.total_bytes for group in alike), 1)
    room = min(40, width - len(told[0]) - 3)
    bars = [""] + [_bar(group.report, room, end, limit) for group in alike] if room >= 16 else [""] * len(told)
    lines = ["Memory of a device, GiB", *(f"{row}  {bar}".rstrip() for row, bar in zip(told, bars, strict=True))]
    lines.append("  live: peak of what operators hand on, in MindSpore's order of execution; workspace is not counted")
    if room >= 16:
        letters = ", ".join(f"{letter} {name}" for letter, name in PARTS)
        lines.append(f"  bar: {letters}" + (f"; | {hardware.memory_gib:g} GiB" if hardware and limit else ""))
    over = [group for group in alike if limit and group.total_bytes > limit]
    if over and hardware:
        worst = max(over, key=lambda group: group.total_bytes)
        lines.append(f"  Too much for {hardware.memory_gib:g} GiB: rank {ranges(worst.ranks)} with "
                     f"{worst.total_bytes / 2**30:.2f} GiB.")  # fmt: skip
    return lines


def _parts(report: RankReport) -> tuple[int, int, int, int]:
    return report.weights_bytes, report.gradients_bytes, report.optimizer_bytes, report.peak.bytes


def _bar(report: RankReport, room: int, end: float, limit: float) -> str:
    """Letters in proportion to bytes; `|` at the device's memory."""
    cells, total = "", 0
    for (letter, _), value in zip(PARTS, _parts(report), strict=True):
        total += value
        cells += letter * (round(total / end * room) - len(cells))
    if limit:
        mark = min(room, round(limit / end * room))
        cells = cells[:mark] + "." * (mark - len(cells)) + "|" + cells[mark:]
    return cells


def parameters_section(job: DryRun, width: int) -> list[str]:
    kinds = parameter_kinds(job.ranks)
    weights = [kind for kind in kinds if kind.role == "weight"]
    rows = [("parameter", "whole -> part", "stage", "cut"), *map(_parameter_row, weights[:MOST_ROWS])]
    return ["Parameters", *table(rows, width), *_more(weights), *_not_cut_alike(kinds, width)]


def _parameter_row(kind: ParameterKind) -> tuple[str, ...]:
    held = kind.example
    whole, part, cut = shape_text(held.part.shape), shape_text(held.local_shape), cut_words(held)
    return kind.name, whole if cut == "whole" else f"{whole} -> {part}", ranges(kind.stages), cut


def _not_cut_alike(kinds: Sequence[ParameterKind], width: int) -> list[str]:
    """What of the gradients and the optimizer's state is not cut like its weight."""
    shapes = {kind.name: kind.example.local_shape for kind in kinds if kind.role == "weight"}
    lines = []
    for role, told in (("gradient", "Accumulated gradients"), ("optimizer", "Optimizer state")):
        others = [kind for kind in kinds if kind.role == role]
        pairs = [(kind, shape) for kind in others for name, shape in shapes.items() if kind.name.endswith("." + name)]
        different = [kind for kind, shape in pairs if kind.example.local_shape != shape]
        if not different and others:
            lines.append(f"  {told}: cut like the weights.")
        elif different:
            lines.append(f"  {told}: {len(different)} of {len(pairs)} kinds are not cut like their weight:")
            lines += ["  " + row for row in table(map(_parameter_row, different[:4]), width - 2)]
            lines += [f"    ... {len(different) - 4} more"] * (len(different) > 4)
    return lines


def collectives_section(job: DryRun, width: int, of: str = "a step") -> list[str]:
    """Messages on one rank; `of` says of what, for the title."""
    kinds = collective_kinds(job.ranks)
    if not kinds:
        return ["Collectives: none" if of == "a step" else f"Collectives of {of}: none"]
    rows = [("op", "for", "over", "ranks", "links", "a message", "a step", "total", "stage")]
    rows += [
        (
            kind.use.op,
            kind.use.purpose,
            " x ".join(kind.use.axes) or "-",
            ranks_text(kind.use),
            kind.use.links,
            bytes_text(kind.use.bytes),
            f"{kind.use.count} x",
            bytes_text(kind.use.total_bytes),
            ranges(kind.stages),
        )
        for kind in kinds[:MOST_ROWS]
    ]
    return [f"Collectives of {of}, on one rank", *table(rows, width, right={5, 6, 7}), *_more(kinds)]


def operators_section(job: DryRun, width: int) -> list[str]:
    kinds = cut_kinds(job.ranks)
    if not kinds:
        return []
    cells: dict[tuple[str, str, str], list[str]] = {}
    for kind in kinds:
        if kind.is_cut:
            place = kind.cell or ("the layer" if kind.layers else "the model")
            cells.setdefault((kind.layers, ", ".join(kind.ops), kind.words), []).append(place)
    rows = [("layers", "operators", "pieces of each dim", "where")]
    for (layers, ops, words), places in list(cells.items())[:MOST_ROWS]:
        pieces, _, meaning = words.partition(": ")
        where = ", ".join(dict.fromkeys(places))
        rows.append((layers, ops, pieces, f"{where}: {meaning}" if meaning else where))
    lines = ["How operators are cut", *table(rows, width), *_more(list(cells))]
    whole = sum(kind.count for kind in kinds if not kind.is_cut)
    return [*lines, f"  {whole} more are whole on every device."] if whole else lines


def _searched(job: DryRun, width: int) -> list[str]:
    """What a search chose, beside the strategies by hand."""
    search = job.search
    if search is None:
        return []
    head = f"Strategies {search.how}, beside those by hand (semi_auto_parallel, the same degrees), on rank "
    lines = [f"{head}{search.chosen.rank}"]
    if search.by_hand is None:
        return [
            *lines,
            "  The form by hand does not compile:",
            *(f"    {line}" for line in search.refused.splitlines()),
        ]
    rows = [("", "collectives of a step", "weights", "optimizer", "live at the peak")]
    for name, report in (("chosen", search.chosen), ("by hand", search.by_hand)):
        rows.append((name, *map(bytes_text, costs(report).values())))
    lines += table(rows, width, right={1, 2, 3, 4})
    kinds = searched_kinds(search.operators)
    others = [kind for kind in kinds if not kind.same and "-" not in (kind.chosen, kind.by_hand)]
    for kind in others[:MOST_SEARCHED]:
        lines.append("  " + "  ".join(filter(None, [kind.layers, kind.op, ", ".join(kind.cells)])))
        for name, told, meaning in zip(("chosen ", "by hand"), (kind.chosen, kind.by_hand), kind.meaning, strict=True):
            lines.append(f"    {name}  {told}{': ' * bool(meaning)}{meaning}")
    lines += [f"  ... {len(others) - MOST_SEARCHED} more: --json has them all"] * (len(others) > MOST_SEARCHED)
    same = sum(kind.count for kind in kinds if kind.same)
    if same == sum(kind.count for kind in kinds):
        lines.append("  All operators are cut as by hand.")
    else:
        lines.append(f"  {same} operators of a layer or of the model are cut the same in both.")
    for name, told in (("chosen", "by hand"), ("by_hand", "by the search")):
        alone = [f"{kind.op} in {', '.join(kind.cells)}" for kind in kinds if getattr(kind, name) == "-"]
        lines += [f"  Only {told}: {'; '.join(dict.fromkeys(alone))}."] if alone else []
    return lines


def peak_section(job: DryRun, width: int, of: str = "") -> list[str]:
    """What is alive at the peak; `of` says of which graph."""
    largest = max(job.ranks, key=lambda report: (report.peak.bytes, -report.rank), default=None)
    if largest is None or not largest.peak.tensors:
        return []
    rows = [
        (
            f"{kind.count} x",
            kind.tensor.op,
            kind.tensor.type.dtype,
            shape_text(kind.tensor.type.shape),
            bytes_text(kind.bytes),
            kind.cell,
        )
        for kind in peak_kinds(largest.peak)
    ]
    told = f"Largest tensors at the peak of {of}rank {largest.rank} ({bytes_text(largest.peak.bytes)} live)"
    if largest.compiled_layers:
        told += f", as compiled with {largest.compiled_layers[1]} layers on the stage"
    rest = peak_rest(largest.peak)
    return [told, *table(rows, width, right={0, 4}), *([f"  {rest}"] if rest else [])]


def _more(rows: Sequence[object]) -> list[str]:
    return [f"  ... {len(rows) - MOST_ROWS} more: --json has them all"] if len(rows) > MOST_ROWS else []
