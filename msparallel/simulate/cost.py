"""Seconds of one operator of a compiled graph, and of one collective, on a machine that is not here.

In: a hardware profile, and how many devices of a node the job uses. Out: `DeviceCost`, which a timeline asks: what an
operator works on is read from its types here, what that takes is `hardware/speed.py`'s. Views take nothing.

>>> cost = DeviceCost(load_hardware("atlas_900_a2"), devices_per_node=8)
>>> cost.message("AllReduce", tuple(range(8)), 2**30).seconds
0.0137
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from msparallel.compile.expand import Execution, Operator, Output, Source, leaves
from msparallel.compile.graph import Constant, ConstantTensor, Parameter, TensorType, tensors
from msparallel.compile.order import VIEWS
from msparallel.hardware import Dtype
from msparallel.hardware.speed import Message, Product, Speed

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


class Cost(Protocol):
    """What a timeline asks."""

    def operator(self, execution: Execution, operator: Operator) -> float:
        """Seconds on the device that runs it."""

    def message(self, op: str, ranks: tuple[int, ...], size: int) -> Message:
        """Of a collective among global ranks; `size` as `collectives.message_bytes` counts it."""


class DeviceCost(Speed):
    """The cost that a machine's profile gives."""

    def operator(self, execution: Execution, operator: Operator) -> float:
        if operator.op in VIEWS:
            return 0.0
        seconds = self.moved(moved_bytes(execution, operator))
        if operator.op.startswith(PRODUCTS):
            seconds = max(seconds, self.product(product(execution, operator)))
        elif operator.op.startswith("FlashAttention"):
            flops, dtype = attention_flops(execution, operator)
            seconds = max(seconds, self.attention(flops, dtype, backward=operator.op.endswith("Grad")))
        return seconds + self.hardware.launch.kernel_us * 1e-6


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
