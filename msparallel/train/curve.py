"""The loss curve as a picture.

In: losses by step. Out: a PNG, training loss as a line (thin where it is noisy, with its running mean) and evaluation
loss as points.

>>> draw_curve(Path("loss.png"), [5.0, 4.0], [(0, 5.1), (2, 3.9)], title="quickstart")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from msparallel.errors import RunError


def draw_curve(
    path: Path, losses: Sequence[float | None], evaluations: Sequence[tuple[int, float]], *, title: str
) -> None:
    """Write the PNG. Raises RunError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    values = np.array([np.nan if loss is None else loss for loss in losses])
    steps = np.arange(1, len(values) + 1)
    axes.plot(steps, values, color="tab:blue", alpha=0.35, linewidth=0.8, label="training loss")
    window = max(1, len(values) // 50)
    if window > 1:
        mean = np.convolve(values, np.ones(window) / window, mode="valid")
        axes.plot(steps[window - 1 :], mean, color="tab:blue", label=f"mean of {window} steps")
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), "o-", color="tab:orange", label="evaluation loss")
    axes.set(xlabel="optimizer step", ylabel="cross entropy (nats a token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        FigureCanvasAgg(figure).print_png(path)
    except OSError as error:
        raise RunError(f"{path}\n  The loss curve cannot be written: {error}.") from error
