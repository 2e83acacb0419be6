"""Seconds of one operator, and of one collective, on a machine that is not here.

In: a hardware profile, and how many devices of a node the job uses. Out: `DeviceCost`, which a timeline asks. Work over
speed, nothing else: no cache, no fusion by the back end, no congestion. Every number is the profile's, and a profile
says which of them are assumed.

- A matrix product takes fill + flops / (peak x efficiency), its lengths padded to the tiles of the unit; one that is
  bound by memory takes what its bytes take. Fused attention likewise with an efficiency of its own.
- Everything else takes the bytes that it reads and writes over the bandwidth that operators reach. Views take nothing.
- Each operator is launched; that time is added.
- A collective of n devices and S bytes (`collectives.message_bytes`) takes alpha-beta time on each level of links that
  its group crosses. One pass, a reduce-scatter or an all-gather, is on one level

      steps x latency + (n - 1) / n x S / bandwidth      steps: n - 1 in a ring, 1 in a mesh

  Source: the ring of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
  (2005), section 4, without the cost of adding; HCCL's Mesh sends to all at once (CANN, HCCL user guide, "Mesh").
  AllReduce is two passes, and so is Broadcast (scatter, all-gather, as in HCCL); AlltoAll one pass, pair by pair; Send
  and Receive one step.
- A group that crosses servers works level by level, as HCCL does (CANN, HCCL user guide, "Pipeline"): a pass among the
  l devices of each server on all S bytes, then one among the devices of equal place in the servers, each with its own
  share S / l through its own port. So ports are not shared within a group, and groups of different devices have
  different ports. Where servers hold unequal numbers of a group, one ring over the slow level is taken.

>>> cost = DeviceCost(load_hardware("atlas_900_a2"), devices_per_node=8)
>>> cost.message("AllReduce", tuple(range(8)), 2**30).seconds
0.0137
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msparallel.compile.expand import Execution, Operator, Output, Source, leaves
from msparallel.compile.graph import Constant, ConstantTensor, Parameter, TensorType, tensors
from msparallel.compile.order import VIEWS
from msparallel.hardware import Dtype, Hardware, Link

PRODUCTS = ("MatMul", "BatchMatMul", "Dense", "GroupedMatmul")
"""Start the names of matrix products."""
ATTENTION_KEYS, ATTENTION_GRADIENT = 4, 2.5
"""Flops of fused attention for each query element and key: two products forward. Backward five: the scores once more,
and the gradients of values, probabilities, queries and keys (Dao et al., FlashAttention, 2022)."""
READ_WHAT_THEY_WRITE = ("StridedSlice", "Slice", "Gather")
READ_NOTHING = ("ZerosLike", "OnesLike", "Fill", "OneHot")
CAUSAL, BAND = (2, 3), 4
"""MindSpore's sparse modes of fused attention that leave keys out."""
_LAYOUT_KEYS = {0: 1, 1: 2, 2: 0, 3: 1, 4: 0, 5: 0}
"""MindSpore's number of an attention layout (BSH, BNSD, SBH, BSND, TND, TH) -> dim in which the keys lie."""
_DTYPES: dict[str, Dtype] = {"Float32": "float32", "Float16": "float16", "BFloat16": "bfloat16"}
_PASSES = {"AllReduce": 2, "Broadcast": 2, "AllGather": 1, "ReduceScatter": 1}


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


class Cost(Protocol):
    """What a timeline asks."""

    def operator(self, execution: Execution, operator: Operator) -> float:
        """Seconds on the device that runs it."""

    def message(self, op: str, ranks: tuple[int, ...], size: int) -> Message:
        """Of a collective among global ranks; `size` as `collectives.message_bytes` counts it."""


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
class DeviceCost:
    """Attributes:
    devices_per_node: of the job; at most those that a node of the hardware has.
    """

    hardware: Hardware
    devices_per_node: int

    def operator(self, execution: Execution, operator: Operator) -> float:
        if operator.op in VIEWS:
            return 0.0
        seconds = moved_bytes(execution, operator) / self._memory()
        if operator.op.startswith(PRODUCTS):
            seconds = max(seconds, self.product(product(execution, operator)))
        elif operator.op.startswith("FlashAttention"):
            flops, dtype = attention_flops(execution, operator)
            rate = self._peak(dtype) * self.hardware.matrix.attention_efficiency
            seconds = max(seconds, flops / rate + self.hardware.matrix.fill_us * 1e-6)
        return seconds + self.hardware.launch.kernel_us * 1e-6

    def product(self, product: Product) -> float:
        """Seconds of a matrix product without its launch."""
        matrix = self.hardware.matrix
        rate = self._peak(product.dtype) * matrix.efficiency
        return product.padded(matrix.tile) / rate + matrix.fill_us * 1e-6

    def _peak(self, dtype: Dtype) -> float:
        """Flops a second. A type that the unit does not multiply is counted as the slowest that it does."""
        return self.hardware.matrix.tflops.get(dtype, min(self.hardware.matrix.tflops.values())) * 1e12

    def _memory(self) -> float:
        return self.hardware.memory.bandwidth_gb_s * 1e9 * self.hardware.memory.efficiency

    def message(self, op: str, ranks: tuple[int, ...], size: int) -> Message:
        if len(ranks) < 2:
            return Message(0.0)  # nobody to speak with
        sent: dict[str, int] = {}
        busy: dict[str, float] = {}
        latency = 0.0
        for link, steps, bytes_, bandwidth in self._hops(op, ranks, size):
            sent[link.name] = sent.get(link.name, 0) + (0 if op == "Receive" else round(bytes_))
            busy[link.name] = busy.get(link.name, 0.0) + bytes_ / bandwidth
            latency += steps * link.latency_us * 1e-6
        launch = self.hardware.launch.collective_us * 1e-6
        return Message(launch + latency + sum(busy.values()), sent, busy)

    def _hops(self, op: str, ranks: tuple[int, ...], size: int) -> Iterator[tuple[Link, int, float, float]]:
        """Of each level: its link, steps one after the other, bytes that a device sends, and bytes a second."""
        if op in ("Send", "Receive"):
            for link, _members in self.levels(ranks):
                yield link, 1, size, _bandwidth(link, 2)
        elif op.startswith(("AlltoAll", "AllToAll")):
            inside = 1
            for link, members in self.levels(ranks):
                peers = inside * (members - 1)
                yield link, _steps(link, peers), size * peers / len(ranks), _bandwidth(link, members)
                inside *= members
        else:
            passes = next(passes for name, passes in _PASSES.items() if op.startswith(name))
            share = float(size)
            for link, members in self.levels(ranks):
                bytes_ = passes * share * (members - 1) / members
                yield link, passes * _steps(link, members - 1), bytes_, _bandwidth(link, members)
                share /= members

    def levels(self, ranks: Sequence[int]) -> list[tuple[Link, int]]:
        """Links that a group crosses, narrowest first, and how many parts of it each joins. The product of the parts is
        the size of the group."""
        parts = [(rank,) for rank in ranks]
        found = []
        for link in self.hardware.links:
            joined: dict[int, list[tuple[int, ...]]] = {}
            for part in parts:
                joined.setdefault(self._domain(link, part[0]), []).append(part)
            counts = {len(inside) for inside in joined.values()}
            if len(counts) > 1:
                return [(self._widest(ranks), len(ranks))]
            if counts != {1}:
                found.append((link, counts.pop()))
            parts = [tuple(rank for part in inside for rank in part) for inside in joined.values()]
        return found

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


