"""Replays as a picture.

In: Replays and their Measures. Out: a PNG: for each policy the devices in use over time, by class; below them how long
jobs waited, under all policies. It says that it is a simulation.

>>> draw_replays("queue.png", [(replayed, measure(replayed))], "synthetic trace, seed 1")  # doctest: +SKIP
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from msparallel.errors import RunError
from msparallel.schedule.queue.job import KINDS, SPARE_KIND
from msparallel.schedule.queue.measure import HOUR_S, Measures
from msparallel.schedule.queue.replay import Replay

BINS = 480
"""Points of a curve: each is the mean over its part of the window."""
_COLOURS = {"training": "#4477aa", "inference": "#ccbb44", "evaluation": "#228833", "interactive": "#aa3377"}


def draw_replays(path: str | Path, found: Sequence[tuple[Replay, Measures]], title: str) -> None:
    """Write the PNG, over an older one if need be. Raises RunError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure

    rows = -(-len(found) // 2)
    figure = Figure(figsize=(11, 2.1 * rows + 3.2), layout="constrained")
    figure.suptitle(_drawable(f"Simulation, not a measurement: {title}"), fontsize="medium", x=0.01, ha="left")
    grid = figure.add_gridspec(rows + 1, 2, height_ratios=[1] * rows + [1.4])
    longest = max(replay.end_s for replay, _ in found)
    kinds = [kind for kind in KINDS if any(kind in measures.waits for _, measures in found)]
    first = None
    for place, (replay, measures) in enumerate(found):
        spot = grid[place // 2, place % 2] if len(found) > 1 else grid[0, :]
        axes = figure.add_subplot(spot, sharex=first, sharey=first)
        first = first or axes
        moments, held = binned(replay, longest)
        unit, name = _unit(longest)
        axes.stackplot([moment / unit for moment in moments], [held[KINDS.index(kind)] for kind in kinds],
                       colors=[_COLOURS[kind] for kind in kinds], labels=kinds, linewidth=0)  # fmt: skip
        axes.axhline(replay.cluster.devices, color="black", linewidth=0.8)
        axes.axvline(replay.end_s / unit, color="black", linewidth=0.8, linestyle=":")
        axes.set(xlim=(0, longest / unit), ylim=(0, replay.cluster.devices * 1.05))
        axes.set_title(f"{replay.policy}: {measures.utilisation:.0%} useful, without inference "
                       f"{measures.without_inference:.0%}", fontsize="small")  # fmt: skip
        if place % 2 == 0:
            axes.set_ylabel("devices")
        if place // 2 == rows - 1:
            axes.set_xlabel(name)
    first.figure.legend(*first.get_legend_handles_labels(), fontsize="small", loc="outside upper right", ncols=4)
    for place, (words, spare) in enumerate((("all but inference", False), ("inference", True))):
        axes = figure.add_subplot(grid[rows, place])
        for number, (replay, _) in enumerate(found):
            waits = sorted(end.wait_s / HOUR_S for end in replay.jobs if (end.job.kind == SPARE_KIND) == spare)
            parts = [(place + 1) / len(waits) for place in range(len(waits))]
            if waits:
                axes.step([0, *waits], [0, *parts], where="post", color=f"C{number}", linewidth=1.2,
                          label=replay.policy)  # fmt: skip
        axes.set_xscale("symlog", linthresh=0.1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(ylim=(0, 1.02), xlabel=f"{words}: hours from submission to start, at most")
        axes.set_xlim(left=0)
        if place == 0:
            axes.set_ylabel("part of the jobs")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="x-small", loc="lower right")
    try:
        FigureCanvasAgg(figure).print_png(path)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}\n  The picture cannot be written: {reason}.") from error


def binned(replay: Replay, until_s: float, bins: int = BINS) -> tuple[list[float], list[list[float]]]:
    """Middles of `bins` equal parts of the time, and by class the mean of devices held in each."""
    width = until_s / bins
    held = [[0.0] * bins for _ in KINDS]
    ends = [moment for moment, _ in replay.usage[1:]] + [until_s]
    for (start, devices), end in zip(replay.usage, ends, strict=True):
        place = min(bins - 1, int(start / width))
        while start < end and place < bins:
            stop = min(end, (place + 1) * width)
            for kind, count in enumerate(devices):
                held[kind][place] += count * max(0.0, stop - start) / width
            start, place = max(start, stop), place + 1
    return [(place + 0.5) * width for place in range(bins)], held


def _drawable(text: str) -> str:
    """On lines that leave the legend its place; no formula, and no character that the font lacks."""
    plain = text.encode("ascii", "replace").decode().replace("$", r"\$")
    return "\n".join(textwrap.wrap(plain, 100))


def _unit(longest_s: float) -> tuple[float, str]:
    return (86_400.0, "days") if longest_s > 3 * 86_400 else (HOUR_S, "hours")
