"""What a policy sees when it decides, and what it answers.

In: pieces that wait and run, free devices. Out: Decisions. A piece is a whole gang or one replica. Every piece is in
one of two lanes: *firm*, or *spare* where the policy lets it stand by. The firm lane is decided on as if nothing spare
were there (`firm_nodes`); what a firm piece takes is cleared of spare runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msparallel.schedule.queue.job import Cluster, Job, Shape
from msparallel.schedule.queue.nodes import Nodes

_WHOLE = 1e-9
"""A checkpoint counts whose moment is the moment of the eviction, up to rounding."""


class Piece:
    """A gang, or one replica, on its way through the replay.

    Attributes:
        key: its place in the line, which no other piece has; smaller is earlier.
        saved_s: work that no eviction can take any more.
        starts: how often it was started.
    """

    __slots__ = ("devices", "job", "key", "saved_s", "shape", "spare", "starts")

    def __init__(self, job: Job, shape: Shape, key: tuple[Any, ...], spare: bool):
        self.job, self.shape, self.key, self.spare = job, shape, key, spare
        self.devices = shape[0] * shape[1]
        self.saved_s, self.starts = 0.0, 0

    @property
    def restart_s(self) -> float:
        """What its next start costs."""
        return self.job.restart_s if self.starts else 0.0


class Run:
    """A piece that runs.

    Attributes:
        works_from_s: when the restart is over.
        limit_s: when it ends at the latest, as far as a scheduler can know: by its estimate.
    """

    __slots__ = ("limit_s", "nodes", "order", "piece", "process", "started_s", "works_from_s")

    def __init__(self, piece: Piece, nodes: tuple[int, ...], now: float, order: int):
        self.piece, self.nodes, self.started_s, self.order = piece, nodes, now, order
        self.works_from_s = now + piece.restart_s
        self.limit_s = self.works_from_s + piece.job.limit_s - piece.saved_s
        self.process: Any = None

    @property
    def takes_s(self) -> float:
        """From its start to its end, undisturbed."""
        return self.works_from_s - self.started_s + self.piece.job.duration_s - self.piece.saved_s

    def progress_s(self, now: float) -> float:
        """Work done, that of earlier runs included where it was saved."""
        return self.piece.saved_s + max(0.0, now - self.works_from_s)

    def kept_s(self, now: float) -> float:
        """Of it, what an eviction now leaves."""
        interval, done = self.piece.job.checkpoint_interval_s, self.progress_s(now)
        if interval is None:
            return 0.0
        return max(self.piece.saved_s, min(done, math.floor(done / interval + _WHOLE) * interval))

    def cost(self, now: float) -> float:
        """Device-seconds that an eviction now costs: work after the last checkpoint, and the restart."""
        return self.piece.devices * (self.progress_s(now) - self.kept_s(now) + self.piece.job.restart_s)


@dataclass(frozen=True)
class Decision:
    """Start `piece` on `nodes`, once `evict` have given way."""

    piece: Piece
    nodes: tuple[int, ...]
    evict: tuple[Run, ...] = ()


class Lane:
    """Attributes:
    waiting: pieces, by their key.
    running: runs, by limit_s.
    shapes: of waiting pieces, how many of each.
    """

    def __init__(self) -> None:
        self.waiting: list[Piece] = []
        self.running: list[Run] = []
        self.shapes: Counter[Shape] = Counter()

    def wait(self, piece: Piece) -> None:
        insort(self.waiting, piece, key=_key)
        self.shapes[piece.shape] += 1

    def start(self, run: Run) -> None:
        piece = run.piece
        del self.waiting[bisect_left(self.waiting, piece.key, key=_key)]
        self.shapes[piece.shape] -= 1
        if not self.shapes[piece.shape]:
            del self.shapes[piece.shape]
        insort(self.running, run, key=_limit)

    def leave(self, run: Run) -> None:
        del self.running[bisect_left(self.running, _limit(run), key=_limit)]


class State:
    """Attributes:
    now: seconds since the first submission.
    nodes: devices that are free.
    firm_nodes: devices that are free or held by a spare run; `nodes` itself where the policy has nothing spare.
    """

    def __init__(self, cluster: Cluster, has_spare: bool):
        self.cluster, self.now = cluster, 0.0
        self.firm, self.spare = Lane(), Lane()
        self.nodes = Nodes(cluster.nodes, cluster.devices_per_node)
        self.firm_nodes = Nodes(cluster.nodes, cluster.devices_per_node) if has_spare else self.nodes
        self._spare_by_node: dict[int, list[Run]] = {}
        self._started = 0

    def lane(self, piece: Piece) -> Lane:
        return self.spare if piece.spare else self.firm

    def limit_s(self, piece: Piece) -> float:
        """When it would end at the latest if it started now."""
        return self.now + piece.restart_s + piece.job.limit_s - piece.saved_s

    def on_firm(self, piece: Piece, nodes: tuple[int, ...]) -> Decision:
        """A decision for a firm piece whose nodes were found in `firm_nodes`: spare runs that are in its way give
        way, the cheapest first, and none that need not."""
        if self.firm_nodes is self.nodes:
            return Decision(piece, nodes)
        missing = ((node, piece.shape[1] - self.nodes.free[node]) for node in nodes)
        short = {node: devices for node, devices in missing if devices > 0}
        there = {run for node in short for run in self._spare_by_node.get(node, ())}
        chosen: list[Run] = []
        for run in sorted(there, key=lambda run: (run.cost(self.now), -run.order)):
            if any(short.get(node, 0) > 0 for node in run.nodes):
                _lessen(short, run, run.piece.shape[1])
                chosen.append(run)
        needed = []
        for run in reversed(chosen):
            _lessen(short, run, -run.piece.shape[1])
            if any(devices > 0 for devices in short.values()):
                _lessen(short, run, run.piece.shape[1])
                needed.append(run)
        return Decision(piece, nodes, tuple(reversed(needed)))

    def start(self, decision: Decision) -> Run:
        """The piece leaves the line; its devices are taken."""
        piece, nodes = decision.piece, decision.nodes
        run = Run(piece, nodes, self.now, self._started)
        self._started += 1
        piece.starts += 1
        self.lane(piece).start(run)
        for pool in self._pools(piece):
            pool.take(nodes, piece.shape[1])
        if piece.spare:
            for node in nodes:
                self._spare_by_node.setdefault(node, []).append(run)
        return run

    def leave(self, run: Run) -> None:
        """The run is over: its devices are free."""
        self.lane(run.piece).leave(run)
        for pool in self._pools(run.piece):
            pool.give_back(run.nodes, run.piece.shape[1])
        if run.piece.spare:
            for node in run.nodes:
                self._spare_by_node[node].remove(run)

    def _pools(self, piece: Piece) -> Iterator[Nodes]:
        yield self.nodes
        if self.firm_nodes is not self.nodes and not piece.spare:
            yield self.firm_nodes


def _lessen(short: dict[int, int], run: Run, devices: int) -> None:
    for node in run.nodes:
        if node in short:
            short[node] -= devices


Decide = Callable[[State], Iterator[Decision]]


def _key(piece: Piece) -> tuple[Any, ...]:
    return piece.key


def _limit(run: Run) -> tuple[float, int]:
    return run.limit_s, run.order
