"""A simulation as a person reads it at the terminal.

In: a Simulation. Out: text without colours: what was executed, losses side by side, how far gradients and weights are
apart, the verdict.

>>> print(simulation_text(simulate(plan, steps=3)))
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import groupby

from msparallel.cli.timeline_text import timeline_lines
from msparallel.compile.strategies import ranges
from msparallel.errors import printable
from msparallel.recipe.override import format_override
from msparallel.simulate.execution import LIMITS, Comparison
from msparallel.simulate.simulate import Simulation
from msparallel.simulate.timed import Timed

WIDTH = 100
"""Where the output is no terminal."""
MOST_NAMES = 5


def simulation_text(found: Simulation) -> str:
    """The whole report."""
    sections = [_head(found), loss_lines(found), difference_lines(found), verdict_lines(found)]
    if found.timed:
        small = ["Of this small model (--timeline times the recipe as it is):"] if found.changes else []
        sections.append(small + timeline_lines(found.timed, _width()))
    return joined(sections)


def timed_text(timed: Timed) -> str:
    """A recipe's timeline, nothing executed."""
    plan = timed.plan
    compiled = ranges([program.rank for program in timed.programs])
    head = [
        " ".join([plan.recipe.path, *plan.recipe.overrides]),
        f"{plan.mesh}, {plan.micro_batch_num} micro-batches a step; compiled: rank {compiled}, the others of a "
        "stage are taken to be alike",
    ]
    return joined([head, timeline_lines(timed, _width())])


def joined(sections: Iterable[Iterable[str]]) -> str:
    """Sections with an empty line between them; empty ones are left out."""
    return printable("\n\n".join("\n".join(lines) for lines in sections if lines))


def _width() -> int:
    return max(60, shutil.get_terminal_size((WIDTH, 24)).columns)


def _head(found: Simulation) -> list[str]:
    plan = found.plan
    lines = [
        f"{plan.recipe.path}: {plan.mesh}, {plan.micro_batch_num} micro-batch"
        f"{'es' * (plan.micro_batch_num > 1)} a step, executed on this machine",
    ]
    if found.changes:
        lines.append("Changed for execution (what you type wins):")
        keys = sorted(found.changes, key=lambda key: key.partition(".")[0])
        for _, alike in groupby(keys, key=lambda key: key.partition(".")[0]):
            lines.append("  " + "  ".join(format_override(key, found.changes[key]) for key in alike))
    tokens = "drawn from the seed" if found.random_tokens else "the recipe's own text"
    lines.append(f"Tokens: {tokens}. Attention: {plan.attention}. Numbers: {plan.recipe.train.dtype}.")
    return lines


def loss_lines(found: Comparison) -> list[str]:
    """Losses side by side, step by step."""
    if not found.cluster_losses:
        return []
    lines = ["step   one device      cluster   relative difference"]
    for step, (here, there) in enumerate(zip(found.single_losses, found.cluster_losses, strict=False), 1):
        lines.append(f"{step:4}   {here:10.6f}   {there:10.6f}   {abs(there - here) / abs(here):.1e}")
    return lines


def difference_lines(found: Comparison) -> list[str]:
    """How far gradients, weights and copies are apart."""
    lines = []
    if found.gradients:
        lines.append(
            f"Gradients of the first step   largest relative difference {found.gradients.max_relative:.1e} of a "
            f"tensor{_worst(found.gradients.relative)}"
        )
        if found.gradients.zero:
            lines.append(f"  zero but for rounding, left out: {_names(found.gradients.zero)}")
    if found.parameters:
        lines.append(
            f"Weights after the last step   largest difference {found.parameters.max_absolute:.1e} of a "
            f"value{_worst(found.parameters.absolute)}"
        )
    if found.gradients:
        apart = "equal, bit by bit" if found.replicas_apart == 0 else f"up to {found.replicas_apart:.1e} apart"
        lines.append(f"Copies of one slice           {apart}")
    return lines


def verdict_lines(found: Comparison) -> list[str]:
    """Whether the cluster computes the same, or the deadlock."""
    if found.deadlock:
        return [str(found.deadlock)]
    if found.same:
        return ["The strategy computes the same as one device."]
    return [
        "The strategy does NOT compute the same as one device. Allowed here: "
        f"loss {LIMITS.loss:.0e} and gradients {LIMITS.gradient:.0e} relative, weights {LIMITS.parameter:.0e}."
    ]


def _worst(values: Mapping[str, float]) -> str:
    name = max(values, key=values.__getitem__, default="")
    return f" ({name})" if name and values[name] else ""


def _names(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
