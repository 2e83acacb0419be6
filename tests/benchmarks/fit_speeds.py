"""Fit the numbers that no data sheet has to published step times, and print them beside those of the profiles.

In: a CSV file of published runs (`planner/measured/cases.py` has its columns). Out: for each kind of machine the fitted
numbers, how far estimates are off with them and with the profiles', and a cross-check: one half of the model families
(`families.half_of`) is fitted, the other estimated with the result, and the other way round.

    python tests/benchmarks/fit_speeds.py measured_cases.csv

The numbers of a machine are common to all its rows, and few: the rate of attention's gradient, what HCCS carries at
once, the share of fused messages that shows; and for each software how often its operators pass over memory. All else
is from data sheets, single operators and messages. Rows that say nothing but a share of an unnamed peak (mfu) are left
out. Errors are measured on a logarithmic scale, large ones count less (Cauchy's loss), so that single runs that were
measured in another way do not move the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from msparallel.hardware import Hardware, load_hardware
from msparallel.planner.measured.cases import Case, read_cases
from msparallel.planner.measured.families import half_of
from msparallel.planner.step_time import step_time

SCALE = 0.07
"""Relative errors beyond this count less and less."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Machines that share their numbers, and what is fitted: name -> least, most."""

    profiles: tuple[str, ...]
    fitted: Mapping[str, tuple[float, float]]


GRADIENT = {"attention_backward_efficiency": (0.2, 0.5)}
"""At most what the forward pass of a 910B reaches."""
KINDS = (
    Kind(
        profiles=("atlas_900_a2", "atlas_800t_a2"),
        fitted={
            **GRADIENT,
            "most_gb_s": (40.0, 196.0),
            "fused_exposed": (0.05, 1.0),
            "passes of mindspeed": (1.0, 6.0),
            "passes of mindformers": (1.0, 6.0),
        },
    ),
    Kind(profiles=("b200",), fitted=GRADIENT),
    Kind(profiles=("h100_96g",), fitted={"efficiency": (0.3, 0.9)}),
    Kind(profiles=("a100_80g", "a100_40g"), fitted={}),
)


def changed(machine: Hardware, values: Mapping[str, float]) -> Hardware:
    """The machine with some of its numbers replaced."""
    matrix = {name: values[name] for name in ("attention_backward_efficiency", "efficiency") if name in values}
    update: dict[str, object] = {"matrix": machine.matrix.model_copy(update=matrix)}
    if "fused_exposed" in values:
        update["fused_exposed"] = values["fused_exposed"]
    if "most_gb_s" in values:
        first = machine.links[0].model_copy(update={"most_gb_s": values["most_gb_s"]})
        update["links"] = [first, *machine.links[1:]]
    return machine.model_copy(update=update)


def written(case: Case, name: str) -> float | None:
    """The number that profile or stack have now; None where the case's stack is another."""
    machine = load_hardware(str(case.hardware))
    if name.startswith("passes of"):
        return case.work.stack.memory_passes if name.endswith(f" {case.work.stack.name}") else None
    if name == "most_gb_s":
        return machine.links[0].most_gb_s
    return machine.fused_exposed if name == "fused_exposed" else getattr(machine.matrix, name)


def errors(cases: Sequence[Case], values: Mapping[str, float]) -> np.ndarray:
    """Logarithms of estimated over measured seconds."""
    machines = {name: changed(load_hardware(name), values) for name in {str(case.hardware) for case in cases}}
    found = []
    for case in cases:
        work, passes = case.work, values.get(f"passes of {case.work.stack.name}")
        if passes is not None:
            work = replace(work, stack=replace(work.stack, memory_passes=passes))
        found.append(np.log(step_time(work, machines[str(case.hardware)]).step_s / case.measured_s))
    return np.array(found)


def fit(cases: Sequence[Case], bounds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """The numbers with which the cases come out best."""
    names = [name for name in bounds if any(written(case, name) is not None for case in cases)]
    if not names:
        return {}
    low, high = (np.array([bounds[name][end] for name in names]) for end in (0, 1))

    def off(scaled: np.ndarray) -> np.ndarray:
        return errors(cases, dict(zip(names, low + scaled * (high - low), strict=True))) / SCALE

    best = least_squares(off, np.full(len(names), 0.4), bounds=(0, 1), loss="cauchy", diff_step=1e-3)
    return dict(zip(names, map(float, low + best.x * (high - low)), strict=True))


def told(cases: Sequence[Case], values: Mapping[str, float]) -> str:
    """Median, mean and third quartile of absolute relative errors."""
    off = np.abs(np.expm1(errors(cases, values)))
    median, mean, quartile = np.median(off), off.mean(), np.quantile(off, 0.75)
    return f"n {len(off):3}  median {median:6.1%}  mean {mean:6.1%}  75% of rows {quartile:6.1%}"


def main(path: str) -> None:
    cases, _ = read_cases(path)
    timed = [case for case in cases if case.metric == "step_time" and case.unit != "mfu"]
    for kind in KINDS:
        rows = [case for case in timed if case.hardware in kind.profiles]
        if not rows:
            continue
        print(f"\n{', '.join(kind.profiles)}\n  as the profiles are   {told(rows, {})}")
        if not kind.fitted:
            continue
        values = fit(rows, kind.fitted)
        print(f"  fitted                {told(rows, values)}")
        for name, value in values.items():
            now = next(number for case in rows if (number := written(case, name)) is not None)
            print(f"    {name:<30} {value:7.3g}   the profile has {now:g}")
        halves = [[case for case in rows if half_of(case.family) == half] for half in ("first", "second")]
        if not all(halves):
            continue
        for half, others in (halves, halves[::-1]):
            values = fit(half, kind.fitted)
            print(f"  fitted on one half    {told(half, values)}\n    the other half      {told(others, values)}")


if __name__ == "__main__":
    main(sys.argv[1])
