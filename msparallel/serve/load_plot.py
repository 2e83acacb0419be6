"""Latencies over a sweep of load, as a picture.

In: (point, Summary) pairs. Out: a PNG: time to the first token, between pieces, and tokens a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from msparallel.errors import RunError
from msparallel.serve.load import Summary


def plot_sweep(results: Sequence[tuple[float, Summary]], name: str, path: str) -> None:
    """Raises RunError where the file cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [point for point, _ in results]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, title, kind in ((axes[0], "to the first token, ms", "first_token_s"),
                              (axes[1], "between pieces, ms", "between_s")):  # fmt: skip
        for key, style in (("p50", "o-"), ("p99", "o--")):
            values = [getattr(found, kind).get(key, float("nan")) * 1e3 for _, found in results]
            axis.plot(points, values, style, label=key)
        axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.legend()
    axes[2].plot(points, [found.tokens_per_s for _, found in results], "o-", label="tokens/s")
    if any(found.refused for _, found in results):
        share = [found.refused / max(found.requests, 1) for _, found in results]
        other = axes[2].twinx()
        other.plot(points, share, "s:", color="tab:red", label="refused")
        other.set_ylim(0, 1)
        other.set_ylabel("share refused (429)")
    axes[2].set_ylim(bottom=0)
    axes[2].set_title("tokens/s of all answers")
    for axis in axes:
        axis.set_xlabel("requests a second" if name == "rate" else "clients at once")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: an ending that matplotlib does not write
        raise RunError(f"--plot {path}\n  The picture cannot be written: {error}.") from None
    finally:
        pyplot.close(figure)
