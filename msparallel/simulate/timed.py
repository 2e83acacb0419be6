"""How long a step takes on the recipe's machine, and what is alive meanwhile.

In: a Plan, and the programs of its ranks. Out: `Timed`: the timeline by the profile of `cluster.hardware`, and each
rank's memory over time.

>>> timed = time_recipe(resolve(load_recipe("llama2_7b_dp2_tp2_pp2")))
>>> timed.timeline.step_time_s, timed.timeline.busiest_link.name
(3.1, 'HCCS')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from msparallel.compile.dryrun import check_side_files
from msparallel.compile.rank_report import LARGEST_TENSORS
from msparallel.compile.ranks import temporary_folder
from msparallel.plan import Plan
from msparallel.simulate.cost import DeviceCost
from msparallel.simulate.memory import MemoryCurve, memory_over_time
from msparallel.simulate.program import RankProgram, compiled_programs
from msparallel.simulate.shrink import check_trains
from msparallel.simulate.timeline import Timeline, simulate_step


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Attributes:
    plan: of what was timed.
    memory: rank -> bytes alive over the step, with the largest tensors at the peak.
    """

    plan: Plan
    programs: tuple[RankProgram, ...]
    timeline: Timeline
    memory: Mapping[int, MemoryCurve]

    def to_json(self) -> dict[str, Any]:
        """The part of `simulate --json` that is about time."""
        line = self.timeline
        return {
            "hardware": self.plan.hardware.name,
            "step_time_s": line.step_time_s,
            "bubble": max(times.bubble for times in line.ranks),
            "exposed_s": {"+".join(axes): seconds for axes, seconds in line.exposed_s.items()},
            "bytes_by_link": {link.name: link.bytes for link in line.links},
            "busiest_link": line.busiest_link.name if line.busiest_link else None,
            "ranks": [
                {
                    "rank": times.rank,
                    "busy_s": times.busy_s,
                    "bubble_s": times.bubble_s,
                    "exposed_s": {"+".join(axes): seconds for axes, seconds in times.exposed_s.items()},
                    "peak_live_bytes": self.memory[times.rank].peak_bytes,
                    "peak_s": self.memory[times.rank].peak_s,
                    "peak_tensors": [
                        asdict(tensor) for tensor in self.memory[times.rank].peak.tensors[:LARGEST_TENSORS]
                    ],
                }
                for times in line.ranks
            ],
        }


def timed(plan: Plan, programs: Sequence[RankProgram]) -> Timed:
    """Walk the step of ranks that are compiled; those of others are taken to be like them."""
    graphs = {p.rank: [(graph.execution, graph.executions) for graph in p.graphs] for p in programs}
    cost = DeviceCost(plan.hardware, devices_per_node=plan.devices_per_node)
    line = simulate_step(graphs, mesh=plan.mesh, cost=cost)
    return Timed(
        plan=plan,
        programs=tuple(programs),
        timeline=line,
        memory={rank: memory_over_time(graphs[rank], line, rank=rank) for rank in graphs},
    )


def time_recipe(plan: Plan, *, progress: bool = True) -> Timed:
    """Compile one rank of each stage, the recipe as it is, and walk its step.

    Raises:
        UserError: a recipe that does not train.
        RunError: a compilation that failed.
    """
    check_trains(plan)
    check_side_files(plan)
    ranks = [plan.mesh.rank(pp=stage) for stage in range(plan.mesh.pp)]
    with temporary_folder() as folder:
        programs = compiled_programs(plan, ranks, folder, progress)
    return timed(plan, programs)
