"""Rules about wires between ranks, from the matrix of who sent what to whom.

In: a View. Out: Findings. A link is compared with links of its own kind that carry messages of its own size, since a
small message is slow on any wire; a hardware profile adds what the wire should reach.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from msparallel.hardware import Hardware
from msparallel.profiling.finding import Finding, percent
from msparallel.profiling.measured import Link
from msparallel.profiling.view import View

SLOW = 0.8
"""Of the median of links like it."""
LEAST_MB = 1.0
"""A link with smaller messages says more about latency than about the wire."""
LEAST_PEERS = 3
SATURATED_MB = 16.0
WELL_BELOW = 0.5
"""Of what the profile says that collectives reach."""
MOST_SHOWN = 5
_WIRES = {"RDMA": ("RoCE",), "HCCS": ("HCCS", "UB"), "HCCS_SW": ("HCCS", "UB"), "SIO": ("SIO",),
          "PCIE": ("PCIe",)}  # fmt: skip
"""Transport as the profilers call it -> links of a hardware profile."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Links over one kind of wire with messages that are worth looking at.

    Attributes:
        expected_gb_s: what a collective should reach between two devices; None without a hardware profile.
    """

    transport: str
    count: int
    median_gb_s: float
    lowest_gb_s: float
    highest_gb_s: float
    total_mb: float
    expected_gb_s: float | None


def link_kinds(view: View) -> list[Kind]:
    """Every kind of wire in the measurements, busiest first."""
    groups: dict[str, list[Link]] = defaultdict(list)
    for link in view.measured.links:
        groups[link.transport].append(link)
    found = []
    for transport, links in groups.items():
        large = [link for link in links if _size_mb(link) >= LEAST_MB] or links
        speeds = [link.gb_s for link in large]
        found.append(Kind(transport=transport, count=len(links), median_gb_s=median(speeds), lowest_gb_s=min(speeds),
                          highest_gb_s=max(speeds), total_mb=sum(link.mb for link in links),
                          expected_gb_s=expected_gb_s(view.hardware, transport)))  # fmt: skip
    return sorted(found, key=lambda kind: (-kind.total_mb, kind.transport))


def expected_gb_s(hardware: Hardware | None, transport: str) -> float | None:
    """What a message between two devices should reach; 1e9 bytes a second.

    A mesh has a wire to each of the others, so one pair has one part of the bandwidth; a switch gives all of it.
    """
    if hardware is None:
        return None
    for link in hardware.links:
        if link.name in _WIRES.get(transport.upper(), ()):
            wires = link.joins - 1 if link.topology == "mesh" and link.joins else 1
            return link.bandwidth_gb_s / wires * link.efficiency
    return None


def _size_mb(link: Link) -> float:
    return link.message_mb or link.mb


def slow_links(view: View) -> list[Finding]:
    """Links well below others of their kind and message size."""
    buckets: dict[tuple[str, int], list[Link]] = defaultdict(list)
    for link in view.measured.links:
        if _size_mb(link) >= LEAST_MB:
            buckets[link.transport, round(math.log2(_size_mb(link)))].append(link)
    medians: dict[tuple[str, int], float | None] = {}
    for transport, size in buckets:
        peers = [link.gb_s for near in (size - 1, size, size + 1) for link in buckets.get((transport, near), ())]
        medians[transport, size] = median(peers) if len(peers) > LEAST_PEERS else None
    slow: list[tuple[float, float, Link]] = []
    for key, links in buckets.items():
        middle = medians[key]
        if middle is not None:
            slow += [(link.ms - link.mb / middle, middle, link) for link in links if link.gb_s < SLOW * middle]
    slow.sort(key=lambda one: (-one[0], one[2].source, one[2].target))
    return [_slow_link(view, *one, count=len(slow)) for one in slow[:MOST_SHOWN]]


def _slow_link(view: View, extra_ms: float, middle: float, link: Link, *, count: int) -> Finding:
    steps = max(1, view.measured.link_steps)
    waits = [time.waits_us + time.bubble_us for time in view.times]
    extra_us = min([extra_ms * 1e3 / steps, *([max(waits)] if waits else [])])
    size = f"messages of {link.message_mb:.3g} MB" if link.message_mb else f"{link.mb:.3g} MB in all"
    expected = expected_gb_s(view.hardware, link.transport)
    should = f" {view.hardware.name} should reach {expected:.3g}." if expected and view.hardware else ""
    many = f" {count} links are as slow." if count > MOST_SHOWN else ""
    wire = "roce" if link.transport.upper() == "RDMA" else "other"
    return Finding(
        rule="slow_link", severity="warning", rank=link.source, ranks=(link.source, link.target),
        root_cause=f"{link.transport} from rank {link.source} to rank {link.target} carries {link.gb_s:.3g} GB/s "
                   f"({size}), the median of its kind and size is {middle:.3g}: "
                   f"{percent(1 - link.gb_s / middle)} less.{should}{many}",
        remedy=_REMEDIES[wire], gain=view.share(extra_us), evidence=(link.place,),
    )  # fmt: skip


_REMEDIES = {
    "roce": "On both devices: hccn_tool -i N -stat -g twice around a run (retransmissions, bad packets, pauses), "
            "-link_stat -g, -optical -g. Then the cable and the switch's port, and PFC of the queue that HCCL_RDMA_SL "
            "names on all hops.",
    "other": "Run hccl_test between the two devices alone. Slow there too: the wire or the device, ask the vendor. "
             "Fast there: another job, or a ring that crosses a slower wire.",
}  # fmt: skip


def links_below_hardware(view: View) -> list[Finding]:
    """A whole kind of wire far below the hardware profile, with messages large enough to fill it."""
    found = []
    for kind in link_kinds(view):
        large = [link for link in view.measured.links
                 if link.transport == kind.transport and _size_mb(link) >= SATURATED_MB]  # fmt: skip
        if kind.expected_gb_s is None or view.hardware is None or not large:
            continue
        middle = median(link.gb_s for link in large)
        if middle >= WELL_BELOW * kind.expected_gb_s:
            continue
        took = max(link.ms for link in large) * 1e3 / max(1, view.measured.link_steps)
        found.append(Finding(
            rule="links_below_hardware", severity="warning",
            root_cause=f"{kind.transport} reaches {middle:.3g} GB/s between two devices with messages of "
                       f"{SATURATED_MB:g} MB and more; {view.hardware.name} should reach {kind.expected_gb_s:.3g} "
                       "(its profile's bandwidth times the share that collectives reach).",
            remedy="hccl_test of the same operation and size tells whether it is the network or the job. Between "
                   "servers: HCCL_ALGO, the rank order (msparallel ranktable), PFC and ECN of the switches.",
            gain=view.share(took * (1 - middle / kind.expected_gb_s)), evidence=(large[0].place,),
        ))  # fmt: skip
    return found
