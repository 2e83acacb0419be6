"""Seconds of work on a machine that is not here: a matrix product, bytes moved, a message.

In: a hardware profile, and how many devices of a node the job uses. Out: `Speed`. Work over speed, nothing else: no
cache, no fusion by the back end, no congestion. Every number is the profile's, and a profile says which of them are
assumed. `simulate/cost.py` asks for the operators of compiled graphs, `planner/layer_time.py` for those of a layer on
paper, so both stand on the same speeds.

- A matrix product takes fill + flops / (peak x efficiency), its lengths padded to the tiles of the unit; one that is
  bound by memory takes what its bytes take. Fused attention likewise with efficiencies of its own.
- Everything else takes the bytes that it reads and writes over the bandwidth that operators reach.
- Each operator is launched; that time is added.
- A collective of n devices and S bytes (`collectives.message_bytes`) takes alpha-beta time on each level of links that
  its group crosses. One pass, a reduce-scatter or an all-gather, is on one level

      steps x latency + bytes / bandwidth      with the steps and bytes of the level's algorithm:

  | algorithm | steps | bytes that a device sends |
  |---|---|---|
  | mesh | 1 | (n - 1) / n x S |
  | ring | n - 1 | (n - 1) / n x S |
  | H-D_R, n = 2^k | k | (n - 1) / n x S |
  | H-D_R, 2^k < n | k + 1 | (2^k - 1) / 2^k x S, and S more: those beyond 2^k join a neighbour first |
  | NHR, NB | k, 2^k the first power that is not below n | (n - 1) / n x S |

  Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005),
  section 4 (ring, recursive halving and doubling), without the cost of adding; the gitee.com/ascend/cann-hccl docs
  "Mesh" and "RHD"; CANN, HCCL user guide, "Collective Communication Algorithms" (NHR and NB: logarithmic steps).
  AllReduce is two passes, and so is Broadcast (scatter, all-gather, as in HCCL); AlltoAll one pass, pair by pair; Send
  and Receive one step.
- A group that crosses servers works level by level, as HCCL does (CANN, HCCL user guide, "Pipeline"): a pass among the
  l devices of each server on all S bytes, then one among the devices of equal place in the servers, each with its own
  share S / l through its own port. So ports are not shared within a group, and groups of different devices have
  different ports. Where servers hold unequal numbers of a group, one ring over the slow level is taken.

>>> speed = Speed(load_hardware("atlas_900_a2"), devices_per_node=8)
>>> speed.message("AllReduce", tuple(range(8)), 2**30).seconds == speed.seconds("AllReduce", 8, 1, 2**30)
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from msparallel.hardware import Dtype, Hardware, Link

_PASSES = {"AllReduce": 2, "Broadcast": 2, "AllGather": 1, "ReduceScatter": 1}
Levels = tuple[tuple[Link, int], ...]
"""Links that a group crosses, narrowest first, and how many parts of it each joins."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a collective costs one of its devices.

    Attributes:
        seconds: from the arrival of the last member to the end, launch included.
        sent: link -> bytes that the device sends over it.
        busy_s: link -> seconds of `seconds` in which it carries them.
    """

    seconds: float
    sent: Mapping[str, int] = field(default_factory=dict)
    busy_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Product:
    """[m, k] x [k, n], `count` times."""

    count: int
    m: int
    k: int
    n: int
    dtype: Dtype

    @property
    def flops(self) -> int:
        return 2 * self.count * self.m * self.k * self.n

    def padded(self, tile: int) -> int:
        """Flops with lengths padded to whole tiles."""
        m, k, n = (-(-length // tile) * tile for length in (self.m, self.k, self.n))
        return 2 * self.count * m * k * n


@dataclass(frozen=True)
class Speed:
    """Attributes:
    devices_per_node: of the job; at most those that a node of the hardware has.
    """

    hardware: Hardware
    devices_per_node: int

    def product(self, product: Product) -> float:
        """Seconds of a matrix product without its launch."""
        matrix = self.hardware.matrix
        rate = self.peak(product.dtype) * matrix.efficiency
        return product.padded(matrix.tile) / rate + matrix.fill_us * 1e-6

    def attention(self, flops: float, dtype: Dtype, *, backward: bool = False) -> float:
        """Seconds of fused attention, or of its gradient, without its launch."""
        matrix = self.hardware.matrix
        share = matrix.attention_backward_efficiency if backward else matrix.attention_efficiency
        return flops / (self.peak(dtype) * share) + matrix.fill_us * 1e-6

    def moved(self, bytes_: float) -> float:
        """Seconds in which an operator reads and writes `bytes_`, without its launch."""
        memory = self.hardware.memory
        return bytes_ / (memory.bandwidth_gb_s * 1e9 * memory.efficiency)

    def peak(self, dtype: Dtype) -> float:
        """Flops a second. A type that the unit does not multiply is counted as the slowest that it does."""
        return self.hardware.matrix.tflops.get(dtype, min(self.hardware.matrix.tflops.values())) * 1e12

    def seconds(self, op: str, degree: int, stride: int, size: float) -> float:
        """Of a collective in a group of `degree` ranks that lie `stride` apart: the slowest such group, and only the
        time. `message` says the same of one group, and what it sends."""
        if degree < 2:
            return 0.0
        launch = self.hardware.launch.collective_us * 1e-6
        return launch + sum(
            steps * link.latency_us * 1e-6 + bytes_ / bandwidth
            for link, steps, bytes_, bandwidth in _hops(op, self.levels_apart(degree, stride), degree, size)
        )

    def transfer(self, stages: int, stride: int, size: float) -> float:
        """From a rank to the one `stride` further on, over the slowest of the borders between `stages` such."""
        links = _borders(self, stages, stride)
        if not links:
            return 0.0
        launch = self.hardware.launch.collective_us * 1e-6
        return launch + max(link.latency_us * 1e-6 + size / _bandwidth(link, 2) for link in links)

    def message(self, op: str, ranks: tuple[int, ...], size: int) -> Message:
        """Of a collective among global ranks; `size` as `collectives.message_bytes` counts it."""
        if len(ranks) < 2:
            return Message(0.0)  # nobody to speak with
        sent: dict[str, int] = {}
        busy: dict[str, float] = {}
        latency = 0.0
        for link, steps, bytes_, bandwidth in _hops(op, self.levels(ranks), len(ranks), size):
            sent[link.name] = sent.get(link.name, 0) + (0 if op == "Receive" else round(bytes_))
            busy[link.name] = busy.get(link.name, 0.0) + bytes_ / bandwidth
            latency += steps * link.latency_us * 1e-6
        launch = self.hardware.launch.collective_us * 1e-6
        return Message(launch + latency + sum(busy.values()), sent, busy)

    def levels(self, ranks: Sequence[int]) -> Levels:
        """The product of the parts is the size of the group."""
        parts = [(rank,) for rank in ranks]
        found = []
        for link in self.hardware.links:
            joined: dict[int, list[tuple[int, ...]]] = {}
            for part in parts:
                joined.setdefault(self._domain(link, part[0]), []).append(part)
            counts = {len(inside) for inside in joined.values()}
            if len(counts) > 1:
                return ((self._widest(ranks), len(ranks)),)
            if counts != {1}:
                found.append((link, counts.pop()))
            parts = [tuple(rank for part in inside for rank in part) for inside in joined.values()]
        return tuple(found)

    def levels_apart(self, degree: int, stride: int) -> Levels:
        """Of the slowest group of `degree` ranks that lie `stride` apart in a job's order of ranks."""
        return _levels_apart(self, degree, stride)

    def _widest(self, ranks: Sequence[int]) -> Link:
        """The narrowest link that joins all ranks."""
        return next(link for link in self.hardware.links if len({self._domain(link, rank) for rank in ranks}) == 1)

    def _domain(self, link: Link, rank: int) -> int:
        """Number of the part of the cluster that a link joins, where rank = node x devices_per_node + device."""
        node, device = divmod(rank, self.devices_per_node)
        if link.joins is None:
            return 0
        if link.joins >= self.hardware.devices_per_node:
            return node // (link.joins // self.hardware.devices_per_node)
        return node * self.hardware.devices_per_node + device // link.joins


