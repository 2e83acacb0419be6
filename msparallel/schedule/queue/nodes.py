"""Free devices of every node.

In: shapes to find room for, devices that are taken and given back. Out: the nodes that a shape gets, or None: best
fit, that is the fullest nodes that still have room, of those the first. A share of a node never straddles two nodes, so
free devices that are scattered can be too few for a job that they would suffice for in sum.

>>> nodes = Nodes(2, 8)
>>> nodes.take((0,), 6)
>>> nodes.find((1, 2)), nodes.find((1, 4)), nodes.find((2, 4))
((0,), (1,), None)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from msparallel.schedule.queue.job import Shape


class Nodes:
    """Attributes:
    free: free devices, by node.
    total: their sum.
    """

    def __init__(self, count: int, devices: int):
        self.free = [devices] * count
        self.total = count * devices
        self._devices = devices
        self._by_free: list[list[int]] = [[] for _ in range(devices)]
        self._by_free.append(list(range(count)))

    def find(self, shape: Shape) -> tuple[int, ...] | None:
        """Nodes with room for a shape, or None."""
        count, share = shape
        if count * share > self.total:
            return None
        found: list[int] = []
        for alike in self._by_free[share:]:
            found += alike[: count - len(found)]
            if len(found) == count:
                return tuple(found)
        return None

    def take(self, nodes: Sequence[int], share: int) -> None:
        """Raises ValueError where a node has fewer free devices."""
        for node in nodes:
            self._change(node, -share)

    def give_back(self, nodes: Sequence[int], share: int) -> None:
        """Raises ValueError where a node would have more than it is made of."""
        for node in nodes:
            self._change(node, share)

    def _change(self, node: int, by: int) -> None:
        before = self.free[node]
        after = before + by
        if not 0 <= after <= self._devices:
            raise ValueError(f"node {node}: {before} free devices {by:+d}, of {self._devices}")
        alike = self._by_free[before]
        del alike[bisect_left(alike, node)]
        insort(self._by_free[after], node)
        self.free[node] = after
        self.total += by


def best_fit(free: Sequence[int], shape: Shape) -> tuple[int, ...] | None:
    """The same as `Nodes.find`, of any list of free devices by node.

    >>> best_fit([2, 8, 4], (2, 2))
    (0, 2)
    """
    count, share = shape
    room = sorted((devices, node) for node, devices in enumerate(free) if devices >= share)
    return tuple(node for _, node in room[:count]) if len(room) >= count else None
