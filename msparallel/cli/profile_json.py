"""A Profile as the JSON document of `profile --json`.

In: a Profile. Out: plain values; times in microseconds, bandwidths in 1e9 bytes a second, shares from 0 to 1. Lists
that grow with the cluster are whole; what was left out has its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msparallel.profiling.compare import rows
from msparallel.profiling.link_rules import link_kinds
from msparallel.profiling.operator_rules import core_times, totals
from msparallel.profiling.profile import Profile
from msparallel.profiling.step_rules import axis_times
from msparallel.profiling.steps import RankTime
from msparallel.profiling.view import View

MOST_OPERATORS, MOST_GAPS = 200, 50


def profile_document(found: Profile) -> dict[str, Any]:
    """The whole document."""
    view = found.view
    measured = view.measured
    return {
        "findings": [finding.to_json() for finding in found.findings],
        "step_us": view.step_us,
        "ranks": [_rank(time) for time in view.times],
        "groups": [{"group": name, "ranks": len(group), "computing_spread": spread(group)}
                   for name, group in view.groups.items()],
        "compared": [{"part": row.part, "estimated_s": row.estimated_s, "measured_s": row.measured_s}
                     for row in rows(view)],
        "communication": _communication(view),
        "link_kinds": [{"transport": kind.transport, "links": kind.count, "median_gb_s": kind.median_gb_s,
                        "lowest_gb_s": kind.lowest_gb_s, "highest_gb_s": kind.highest_gb_s, "total_mb": kind.total_mb,
                        "expected_gb_s": kind.expected_gb_s} for kind in link_kinds(view)],
        "links": [{"source": link.source, "target": link.target, "transport": link.transport, "mb": link.mb,
                   "ms": link.ms, "gb_s": link.gb_s, "message_mb": link.message_mb} for link in measured.links],
        "operators": [_operator(total) for total in totals(view)[:MOST_OPERATORS]],
        "cores_us": core_times(view),
        "gaps": [{"rank": gap.rank, "gap_us": gap.gap_us, "start_us": gap.start_us, "before": gap.before,
                  "after": gap.after} for gap in longest_gaps(view, MOST_GAPS)],
        "memory": [{"rank": one.rank, "component": one.component, "allocated_mb": one.allocated_mb,
                    "reserved_mb": one.reserved_mb, "largest": [{"mb": mb, "operator": name}
                                                                for mb, name in one.largest]}
                   for one in measured.memory],
        "power": [{"device": one.device, "samples": one.samples, "busy": one.busy, "low": one.low,
                   "high_mhz": one.high_mhz, "low_mhz": one.low_mhz, "hottest_c": one.hottest_c}
                  for one in measured.power],
        "data_pipelines": [{"rank": one.rank, "empty_pct": one.empty_pct, "bottleneck": one.bottleneck,
                            "batch_ms": one.batch_ms} for one in measured.pipelines],
        "hccl_tests": [{"file": test.file, "operation": test.operation, "ranks": test.ranks,
                        "rows": [{"bytes": row.bytes, "time_us": row.time_us, "gb_s": row.gb_s,
                                  "printed_gb_s": row.printed_gb_s, "result": row.result} for row in test.rows]}
                       for test in measured.hccl_tests],
        "ports": [{"device": one.device, "captures": one.captures, "seconds": one.seconds, "changes": one.changes}
                  for one in measured.counters],
        "read": measured.read,
        "bytes_read": measured.bytes_read,
        "left_out": [{"file": name, "reason": reason} for name, reason in measured.left_out],
        "notes": list(view.notes),
    }  # fmt: skip


def spread(group: Sequence[RankTime]) -> float:
    """Largest less smallest computing time, over the mean; above 0.05 a rank is worth a look."""
    times = [time.computing_us for time in group]
    mean = sum(times) / len(times)
    return (max(times) - min(times)) / mean if mean else 0.0


def longest_gaps(view: View, most: int) -> list[Any]:
    """Of all ranks."""
    gaps = (gap for one in view.measured.operators for gap in one.gaps)
    return sorted(gaps, key=lambda gap: (-gap.gap_us, gap.rank))[:most]


def _rank(time: RankTime) -> dict[str, Any]:
    return {"rank": time.rank, "group": time.group, "steps": time.steps, "step_us": time.step_us,
            "computing_us": time.computing_us, "waits_us": time.waits_us, "bubble_us": time.bubble_us,
            "free_us": time.free_us, "overlapped_us": time.overlapped_us,
            "preparing_us": time.preparing_us}  # fmt: skip


def _operator(total: Any) -> dict[str, Any]:
    operator = total.operator
    return {"type": operator.type, "core": operator.core, "count": operator.count, "total_us": operator.total_us,
            "a_step_us": total.a_step_us, "share": total.share, "longest_us": operator.longest_us,
            "cube_share": operator.cube_share, "ranks": total.ranks}  # fmt: skip


def _communication(view: View) -> dict[str, Any]:
    return {
        "axes_us": {axis: {"elapsed_us": elapsed, "waited_us": waited}
                    for axis, (elapsed, waited) in axis_times(view).items()},
        "ranks": [{"rank": one.rank, "elapsed_ms": one.elapsed_ms, "waited_ms": one.waited_ms,
                   "transit_ms": one.transit_ms, "p2p_ms": one.p2p_ms, "others_waited_ms": one.blamed_ms,
                   "last_in": one.last_in, "collectives": one.collectives,
                   "transports": {name: {"mb": mb, "ms": ms, "gb_s": mb / ms}
                                  for name, (mb, ms) in one.transports.items()}} for one in view.measured.waiting],
    }  # fmt: skip
