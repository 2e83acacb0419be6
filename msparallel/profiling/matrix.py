"""Who sent what to whom: communication_matrix.json of ranks, cluster_communication_matrix.json of a cluster.

In: the records of `json_leaves`. Out: a `Link` for each pair of ranks and kind of wire, sums over all operators.

A rank's file names places in the communication group (`2-3`), the cluster's names ranks. A group's own entry `2-2` in
the file of rank 18 says that place 2 is rank 18: that is how places become ranks. Per operator and group the profilers
write `allreduce-total@77` (all transfers) and `-top1`, `-middle`, `-bottom1`: single transfers, which tell the size of
a message (MindSpore: `ascend_communication_viewer.py`; torch_npu writes the same). msprof's own file has every
operator.
"""

from __future__ import annotations

import re
from typing import Any

from msparallel.finding import Evidence
from msparallel.profiling.communication import GROUP, STEP, amount
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.json_leaves import json_leaves
from msparallel.profiling.measured import Link
from msparallel.profiling.rank_names import MOST_RANK, RankNames
from msparallel.profiling.table import Refused, Told

MOST_LINKS = 1_000_000
_PAIR = re.compile(r"^(\d{1,6})-(\d{1,6})$")
_PART = re.compile(r"-(total|top1|middle|bottom[123])$")


class _Sent:
    __slots__ = ("mb", "message_mb", "ms", "place")

    def __init__(self, place: Evidence) -> None:
        self.mb, self.ms, self.message_mb, self.place = 0.0, 0.0, 0.0, place


class Matrix:
    """Collects files, then names ranks."""

    def __init__(self) -> None:
        self.cluster: dict[tuple[int, int, str], _Sent] = {}
        self.local: dict[tuple[str, int, int, str], _Sent] = {}
        self.places: dict[tuple[str, int], int] = {}
        self.steps: set[str] = set()

    def read(self, file: ProfileFile, names: RankNames, told: Told) -> None:
        """Add a file. Raises Refused where it holds no link, or its rest is no JSON."""
        records = 0
        for keys, record, line in json_leaves(file.path, told):
            records += self._add(keys, record, Evidence(file.name, line, " / ".join(keys)[:300]), file, names)
        if not records:
            raise Refused("holds no link between two ranks")

    def _add(self, keys: tuple[str, ...], record: dict[str, Any], place: Evidence, file: ProfileFile,
             names: RankNames) -> int:  # fmt: skip
        pair = _PAIR.match(keys[-1])
        if pair is None:
            raise Refused(f"line {place.line}: {keys[-1][:40]!r} is no pair of ranks as 0-1")
        step, operator, of_cluster = "", None, False
        for key in keys[:-1]:
            if GROUP.match(key):
                of_cluster = True
            elif STEP.match(key):
                step = key
            elif key not in ("p2p", "collective"):
                operator = key
        if operator is None or operator.startswith("Total Op Info"):
            return 0
        source, target = int(pair[1]), int(pair[2])
        name, _, group = operator.rpartition("@")
        if source == target:
            if not of_cluster:
                self.places[group, source] = names.rank(file, None)
            return 1
        transport = record.get("Transport Type")
        if not isinstance(transport, str) or not transport:
            raise Refused(f"line {place.line}: a link without a Transport Type")
        mb, ms = amount(record, "Transit Size(MB)", place), amount(record, "Transit Time(ms)", place)
        self.steps.add(step)
        key = (source, target, transport[:20]) if of_cluster else (group, source, target, transport[:20])
        sums: dict[Any, _Sent] = self.cluster if of_cluster else self.local
        if len(sums) >= MOST_LINKS:
            raise Refused(f"has more than {MOST_LINKS:,} links")
        sent = sums.get(key)
        if sent is None:
            sent = sums[key] = _Sent(place)
        part = _PART.search(name)
        if part is None or part[1] == "total":
            sent.mb += mb
            sent.ms += ms
        if part is None or part[1] != "total":
            sent.message_mb = max(sent.message_mb, mb)
        return 1

    def links(self) -> tuple[tuple[Link, ...], int]:
        """Links between ranks, and how many could not be given ranks."""
        found: dict[tuple[int, int, str], _Sent] = dict(self.cluster)
        lost = 0
        if not self.cluster:
            for (group, source, target, transport), sent in self.local.items():
                ends = self.places.get((group, source)), self.places.get((group, target))
                if ends[0] is None or ends[1] is None or ends[0] == ends[1]:
                    lost += 1
                    continue
                key = ends[0], ends[1], transport
                whole = found.get(key)
                if whole is None:
                    found[key] = sent
                else:
                    whole.mb += sent.mb
                    whole.ms += sent.ms
                    whole.message_mb = max(whole.message_mb, sent.message_mb)
        links = [Link(source=source, target=target, transport=transport, mb=sent.mb, ms=sent.ms,
                      message_mb=sent.message_mb or None,
                      place=Evidence(sent.place.file, sent.place.line,
                                  f"{source}-{target} {transport}: {sent.mb:.6g} MB in {sent.ms:.6g} ms"))
                 for (source, target, transport), sent in sorted(found.items())
                 if sent.mb > 0 and sent.ms > 0 and max(source, target) <= MOST_RANK]  # fmt: skip
        return tuple(links), lost
