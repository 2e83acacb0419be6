"""Folders as profilers write them, made up from the formats: a cluster of ranks with known faults.

In: a mesh, times, and what is wrong with which rank. Out: files below a folder: for each rank an ASCEND_PROFILER_OUTPUT
with step_trace_time.csv, communication.json, communication_matrix.json and, where they are asked for,
kernel_details.csv and operator_memory.csv. Nothing in them was measured. Random numbers come from a seed, so the same
cluster is written in the same bytes. docs/examples/profile is `EXAMPLE`.

>>> Cluster(Mesh(dp=64), slow=(11,)).write(tmp_path)  # doctest: +SKIP
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from msparallel.mesh import Mesh

STEP_HEADER = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)
KERNEL_HEADER = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,Input Shapes,cube_utilization(%)"
)
MEMORY_HEADER = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),Active Duration(us),"
    "Allocation Total Allocated(MB),Allocation Total Reserved(MB),Allocation Total Active(MB),Stream Ptr,Device Type"
)
START_US = 1736413971558972.0
SHAPES = '"""4096,4096;4096,4096"""'


@dataclass(frozen=True)
class Operator:
    """A launch: milliseconds, and percent of the matrix unit."""

    name: str
    type: str
    core: str
    ms: float
    cube: float = 0.0


PLAIN = tuple(Operator(f"MatMul{number}", "MatMulV3", "AI_CORE", 0.5, 82.5) for number in range(40)) + (
    Operator("Unique99", "Unique", "AI_CPU", 0.9),
)


@dataclass(frozen=True)
class Cluster:
    """Attributes:
    slow: ranks that compute longer, by `extra_ms`.
    late: a rank whose host launches late, by as much.
    starved: a rank that waits for data as long.
    link: (source, target) of a slow link between servers.
    operators: of a step; none: no kernel_details.csv.
    """

    mesh: Mesh = Mesh(dp=64)
    steps: int = 3
    slow: tuple[int, ...] = ()
    late: int | None = None
    starved: int | None = None
    link: tuple[int, int] | None = None
    per_node: int = 8
    compute_ms: float = 800.0
    waits_ms: float = 90.0
    free_ms: float = 20.0
    bubble_ms: float = 0.0
    extra_ms: float = 120.0
    operators: tuple[Operator, ...] = ()
    memory: bool = False
    seed: int = 1

    def write(self, root: Path) -> Path:
        """All files; returns the folder."""
        draw = random.Random(self.seed)
        for rank in range(self.mesh.size):
            folder = root / f"rank_{rank}" / "ASCEND_PROFILER_OUTPUT"
            folder.mkdir(parents=True)
            early = max(map(self._extra, range(self.mesh.size))) - self._extra(rank)
            self._write(folder / "step_trace_time.csv", self._steps(rank, early, draw))
            self._write(folder / "communication.json", [json.dumps(self._communication(rank, early, draw), indent=1)])
            self._write(folder / "communication_matrix.json", [json.dumps(self._matrix(rank, draw), indent=1)])
            if self.operators:
                self._write(folder / "kernel_details.csv", self._kernels(rank))
            if self.memory:
                self._write(folder / "operator_memory.csv", self._memory(rank))
            if rank == self.starved:
                self._write(folder / f"minddata_pipeline_summary_{rank}.csv", DATASET)
        return root

    @staticmethod
    def _write(path: Path, lines: list[str]) -> None:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _extra(self, rank: int) -> float:
        return self.extra_ms if rank in (*self.slow, self.late, self.starved) else 0.0

    def _steps(self, rank: int, early: float, draw: random.Random) -> list[str]:
        rows = [STEP_HEADER]
        for step in range(1, self.steps + 1):
            compute = self.compute_ms * draw.uniform(0.995, 1.005) + self.extra_ms * (rank in self.slow)
            free = self.free_ms * draw.uniform(0.95, 1.05) + self.extra_ms * (rank in (self.late, self.starved))
            waits = self.waits_ms * draw.uniform(0.97, 1.03) + early + self.bubble_ms
            prepares = 0.7 * self.free_ms + self.extra_ms * (rank == self.starved)
            hidden, bubble = 60.0, self.bubble_ms
            parts = (compute, waits, hidden, waits + hidden, free, compute + waits + free - bubble, bubble,
                     waits - bubble, prepares)  # fmt: skip
            rows.append(",".join([str(rank % self.per_node), str(step), *(f"{part * 1000:.3f}" for part in parts)]))
        return rows

    def _groups(self, rank: int) -> list[tuple[str, list[int]]]:
        """(id, ranks) of every communication group that a rank is in."""
        found = []
        for axis in ("tp", "cp", "dp"):
            ranks = self.mesh.group_of(rank, axis)
            if len(ranks) > 1:
                found.append((f"{1000 * (ord(axis[0]) - 90) + ranks[0]}", ranks))
        return found

    def _communication(self, rank: int, early: float, draw: random.Random) -> dict[str, object]:
        steps: dict[str, object] = {}
        groups = self._groups(rank)
        for step in range(1, self.steps + 1):
            operators = {}
            for group, _ in groups:
                for number in range(4):
                    waited = early / 4 / len(groups) + draw.uniform(0.05, 0.2)
                    operators[f"hcom_allReduce__{group[-3:]}_{number}_1@{group}"] = self._collective(waited)
            steps[f"step{step}"] = {"p2p": {}, "collective": operators}
        return steps

    @staticmethod
    def _collective(waited: float) -> dict[str, object]:
        nothing = {"Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0, "Large Packet Ratio": 0,
                   "Size Distribution": {}}  # fmt: skip
        return {
            "Communication Time Info": {
                "Start Timestamp(us)": START_US, "Elapse Time(ms)": round(20 + waited, 4), "Transit Time(ms)": 18.0,
                "Wait Time(ms)": round(waited, 4), "Synchronization Time(ms)": round(waited, 4), "Idle Time(ms)": 2.0,
                "Wait Time Ratio": 0.1, "Synchronization Time Ratio": 0.1,
            },
            "Communication Bandwidth Info": {
                "RDMA": {**nothing, "Transit Size(MB)": 320.0, "Transit Time(ms)": 18.0, "Bandwidth(GB/s)": 17.7778},
                "SIO": nothing,
            },
        }  # fmt: skip

    def _matrix(self, rank: int, draw: random.Random) -> dict[str, object]:
        operators: dict[str, object] = {}
        for group, ranks in self._groups(rank):
            own = ranks.index(rank)  # a rank's own file names places in the group
            links = {f"{own}-{own}": self._link("LOCAL", 600.0)}
            for place, other in enumerate(ranks):
                if other == rank:
                    continue
                if other // self.per_node == rank // self.per_node:
                    links[f"{own}-{place}"] = self._link("HCCS", 19.5 + draw.uniform(-0.5, 0.5))
                elif other % self.per_node == rank % self.per_node:
                    speed = 6.0 if (rank, other) == self.link else 17.5 + draw.uniform(-0.7, 0.7)
                    links[f"{own}-{place}"] = self._link("RDMA", speed)
            small = {key: {**link, "Transit Size(MB)": 0.004, "Transit Time(ms)": 0.02} for key, link in links.items()}
            operators |= {f"allreduce-top1@{group}": links, f"allreduce-total@{group}": links,
                          f"broadcast-total@{group}": small}  # fmt: skip
        return {f"step{step}": {"p2p": {}, "collective": operators} for step in range(1, self.steps + 1)}

    @staticmethod
    def _link(transport: str, gb_s: float) -> dict[str, object]:
        return {"Transport Type": transport, "Transit Size(MB)": 40.0, "Transit Time(ms)": round(40.0 / gb_s, 5),
                "Bandwidth(GB/s)": 0.0, "op_name": "hcom_allReduce__5_0_1"}  # fmt: skip

    def _kernels(self, rank: int) -> list[str]:
        rows, now = [KERNEL_HEADER], START_US
        slower = 1 + self.extra_ms / self.compute_ms if rank in self.slow else 1.0
        for step in range(1, self.steps + 1):
            for number, one in enumerate(self.operators):
                took = one.ms * 1000 * (slower if one.core != "AI_CPU" else 1)
                rows.append(f'{step},{rank % self.per_node},4294967295,{number},2,{one.name},{one.type},dynamic,'
                            f'{one.core},"{now:.3f}\t",{took:.3f},2,20,0,NO,{SHAPES},{one.cube}')  # fmt: skip
                now += took + 5
            now += 5000 if rank == self.late else 5
        return rows

    def _memory(self, rank: int) -> list[str]:
        rows, held = [MEMORY_HEADER], 0.0
        for number, (name, mb, keeps) in enumerate((
            ("model.layers", 14_000, True), ("optimizer", 21_000, True), ("FlashAttentionScore", 9_000, False),
            ("logits", 2_000, False), ("MatMul workspace", 700, False),
        )):  # fmt: skip
            held += mb
            end = "" if keeps else f"{START_US + 9000 + number:.3f}"
            rows.append(f"{name},{mb * 1024},{START_US + number * 1000:.3f},{end},{end},{'' if keeps else 5000},,"
                        f"{held},{held * 1.05},{held},,NPU:{rank % self.per_node}")  # fmt: skip
        return rows


DATASET = [
    "pipeline_ops,DeviceQueue(id=0),Batch(id=1),Map(id=2)", "op_names,DeviceQueue,Batch,Map", "op_ids,0,1,2",
    "num_workers,1,8,8", "queue_average_size,-1,0.4,3.1", "queue_utilization_pct,-1,2.5,19.4",
    "queue_empty_freq_pct,-1,88.0,10.0", "children_ids,[1],[2],[]", "parent_id,-1,0,1", "avg_cpu_pct,0.1,2.0,80.1",
    "per_batch_time,812.5", "bottleneck_warning,Map(id=2)", "bottleneck_suggestion,more workers",
]  # fmt: skip

EXAMPLE = Cluster(
    mesh=Mesh(pp=2, dp=2, tp=2), steps=2, slow=(5,), link=(1, 3), per_node=2, compute_ms=2450.0, waits_ms=1150.0,
    free_ms=90.0, bubble_ms=520.0, extra_ms=310.0, memory=True,
    operators=(
        *(Operator(f"MatMul{number}", "MatMulV3", "AI_CORE", 110.0, 84.0) for number in range(10)),
        *(Operator(f"MatMulGrad{number}", "MatMulV2", "AI_CORE", 70.0, 52.0) for number in range(6)),
        *(Operator(f"FlashAttentionScore{number}", "FlashAttentionScore", "MIX_AIC", 90.0, 61.0)
          for number in range(4)),
        *(Operator(f"RmsNorm{number}", "RmsNorm", "AI_VECTOR_CORE", 35.0) for number in range(8)),
        Operator("Unique0", "Unique", "AI_CPU", 46.0),
    ),
)  # fmt: skip
"""The folder of docs/examples/profile: made up, for llama2_7b_dp2_tp2_pp2 on four servers of two devices."""
