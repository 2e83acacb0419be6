"""Published measurements as workloads: what a row of a table says, and why some rows cannot be compared.

In: a CSV file with a run in each row (its columns: `COLUMNS`). Out: a Case for each row that can be estimated, a
Skipped with the reason for each other row. Nothing is guessed: a number that a row leaves out comes from the public
configuration of its model's family (`families.py`) or skips the row.

>>> cases, skipped = read_cases("measured_cases.csv")  # doctest: +SKIP
>>> cases[0].model, cases[0].work.mesh.tp, cases[0].measured_s  # doctest: +SKIP
('Aquila 7B', 8, 5.75)

A row is skipped, in this order, where

1. its `trust` is not `clean` or `iteration1-peak`: mismatch (script and text disagree), suspect (more than a device
   can do), figure (read off a drawing), dryrun (not measured). An iteration1-peak was logged before the optimizer had
   state: it is a lower bound, checked as one and left out of every mean;
2. it needs something that the planner has no formulas for, named in the reason;
3. it is about time on hardware that has no profile, or none of the run's type;
4. a number it needs is missing, no number, or contradicts another;
5. its rate is more than the peak of the device, counting of attention only what a causal mask leaves: it is no
   measurement of that device.

An MFU is taken to be of the profile's peak: no table says of which.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msparallel.errors import UserError, short
from msparallel.hardware import load_hardware
from msparallel.planner.measured.cells import CannotUse, Cells
from msparallel.planner.measured.families import family_of
from msparallel.planner.measured.row_workload import workload_of_row
from msparallel.planner.step_time import model_flops
from msparallel.planner.workload import Workload

COLUMNS = (
    "source", "model", "profile", "device_count", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len",
    "micro_batch", "global_batch", "dp", "tp", "pp", "vpp", "cp", "ep", "sequence_parallel", "recompute", "zero",
    "dtype", "num_experts", "top_k", "measured_metric", "component", "value", "value_by_rank", "trust", "flags",
    "notes",
)  # fmt: skip
Metric = Literal["model_state", "peak_memory", "step_time"]
METRICS: tuple[Metric, ...] = ("model_state", "peak_memory", "step_time")
MOST_BYTES = 64 << 20
"""Largest table that is read; a row takes half a KB."""
UNITS = ("memory_GiB", "tokens_per_s_per_device", "step_time_s", "tflops_per_device", "mfu")
USABLE_TRUST = ("clean", "iteration1-peak")
PROFILES = {"b200-sxm": "b200"}
"""Names of profiles that are not ours with other dashes."""

_COUNTS_HALF_OF_ATTENTION = re.compile(r"MindSpeed-LLM branch (2\.[1-9]|26|master)")
"""Built on Megatron-LM core 0.12 and later, whose counter leaves out what a causal mask hides."""

_FEATURES = {
    **dict.fromkeys(("lora", "qlora"), "low-rank adapters (LoRA)"),
    **dict.fromkeys(("dpo", "ppo", "orm", "grpo", "rm", "distill"), "a second model beside the trained one"),
    **dict.fromkeys(("swap-optimizer", "swap_optimizer", "offload"), "state that is kept on the host"),
}
"""Word of a model's name, or flag -> what the planner has no formulas for."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Attributes:
    row: line of the file; the first row of data is 2.
    unit: what `value` is: memory_GiB, tokens_per_s_per_device, step_time_s, tflops_per_device, mfu.
    value_by_stage: the same for each pipeline stage, the largest of its ranks; empty where a row has one value.
    lower_bound: the value is the least that the estimate may be.
    hardware: name of a profile, None where there is none.
    flags: features that were on, in the words of the run's script.
    """

    row: int
    source: str
    model: str
    family: str
    metric: Metric
    unit: str
    value: float
    value_by_stage: tuple[float, ...]
    lower_bound: bool
    flags: tuple[str, ...]
    hardware: str | None
    work: Workload

    @property
    def measured_s(self) -> float:
        """Seconds of a step, of a case whose metric is step_time."""
        work, devices = self.work, self.work.mesh.size
        if self.unit == "step_time_s":
            return self.value
        if self.unit == "tokens_per_s_per_device":
            return work.global_batch_size * work.seq_length / devices / self.value
        rate = self.value * 1e12 * (self.peak_tflops if self.unit == "mfu" else 1)
        # What software that Megatron-LM's log was taken over from before 2025 counts: attention over all pairs.
        whole = _COUNTS_HALF_OF_ATTENTION.search(self.source) is None
        flops = work.global_batch_size * model_flops(work.shape, work.seq_length, whole_attention=whole)
        return flops / devices / rate

    @property
    def tflops(self) -> float:
        """Least that a device did in the measured seconds, of a case whose metric is step_time."""
        work = self.work
        flops = work.global_batch_size * model_flops(work.shape, work.seq_length)
        return flops / work.mesh.size / self.measured_s / 1e12

    @property
    def peak_tflops(self) -> float:
        """The device's, for the run's type."""
        assert self.hardware is not None, "rows of time have a profile"
        return load_hardware(self.hardware).matrix.tflops[self.work.dtype]

    @property
    def is_dense(self) -> bool:
        return not self.work.shape.num_experts

    @property
    def plain(self) -> bool:
        """None of the features that the model-state formula was first checked without."""
        words = ("o2-optimizer", "o2-gradient", "reuse-fp32-param", "swap", "noop")
        return self.is_dense and not any(flag.startswith(words) for flag in self.flags)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A row that cannot be compared, and the rule that says so."""

    row: int
    reason: str


