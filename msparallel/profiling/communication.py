"""Waiting in collectives: communication.json of ranks, cluster_communication.json of a cluster.

In: the records of `json_leaves`, file by file. Out: a `Waiting` for each rank: what it waited, and what others waited
for it. What stands around a record is told by its form, since the files differ in order: `step3`, `p2p` or
`collective`, a group of ranks `(0, 1)`, an operator `hcom_allReduce__5_0_1@77`, a rank `12`.

Who holds a collective up: the rank that waits least in it came last, and the others waited for it. Stamps of different
nodes are not compared, their clocks differ.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from msparallel.finding import Evidence
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.json_leaves import json_leaves
from msparallel.profiling.measured import Waiting
from msparallel.profiling.rank_names import MOST_RANK, RankNames
from msparallel.profiling.table import LARGEST, Refused, Told

MOST_INSTANCES = 2_000_000
"""Ranks times collectives that are compared; further ones count in the sums only."""
TRANSPORTS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
GROUP = re.compile(r"^\(\s*\d+(?:\s*,\s*\d+)*\s*,?\s*\)$")
STEP = re.compile(r"^step\s*\w{0,20}$", re.I)
_RECEIVES = re.compile(r"send|receive|recv", re.I)


@dataclass
class _Sums:
    """Of one rank."""

    elapsed: float = 0.0
    waited: float = 0.0
    transit: float = 0.0
    p2p: float = 0.0
    collectives: int = 0
    by_group: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    transports: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    worst: tuple[float, Evidence] | None = None


class Communication:
    """Collects files, then compares ranks."""

    def __init__(self) -> None:
        self.ranks: dict[int, _Sums] = defaultdict(_Sums)
        self.instances: dict[tuple[str, str], list[tuple[int, float]]] = {}
        self.members: dict[str, set[int]] = defaultdict(set)
        self.steps: set[str] = set()
        self._count = 0
        self.compared_all = True

    def read(self, file: ProfileFile, names: RankNames, told: Told) -> None:
        """Add a file. Raises Refused where it holds no such record, or its rest is no JSON."""
        count = 0
        for keys, record, line in json_leaves(file.path, told):
            count += self._add(keys, record, Evidence(file.name, line, " / ".join(keys)[:300]), file, names)
        if not count:
            raise Refused("holds no Communication Time Info of an operator")

    def _add(self, keys: tuple[str, ...], record: dict[str, Any], place: Evidence, file: ProfileFile,
             names: RankNames) -> int:  # fmt: skip
        step, group, operator, rank, p2p = "", None, None, None, False
        for key in keys:
            if GROUP.match(key):
                group = key
            elif key in ("p2p", "collective"):
                p2p = key == "p2p"
            elif key.isdecimal() and len(key) <= 6 and operator is not None:
                rank = int(key)
            elif STEP.match(key):
                step = key
            else:
                operator = key
        times = record.get("Communication Time Info")
        if operator is None or operator.startswith("Total Op Info") or not isinstance(times, dict):
            return 0
        if rank is None:
            rank = names.rank(file, None)
        if rank > MOST_RANK:
            raise Refused(f"line {place.line}: {rank} is no rank")
        elapsed, waited, transit = (amount(times, name, place)
                                    for name in ("Elapse Time(ms)", "Wait Time(ms)", "Transit Time(ms)"))  # fmt: skip
        self.steps.add(step)
        sums = self.ranks[rank]
        self._bandwidth(sums, record.get("Communication Bandwidth Info"), place)
        domain = group or operator.rpartition("@")[2]
        self.members[domain].add(rank)
        if p2p or _RECEIVES.search(operator.partition("@")[0]):
            sums.p2p += elapsed
            return 1
        sums.elapsed += elapsed
        sums.waited += waited
        sums.transit += transit
        sums.collectives += 1
        sums.by_group[domain][0] += elapsed
        sums.by_group[domain][1] += waited
        if sums.worst is None or waited > sums.worst[0]:
            told = f"{place.text}: waits {waited:g} of {elapsed:g} ms"
            sums.worst = waited, Evidence(place.file, place.line, told[:300])
        if self._count < MOST_INSTANCES:
            self._count += 1
            self.instances.setdefault((step, operator), []).append((rank, waited))
        else:
            self.compared_all = False
        return 1

    def _bandwidth(self, sums: _Sums, info: Any, place: Evidence) -> None:
        if not isinstance(info, dict):
            return
        for name in TRANSPORTS:
            one = info.get(name)
            if isinstance(one, dict):
                sums.transports[name][0] += amount(one, "Transit Size(MB)", place)
                sums.transports[name][1] += amount(one, "Transit Time(ms)", place)

    def waiting(self) -> tuple[Waiting, ...]:
        """All ranks, after all files."""
        blamed: dict[int, float] = defaultdict(float)
        last: dict[int, int] = defaultdict(int)
        for waits in self.instances.values():
            if len({rank for rank, _ in waits}) < 2:
                continue
            rank, own = min(waits, key=lambda pair: (pair[1], pair[0]))
            others = median(wait for other, wait in waits if other != rank)
            blamed[rank] += max(0.0, others - own)
            last[rank] += 1
        found = []
        for rank, sums in sorted(self.ranks.items()):
            groups: dict[tuple[int, ...], tuple[float, float]] = {}
            for domain, (elapsed, waited) in sums.by_group.items():
                known = tuple(sorted(self.members[domain]))
                before = groups.get(known, (0.0, 0.0))
                groups[known] = before[0] + elapsed, before[1] + waited
            transports = {name: (size, ms) for name, (size, ms) in sums.transports.items() if size > 0 and ms > 0}
            found.append(Waiting(
                rank=rank, elapsed_ms=sums.elapsed, waited_ms=sums.waited, transit_ms=sums.transit,
                blamed_ms=blamed[rank], last_in=last[rank], collectives=sums.collectives, p2p_ms=sums.p2p,
                by_group=groups, transports=transports, worst=sums.worst[1] if sums.worst else None,
            ))  # fmt: skip
        return tuple(found)


def amount(values: dict[str, Any], name: str, place: Evidence) -> float:
    """A number of a record from 0; one that is not there is 0. Raises Refused for anything else."""
    value = values.get(name, 0)
    if value is None or value == "":
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"line {place.line}: {name} is {str(value)[:40]!r}, no number")
    if not math.isfinite(value) or not 0 <= value < LARGEST:
        raise Refused(f"line {place.line}: {name} is {str(value)[:40]}, out of range")
    return float(value)
