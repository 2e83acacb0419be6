"""Rules about a device: its clock, its memory.

In: a View. Out: Findings.
"""

from __future__ import annotations

from msparallel.profiling.finding import Finding, percent
from msparallel.profiling.measured import Memory
from msparallel.profiling.recipe_changes import less_recompute
from msparallel.profiling.view import View

OFTEN_LOW = 0.05
"""Of the busy samples."""
HOT_C = 90.0
NEARLY_FULL, SPARE, FRAGMENTED = 0.95, 0.75, 0.2
MIB_IN_GIB = 1024


def clocks(view: View) -> list[Finding]:
    """Clocks that fall while the device is busy."""
    found = []
    for power in view.measured.power:
        share = power.low / power.busy if power.busy else 0.0
        if share < OFTEN_LOW:
            continue
        lost = share * (1 - power.low_mhz / power.high_mhz)
        heat = f" It was up to {power.hottest_c:g} C hot then." if power.hottest_c is not None else ""
        hot = power.hottest_c is not None and power.hottest_c >= HOT_C
        found.append(Finding(
            rule="clock_falls", severity="warning",
            root_cause=f"Device {power.device} runs at {power.low_mhz:.0f} MHz instead of {power.high_mhz:.0f} in "
                       f"{percent(share)} of the samples in which it was busy.{heat}",
            remedy=("Cooling: air in and out of the server, fans, the position in the rack; a device beside it with "
                    "the same load tells whether it is this one." if hot else
                    "Not hot: a limit of power. npu-smi info -t power -i N, the server's power cap, its supplies."),
            gain=lost, evidence=(power.place,),
        ))  # fmt: skip
    return found


def memory(view: View) -> list[Finding]:
    """Pools that are nearly full, full of holes, or half empty while the recipe recomputes."""
    peaks = [one for one in view.measured.memory if one.reserved_mb > 0]
    if not peaks:
        return []
    worst = max(peaks, key=lambda one: one.reserved_mb)
    limit_mb = view.hardware.memory_gib * MIB_IN_GIB if view.hardware is not None and view.hardware.memory_gib else None
    found = []
    holes = 1 - worst.allocated_mb / worst.reserved_mb
    if limit_mb is not None and view.hardware is not None and worst.reserved_mb > NEARLY_FULL * limit_mb:
        found.append(Finding(
            rule="memory_nearly_full", severity="warning", rank=worst.rank,
            root_cause=f"Rank {worst.rank} holds {_gib(worst.reserved_mb)} of {view.hardware.memory_gib:g} GiB at its "
                       f"peak ({worst.component}).{_alive(worst)}",
            remedy="The next longer batch ends in out of memory, and an allocator that searches for room is slow: "
                   "parallel.recompute, optimizer_shard, a smaller micro_batch_size (msparallel plan).",
            evidence=(worst.place,),
        ))  # fmt: skip
    if holes > FRAGMENTED and worst.reserved_mb > MIB_IN_GIB:
        found.append(Finding(
            rule="memory_in_pieces", severity="info", rank=worst.rank,
            root_cause=f"At the peak of rank {worst.rank} {percent(holes)} of the {_gib(worst.reserved_mb)} GiB that "
                       "its pool holds are not used by any tensor.",
            remedy="Fragments: MS_ALLOC_CONF=enable_vmm:true (MindSpore), PYTORCH_NPU_ALLOC_CONF=expandable_segments:"
                   "True (torch_npu); shapes that change from step to step make more of them.",
            evidence=(worst.place,),
        ))  # fmt: skip
    found += _spare(view, worst, limit_mb)
    return found


def _spare(view: View, worst: Memory, limit_mb: float | None) -> list[Finding]:
    if limit_mb is None or view.plan is None or view.recipes is None or view.estimate is None:
        return []
    if worst.reserved_mb > SPARE * limit_mb or view.plan.recipe.parallel.recompute == "none":
        return []
    changes, planned = view.recipes.best(less_recompute(view.plan))
    if not changes or planned is None:
        return []
    return [Finding(
        rule="memory_to_spare", severity="info", rank=worst.rank,
        root_cause=f"The fullest rank holds {_gib(worst.reserved_mb)} of {limit_mb / MIB_IN_GIB:g} GiB at its peak, "
                   f"and the recipe recomputes ({view.plan.recipe.parallel.recompute}).",
        remedy="Keep more of what the backward pass needs. The gain is the planner's, an estimate: a profile does not "
               "tell what was computed twice.",
        gain=planned, evidence=(worst.place,), changes=changes, planned=planned,
    )]  # fmt: skip


def _gib(mb: float) -> str:
    return f"{mb / MIB_IN_GIB:.1f}"


def _alive(peak: Memory) -> str:
    if not peak.largest:
        return ""
    return " Largest there: " + ", ".join(f"{name[:40]} {mb:,.0f} MiB" for mb, name in peak.largest[:3]) + "."