def read_cases(path: str | Path) -> tuple[list[Case], list[Skipped]]:
    """Cases and skipped rows of a file, in its order.

    Raises:
        UserError: no such file, no text, or no column that this module knows.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UserError(f"{path}: has more than {MOST_BYTES >> 20} MiB; this is no table of runs")
        text = data.decode("utf-8-sig")
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise UserError(f"{path}: not a text file in UTF-8") from problem
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), restval="", strict=True)
        reader.fieldnames = names = [name.strip() for name in reader.fieldnames or []]
        header = [name for name in names if name]
        if not set(header) & set(COLUMNS):
            parted = next((sign for sign in ";\t|" if any(sign in name for name in names)), "")
            told = f"; it is parted by {parted!r}, and columns are parted by commas" if parted else ""
            raise UserError(f"{path}: the first line names none of the columns {', '.join(COLUMNS)}{told}")
        twice = next((name for name in COLUMNS if header.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"{path}: the first line names column {twice} twice; which one counts?")
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as problem:
        raise UserError(f"{path}: line {reader.line_num + 1} or below it is no CSV: {problem}") from problem
    cases: list[Case] = []
    skipped: list[Skipped] = []
    for line, row in rows:
        values = {name: (row[name] or "").strip() for name in header}
        try:
            cases.append(_case(line, Cells(values)))
        except CannotUse as reason:
            skipped.append(Skipped(row=line, reason=str(reason)))
    return cases, skipped


def _case(line: int, row: Cells) -> Case:
    trust = row.text("trust", "clean")
    if trust not in USABLE_TRUST:
        raise CannotUse(f"trust: {short(trust, 40)}")
    metric, unit = _metric(row)
    family = family_of(row.text("model"))
    profile = row.text("profile", "unknown")
    name: str | None = PROFILES.get(profile, profile.replace("-", "_"))
    try:
        load_hardware(str(name))
    except KeyError:
        name = None
    unknown = family.unknown or _unknown_feature(row)
    if unknown:
        raise CannotUse(f"feature: {unknown}")
    if metric == "step_time" and "fp8" in row.text("dtype", ""):
        raise CannotUse("feature: matrix products in 8 bits (fp8)")
    if metric == "step_time" and name is None:
        row.text("profile")
        raise CannotUse(f"hardware: {short(profile, 40)} has no profile")
    value = row.value()
    work = workload_of_row(row, family)
    if metric == "step_time" and work.dtype not in load_hardware(str(name)).dtypes:
        raise CannotUse(f"hardware: {name} does not multiply in {work.dtype}")
    case = Case(
        row=line,
        source=row.text("source"),
        model=row.text("model"),
        family=family.name,
        metric=metric,
        unit=unit,
        value=value,
        value_by_stage=_by_stage(row, work.mesh.pp),
        lower_bound=trust == "iteration1-peak",
        flags=tuple(row.flags),
        hardware=name,
        work=work,
    )
    if metric == "step_time" and case.tflops > case.peak_tflops:
        raise CannotUse(f"rate: {case.tflops:.0f} TFLOP/s a device, more than its peak, {case.peak_tflops:g}")
    return case


def _unknown_feature(row: Cells) -> str:
    """What a run's name or flags say it did beside training all weights on its devices; empty if nothing."""
    words = {*re.split(r"[^a-z0-9]+", row.text("model").lower()), *row.flags}
    return next((feature for word, feature in _FEATURES.items() if word in words), "")


def _metric(row: Cells) -> tuple[Metric, str]:
    unit = row.text("measured_metric")
    if unit not in UNITS:
        raise CannotUse(f"column measured_metric: {short(unit, 40)!r} is none of {', '.join(UNITS)}")
    if unit != "memory_GiB":
        return "step_time", unit
    component = row.text("component")
    if component in ("static", "model_state"):
        return "model_state", unit
    if component == "peak":
        return "peak_memory", unit
    raise CannotUse(f"column component: {short(component, 40)!r} is none of static, model_state, peak")


def _by_stage(row: Cells, stages: int) -> tuple[float, ...]:
    """Values stand in the order of ranks, whose stages are contiguous blocks; ranks that hold alike are left out."""
    values = row.numbers("value_by_rank", " ")
    if not values:
        return ()
    if len(values) % stages:
        raise CannotUse(f"column value_by_rank: {len(values)} values for {stages} stages")
    ranks = len(values) // stages
    return tuple(max(values[stage * ranks : (stage + 1) * ranks]) for stage in range(stages))