def _bandwidth(link: Link, members: int) -> float:
    """Bytes a second of one device among `members`."""
    reached = link.bandwidth_gb_s * 1e9 * link.efficiency
    return reached * (members - 1) / (link.joins - 1) if link.topology == "mesh" and link.joins else reached


def _steps(link: Link, peers: int) -> int:
    return 1 if link.topology == "mesh" else peers


def input_types(execution: Execution, sources: Sequence[Source]) -> Iterator[TensorType]:
    """Types of the tensors that sources give."""
    for leaf in leaves(sources):
        if isinstance(leaf, Output):
            whole = execution.operators[leaf.index].type
            yield from tensors(whole if leaf.item is None else whole[leaf.item])
        elif isinstance(leaf, (Parameter, ConstantTensor)):
            yield from tensors(leaf.type)


def moved_bytes(execution: Execution, operator: Operator) -> int:
    """Bytes that an operator reads and writes."""
    written = sum(tensor.bytes for tensor in tensors(operator.type))
    if operator.op.startswith(READ_NOTHING):
        return written
    if operator.op.startswith(READ_WHAT_THEY_WRITE):
        return 2 * written
    sources = operator.inputs[1:] if operator.op == "Assign" else operator.inputs
    return written + sum(tensor.bytes for tensor in input_types(execution, sources))


def product(execution: Execution, operator: Operator) -> Product:
    """Lengths of a matrix product, from its types; `k` is what both of its inputs have."""
    first = next(input_types(execution, operator.inputs))
    whole = next(tensors(operator.type)).shape
    turned = len(operator.inputs) > 2 and operator.inputs[2] == Constant(True) and "MatMul" in operator.op
    k = first.shape[-2 if turned and len(first.shape) > 1 else -1] if first.shape else 1
    n = whole[-1] if whole else 1
    rows = _size(whole[:-1])
    count = 1
    if operator.op.startswith("BatchMatMul"):
        count = _size(whole[:-2])
    elif operator.op.startswith("GroupedMatmul"):
        weights = list(input_types(execution, operator.inputs[1:2]))
        count = weights[0].shape[0] if len(weights) == 1 and len(weights[0].shape) == 3 else len(weights)
    m = -(-rows // count) if count else 0
    return Product(max(count, 1), max(m, 0), max(k, 0), max(n, 0), _DTYPES.get(first.dtype, "float32"))


def attention_flops(execution: Execution, operator: Operator) -> tuple[float, Dtype]:
    """Flops of fused attention, with the keys left out that its mode lets the kernel skip: half where it is causal."""
    query, key = list(input_types(execution, operator.inputs[:2]))
    gradient = operator.op.endswith("Grad")
    lengths_at = 14 if gradient else 9
    before, after, _, layout, mode = (_number(source) for source in operator.inputs[lengths_at + 4 : lengths_at + 9])
    keys = key.shape[_LAYOUT_KEYS[layout]]
    if layout >= 4 and isinstance(ends := operator.inputs[lengths_at], Constant) and isinstance(ends.value, list):
        keys /= max(len(ends.value), 1)  # sequences in one row, of their mean length
    share = 1.0
    if mode in CAUSAL or (mode == BAND and after <= 0):
        share = 0.5
    if mode == BAND:
        share = min(share, (before + after + 1) / max(keys, 1))
    flops = ATTENTION_KEYS * _size(query.shape) * keys * share * (ATTENTION_GRADIENT if gradient else 1)
    return flops, _DTYPES.get(query.dtype, "float32")


def _number(source: Source) -> int:
    assert isinstance(source, Constant), "attention's layout and mode are plain numbers"
    return int(source.value)


def _size(shape: Sequence[int]) -> int:
    return math.prod(max(length, 0) for length in shape)
