"""A job of a trace, and the cluster that it asks for devices of.

In: a row. Out: Job. What has to be placed is a *shape*: `(nodes, devices_per_node)`, so many different nodes with so
many free devices each. A gang has one shape and needs all of it at once; a job that is no gang is replicas of one node,
each of which starts, ends and gives way alone.

>>> job = Job(name="a", submit_s=0, nodes=2, devices_per_node=8, duration_s=3600)
>>> job.devices, job.pieces
(16, ((2, 8),))
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("training", "inference", "evaluation", "interactive")
"""What the column `class` may say."""
SPARE_KIND = "inference"
"""The class that stands by, and that utilisation is told with and without."""

Shape = tuple[int, int]
"""Different nodes, devices on each."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes that are alike."""

    nodes: int
    devices_per_node: int

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    def __str__(self) -> str:
        return f"{self.nodes} node{'s' * (self.nodes > 1)} x {self.devices_per_node} devices"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Attributes:
    submit_s: when it is submitted.
    duration_s: how long it computes with all its devices, without any restart.
    kind: the column `class`.
    priority: the higher first.
    gang: all devices at once or none; otherwise every node's share is a replica of its own.
    checkpoint_interval_s: seconds of work between checkpoints; None keeps nothing.
    restart_s: what a start costs after an eviction, before work goes on.
    estimate_s: what its user says that it takes, at least duration_s; backfilling trusts it.
    line: of the file.
    """

    name: str
    submit_s: float
    nodes: int
    devices_per_node: int
    duration_s: float
    kind: str = "training"
    priority: int = 0
    queue: str = "default"
    gang: bool = True
    checkpoint_interval_s: float | None = None
    restart_s: float = 0.0
    estimate_s: float | None = None
    line: int = 0

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def limit_s(self) -> float:
        """The estimate, or where there is none the duration."""
        return self.duration_s if self.estimate_s is None else self.estimate_s

    @property
    def pieces(self) -> tuple[Shape, ...]:
        """What is placed, each by itself."""
        return ((self.nodes, self.devices_per_node),) if self.gang else ((1, self.devices_per_node),) * self.nodes
