"""Estimates over measurements as a picture.

In: an Evaluation. Out: a PNG with a panel for each metric, both axes logarithmic: the diagonal, 10 % on both sides of
it, a point for each row, its colour the hardware.

>>> draw_scatter("errors.png", evaluate("measured_cases.csv"))  # doctest: +SKIP
"""

from __future__ import annotations

from pathlib import Path

from msparallel.errors import RunError, UserError
from msparallel.planner.measured.cases import METRICS
from msparallel.planner.measured.evaluate import Evaluation

TITLES = {"model_state": "model state, GiB", "peak_memory": "peak memory, GiB", "step_time": "step time, s"}
BAND = 0.1
_TICKS = [step * 10.0**power for power in range(-6, 7) for step in (1, 2, 5)]


_PNG = b"\x89PNG\r\n\x1a\n"


def check_picture(path: str | Path) -> None:
    """Raises UserError where a file is already that is no PNG: it would be lost; where its folder is not there; and for
    a name of another format."""
    there = b""
    try:
        with Path(path).open("rb") as file:
            there = file.read(len(_PNG))
    except FileNotFoundError as error:
        if not Path(path).parent.is_dir():
            raise UserError(_cannot(path, error)) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise UserError(_cannot(path, error)) from None
    if there and there != _PNG:
        raise UserError(f"{path}\n  The picture cannot be written: another file is there, and it was left as it is.")
    suffix = Path(path).suffix
    if suffix and suffix.lower() != ".png":
        raise UserError(f"{path}\n  The picture is a PNG, and {suffix} is another format: name it "
                        f"{Path(path).with_suffix('.png')}.")  # fmt: skip


def _cannot(path: str | Path, error: OSError | ValueError) -> str:
    return f"{path}\n  The picture cannot be written: {getattr(error, 'strerror', None) or error}."


def draw_scatter(path: str | Path, found: Evaluation) -> None:
    """Write the PNG, over an older one if need be. Raises UserError, as `check_picture`, or RunError where the disk is
    full."""
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    shown = [metric for metric in METRICS if found.figures(metric).n]
    figure = Figure(figsize=(5.2 * max(1, len(shown)), 5), layout="constrained")
    machines = sorted({row.case.hardware or "not stated" for row in found.rows})
    for place, metric in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), place + 1)
        rows = [row for row in found.rows if row.case.metric == metric and row.counts]
        ends = [min(min(row.measured, row.estimate) for row in rows) / 1.3]
        ends.append(max(max(row.measured, row.estimate) for row in rows) * 1.3)
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.fill_between(
            ends, [end * (1 - BAND) for end in ends], [end * (1 + BAND) for end in ends], color="black", alpha=0.08
        )
        for number, machine in enumerate(machines):
            points = [(r.measured, r.estimate) for r in rows if (r.case.hardware or "not stated") == machine]
            if points:
                axes.scatter(*zip(*points, strict=True), s=14, color=f"C{number}", label=machine)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=TITLES[metric])
        ticks = [tick for tick in _TICKS if ends[0] <= tick <= ends[1]]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_locator(NullLocator())
        axes.set(xlabel="measured", ylabel="estimate" if place == 0 else "")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    try:
        FigureCanvasAgg(figure).print_png(path)
    except OSError as error:
        raise RunError(_cannot(path, error)) from error