@lru_cache(maxsize=4096)
def _levels_apart(speed: Speed, degree: int, stride: int) -> Levels:
    """Blocks of degree x stride ranks repeat; where a block begins in a node repeats after a node's devices."""
    block = degree * stride
    node = speed.devices_per_node
    starts = {number * block + inner for number in range(node // math.gcd(node, block)) for inner in range(stride)}
    if block % node == 0 or node % block == 0:
        starts = {0}  # all groups are alike
    elif stride > node:
        starts = {start for start in starts if start % block < node}
    tried = {speed.levels([start + place * stride for place in range(degree)]) for start in starts}

    def seconds(levels: Levels) -> float:
        return sum(bytes_ / bandwidth for _, _, bytes_, bandwidth in _hops("AllReduce", levels, degree, 2**26))

    return max(tried, key=seconds)


@lru_cache(maxsize=4096)
def _borders(speed: Speed, stages: int, stride: int) -> frozenset[Link]:
    """Links between neighbours; where stages are many, those of a few nodes tell all."""
    places = range(min(stages - 1, 4 * speed.devices_per_node))
    return frozenset(speed.levels([place * stride, (place + 1) * stride])[-1][0] for place in places)


def _hops(op: str, levels: Levels, members: int, size: float) -> Iterator[tuple[Link, int, float, float]]:
    """Of each level: its link, steps one after the other, bytes that a device sends, and bytes a second."""
    if op in ("Send", "Receive"):
        for link, _parts in levels:
            yield link, 1, size, _bandwidth(link, 2)
    elif op.startswith(("AlltoAll", "AllToAll")):
        inside = 1
        for link, parts in levels:
            peers = inside * (parts - 1)
            steps = 1 if link.topology == "mesh" else peers
            yield link, steps, size * peers / members, _bandwidth(link, parts)
            inside *= parts
    else:
        passes = next(passes for name, passes in _PASSES.items() if op.startswith(name))
        share = float(size)
        for link, parts in levels:
            steps, part = one_pass(link.algorithm, parts)
            yield link, passes * steps, passes * share * part, _bandwidth(link, parts)
            share /= parts


@lru_cache(maxsize=4096)
def one_pass(algorithm: str, members: int) -> tuple[int, float]:
    """Steps of a reduce-scatter or an all-gather, and the share of its bytes that a device sends."""
    whole = (members - 1) / members
    if algorithm == "mesh":
        return 1, whole
    if algorithm == "ring":
        return members - 1, whole
    doublings = members.bit_length() - 1  # of the largest power of two
    if members == 2**doublings:
        return doublings, whole
    if algorithm == "H-D_R":
        return doublings + 1, (2**doublings - 1) / 2**doublings + 1
    return doublings + 1, whole


def _bandwidth(link: Link, members: int) -> float:
    """Bytes a second of one device among `members`."""
    reached = link.bandwidth_gb_s * 1e9 * link.efficiency
    if link.topology == "mesh" and link.joins:
        reached *= (members - 1) / (link.joins - 1)
    return min(reached, link.most_gb_s * 1e9) if link.most_gb_s else reached
