"""The memory of serving as a person reads it at the terminal, and as JSON.

In: a Plan with a `serve` section, its ServingMemory. Out: text: weights, keys and values, workspace with a bar; the
longest context and the largest batch; whether it fits.

>>> print(serving_text(plan, serving_memory(plan), width=100))
"""

from __future__ import annotations

from typing import Any

from msparallel.cli.columns import table
from msparallel.cli.plan_text import BAND, LIMIT, bar, gib_text, joined
from msparallel.plan import Plan
from msparallel.planner.memory import GIB
from msparallel.planner.serving import ServingMemory

PARTS = (("w", "weights", "weights"), ("k", "cache", "keys and values"), ("x", "workspace", "workspace"))
"""Letter in the bar, field, words."""


def serving_text(plan: Plan, found: ServingMemory, *, width: int) -> str:
    """The whole answer for a recipe that only serves."""
    devices = plan.world_size
    chips = f"{devices} device{'s' * (devices > 1)} ({plan.hardware.chip})"
    head = [
        " ".join([plan.recipe.path, *plan.recipe.overrides]),
        f"{plan.mesh} on {chips}; {found.batch} requests of {found.length} tokens at once",
        *plan.recipe.notes,
    ]
    return joined([head, *serving_sections(found, width)], width)


def serving_sections(found: ServingMemory, width: int) -> list[list[str]]:
    """Memory, what would still fit, the verdict."""
    rows = [(*(words for _, _, words in PARTS), "total", "high end"),
            (*(gib_text(getattr(found, f"{name}_bytes")) for _, name, _ in PARTS), gib_text(found.total_bytes),
             gib_text(found.high_bytes))]  # fmt: skip
    letters = [(letter, getattr(found, f"{name}_bytes")) for letter, name, _ in PARTS]
    legend = ", ".join(f"{letter} {words}" for letter, _, words in PARTS)
    memory = ["Memory of a device that serves, GiB", *table(rows, width, right=range(5)), "",
              f"  {bar(letters, found.high_bytes, found.limit_bytes, min(72, width - 4), found.high_bytes)}",
              f"  {legend}, {BAND} to the high end of the band; {LIMIT} {gib_text(found.limit_bytes)} GiB"]  # fmt: skip
    limits = [
        "What fits",
        f"  Keys and values of a token take {found.token_cache_bytes / 1024:,.1f} KiB.",
        f"  {found.length} tokens each: {_count(found.largest_batch, 'request')} at once.",
        f"  {found.batch} requests at once: {_count(found.longest_context, 'token')} each.",
    ]
    verdict = f"{'Fits' if found.fits else 'Does NOT fit'}: a device needs {gib_text(found.total_bytes)} GiB, "
    verdict += f"{gib_text(found.high_bytes)} at the high end, of {gib_text(found.limit_bytes)} GiB."
    return [memory, limits, [verdict]]


def _count(number: int, what: str) -> str:
    return f"up to {number:,} {what}{'s' * (number != 1)}" if number else f"not one {what}"


def serving_document(found: ServingMemory) -> dict[str, Any]:
    """What the JSON document says of serving."""
    return {
        "fits": found.fits,
        "batch": found.batch,
        "length": found.length,
        **{f"{name}_gib": getattr(found, f"{name}_bytes") / GIB for name in ("weights", "cache", "workspace", "total",
           "high", "limit")},
        "token_cache_bytes": found.token_cache_bytes,
        "longest_context": found.longest_context,
        "largest_batch": found.largest_batch,
    }  # fmt: skip
