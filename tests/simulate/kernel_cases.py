"""Calls of every primitive that the virtual cluster has a kernel for, inputs in the order of a compiled graph.

CASES: primitive -> calls that MindSpore's processor computes too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

F16, F32, F64, I32, I64, BOOL = 42, 43, 44, 34, 35, 30
"""MindSpore's numbers of dtypes."""
_random = np.random.default_rng(7)


class Case(NamedTuple):
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]


def case(*inputs: Any, **attributes: Any) -> Case:
    return Case(inputs, attributes)


def f32(*shape: int, scale: float = 1.0) -> np.ndarray:
    return np.asarray(_random.normal(size=shape) * scale, np.float32)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


def above_0(*shape: int) -> np.ndarray:
    return np.asarray(np.abs(f32(*shape)) + np.float32(0.1))


def whole(low: int, high: int, *shape: int, dtype: type = np.int32) -> np.ndarray:
    return np.asarray(_random.integers(low, high, shape), dtype)


def bits(*shape: int) -> np.ndarray:
    return np.asarray(_random.random(shape) < 0.5)


def scalar(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.asarray(value, dtype)


def binary(x: np.ndarray, *others: Any) -> list[Case]:
    """Same shapes, broadcast shapes and a tensor without dims."""
    return [case(x, x[::-1].copy()), case(x, x[:1].copy()), case(x, x.reshape(-1)[:1].reshape(())), *others]


LOSS_WEIGHTS = above_0(7)
LOSS_TOTAL = np.asarray(LOSS_WEIGHTS[[0, 6, 2]].sum())
"""Of the labels that count."""
ARITHMETIC = [
    *binary(f32(3, 4)),
    *binary(f16(3, 4)),
    *binary(whole(-9, 9, 3, 4)),
    *binary(whole(-9, 9, 3, 4, dtype=np.int64)),
    case(scalar(2.5), scalar(-1.5)),
]
COMPARED = [*binary(whole(0, 3, 3, 4)), *binary(f32(3, 4)), *binary(f16(2, 2))]
REDUCED = [(f32(3, 4, 5), [1]), (f32(3, 4), [-1]), (f32(2, 3, 4), [0, 2]), (f32(6), []), (f16(3, 4), [0])]
FLOATS = [case(f32(3, 4)), case(f32(5)), case(f32()), case(f16(3, 4))]
POSITIVE = [case(above_0(3, 4)), case(above_0()), case(above_0(3, 4).astype(np.float16))]
MASKS = (0, 0, 0, 0, 0)
NO_MASKS = {f"{name}_mask": 0 for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
ON, OFF = scalar(1), scalar(0)
NORM_X, NORM_GAMMA = f32(4, 6), f32(6)
NORM_MEAN = NORM_X.mean(-1, keepdims=True)
NORM_VARIANCE = np.square(NORM_X - NORM_MEAN).mean(-1, keepdims=True)
MOMENTS = f32(3, 4), above_0(3, 4)
BETAS = scalar(0.9), scalar(0.95)


def adam(x: np.ndarray, first: np.ndarray, second: np.ndarray, decay: float) -> Case:
    rate, epsilon = np.full(1, 0.01, np.float32), scalar(1e-8)
    return case(x, first, second, rate, *BETAS, epsilon, scalar(decay), f32(*x.shape).astype(x.dtype), False)


CASES: dict[str, list[Case]] = {
    # elementwise
    **dict.fromkeys(("Add", "Sub", "Maximum", "Minimum"), ARITHMETIC),
    "Mul": [*ARITHMETIC, case(f32(3, 4), bits(3, 1)), case(whole(-9, 9, 3, 4), f32(4)), case(f16(3), f32(3))],
    **dict.fromkeys(
        ("AddExt", "SubExt"),
        [case(f32(3, 4), f32(4), 2), case(whole(0, 9, 4), whole(0, 9, 4), 3), case(f32(2), f32(2), 0.5)],
    ),
    "Muls": [case(f32(3, 4), 2), case(f32(3, 4), 0.25), case(f16(3), 3), case(whole(0, 9, 4), 3)],
    **dict.fromkeys(
        ("RealDiv", "Div"),
        [*binary(f32(3, 4)), *binary(f16(3, 4)), case(f32(3, 4), scalar(0)), case(f32(2), scalar(4))],
    ),
    "FloorDiv": [
        case(whole(-9, 9, 5, 6), whole(1, 4, 6)),
        case(whole(-9, 9, 5), scalar(-4, np.int32)),
        case(f32(9), scalar(0.3)),
    ],
    "FloorMod": [
        case(whole(-9, 9, 5, 6), whole(1, 4, 6)),
        case(whole(-9, 9, 5), scalar(-4, np.int32)),
        case(f32(9), scalar(0.3)),
    ],
    "AddN": [case((f32(3, 4), f32(3, 4), f32(3, 4))), case((f16(2), f16(2))), case((whole(0, 9, 3), whole(0, 9, 3)))],
    "Neg": [*FLOATS, case(whole(-5, 5, 7))],
    "Square": [*FLOATS, case(whole(-5, 5, 7))],
    "PowTensorScalar": [case(f32(3, 4), 1), case(f32(3, 4), 2), case(above_0(3), 0.5), case(f32(3, 4), 3)],
    "Exp": FLOATS,
    "Expm1": FLOATS,
    "Log": POSITIVE,
    "Sqrt": POSITIVE,
    "Rsqrt": POSITIVE,
    "RsqrtGrad": [case(above_0(3, 4), f32(3, 4)), case(above_0(5), f32(5))],
    "Sin": FLOATS,
    "Cos": FLOATS,
    **dict.fromkeys(("Equal", "NotEqual", "Greater", "GreaterEqual", "Less"), COMPARED),
    "LogicalOr": [case(bits(3, 4), bits(3, 4)), case(bits(3, 4), bits(4))],
    "LogicalNot": [case(bits(3, 4)), case(bits())],
    "IsFinite": [case(np.array([1, np.inf, -np.inf, np.nan], np.float32)), case(np.array([1, np.inf], np.float16))],
    "Select": [
        case(bits(3, 4), f32(3, 4), f32(3, 4)),
        case(bits(1), f32(3, 4), scalar(0)),
        case(bits(), whole(0, 9).reshape(()), whole(0, 9).reshape(())),
    ],
    "Cast": [
        *(case(f32(3, 4, scale=9), dtype) for dtype in (F16, F32, F64, I32, I64, BOOL)),
        *(case(whole(-9, 9, 5), dtype) for dtype in (F16, F32, I64, BOOL)),
        *(case(bits(3, 4), dtype) for dtype in (F32, I32, F16)),
        case(f16(3, 4), F32),
        case(np.array([1e6, 1e-9], np.float32), F16),
        case(np.array([1.5, -1.5, 0.9, -0.9, 2147483520.0], np.float32), I32),
    ],
    "ZerosLikeExt": [case(f32(3, 4), None), case(f32(3, 4), I32), case(whole(0, 9, 3), None)],
    "FillV2": [case((2, 3), scalar(1.5)), case((), scalar(2)), case((4,), scalar(7, np.int32))],
    "Divs": [case(f32(3, 4), 2), case(f32(3), 0.3), case(f16(3), 3), case(np.ones(1, np.float32), 0.0)],
    "Reciprocal": FLOATS,
    "Addcmul": [
        case(f32(3, 4), f32(3, 4), f32(3, 4), np.full(1, 0.02, np.float32)),
        case(f32(5), f32(5), f32(5), scalar(2)),
    ],
    "Pow": [case(np.full(1, 0.9, np.float32), np.full(1, 7, np.float32)), case(above_0(3, 4), f32(4))],
    # reductions
    "ReduceAll": [case(bits(8), None, False), case(np.ones(8, bool), None, False), case(bits(3, 4), [1], True)],
    "ReduceSum": [
        *(case(x, dims, keep, False) for x, dims in REDUCED for keep in (True, False)),
        case(whole(0, 9, 3, 4), [0], False, False),
    ],
    "SumExt": [
        *(case(x, dims, keep, None) for x, dims in REDUCED for keep in (True, False)),
        case(f16(3, 4), [1], True, F32),
        case(whole(0, 9, 3, 4), None, False, None),
        case(bits(9), [0], False, None),
    ],
    "ReduceMean": [case(x, dims, keep) for x, dims in REDUCED for keep in (True, False)],
    "MeanExt": [case(x, dims or None, keep, None) for x, dims in REDUCED for keep in (True, False)],
    "ReduceMax": [case(x, dims, keep) for x, dims in REDUCED for keep in (True, False)],
    "CumSum": [
        case(x, along, *how)
        for x, along in ((f32(2, 5, 3), 1), (f32(6), -1), (whole(-9, 9, 4, 3), 0))
        for how in ((False, False), (True, False), (False, True), (True, True))
    ],
    # products
    "MatMul": [
        case(f32(3, 4), f32(4, 5), False, False),
        case(f32(4, 3), f32(4, 5), True, False),
        case(f32(3, 4), f32(5, 4), False, True),
        case(f32(4, 3), f32(5, 4), True, True),
        case(f16(8, 64), f16(64, 8), False, False),
    ],
    "BatchMatMul": [
        case(f32(2, 3, 3, 4), f32(2, 3, 4, 5), False, False),
        case(f32(2, 4, 3), f32(2, 4, 5), True, False),
        case(f32(2, 3, 3, 4), f32(2, 3, 5, 4), False, True),
        case(f16(2, 8, 64), f16(2, 64, 8), False, False),
    ],
    # shapes
    "Reshape": [case(f32(3, 4), [2, 6]), case(f32(3, 4), [-1]), case(f32(1), []), case(whole(0, 9, 4, 3), [2, -1, 2])],
    "Transpose": [case(f32(2, 3, 4), [2, 0, 1]), case(f32(3, 4), [1, 0]), case(f32(2, 3, 4, 5), [0, 2, 1, -1])],
    "ExpandDims": [case(f32(3, 4), place) for place in (0, 1, -1, -2)] + [case(f32(), 0)],
    "Concat": [
        case((f32(2, 3), f32(2, 3)), 0),
        case((f32(2, 3), f32(2, 1)), -1),
        case((whole(0, 9, 2, 1, 3), whole(0, 9, 2, 2, 3)), 1),
    ],
    "Split": [case(f32(4, 6), 1, 3), case(f32(4, 6), -2, 2)],
    "SplitWithSize": [case(f32(4, 6), [1, 2, 3], 1), case(f32(4, 6), [3, 1], 0)],
    "Tile": [case(f32(3, 4), [2, 1]), case(f32(3), [2, 3]), case(f32(3, 1), [1, 5]), case(whole(0, 9, 2), [4])],
    "StridedSlice": [
        case(f32(4, 6), [0, 0], [2, 6], [1, 1], *MASKS),
        case(f32(4, 6), [1, 1], [4, 6], [2, 3], *MASKS),
        case(f32(4, 6), [-3, 0], [-1, 99], [1, 1], *MASKS),
        case(f32(4, 6), [3, 5], [0, -7], [-1, -2], *MASKS),
        case(f32(4, 6, 2), [1], [3], [1], *MASKS),
        case(f32(4, 6), [1, 1], [3, 3], [1, 1], 1, 2, 0, 0, 0),
        case(f32(4, 6), [2, 0], [3, 6], [1, 1], 0, 0, 0, 0, 1),
        case(whole(0, 9, 8), [2], [7], [2], *MASKS),
    ],
    "StridedSliceGrad": [
        case(f32(2, 1, 3), [2, 4, 3], [0, 1, 0], [2, 2, 3], [1, 1, 1], **NO_MASKS),
        case(f32(2, 2), [4, 6], [1, 1], [4, 6], [2, 3], **NO_MASKS),
    ],
    # indices
    "Embedding": [
        case(whole(0, 5, 7), f32(5, 3), None, None, 2.0, False),
        case(whole(0, 5, 2, 4), f32(5, 3), 1, None, 2.0, False),
    ],
    "Gather": [
        case(f32(5, 3), whole(0, 5, 7), 0, 0),
        case(f32(5, 3), whole(0, 3, 2, 4), 1, 0),
        case(f32(5, 3), whole(0, 5, 2, 2, dtype=np.int64), -2, 0),
        case(f32(2, 5, 3), whole(0, 5, 2, 4), 1, 1),
        case(f32(2, 3, 5, 4), whole(0, 5, 2, 3, 2, 2), 2, 2),
        case(f32(2, 3, 5, 4), whole(0, 5, 2, 6), 2, 1),
        case(whole(0, 9, 5), scalar(3, np.int32), 0, 0),
    ],
    "GatherD": [
        case(f32(3, 4), 1, whole(0, 4, 3, 2)),
        case(f32(3, 4), 0, whole(-3, 3, 2, 4)),
        case(f32(2, 3, 5), -1, whole(0, 5, 2, 3, 4, dtype=np.int64)),
    ],
    "ScatterNd": [
        case(whole(0, 4, 6, 1), f32(6, 3), (4, 3)),
        case(whole(0, 3, 9, 2), f32(9), (4, 3)),
        case(whole(0, 5, 7, 1), whole(0, 9, 7), (5,)),
    ],
    "OneHot": [
        case(whole(0, 4, 5), 4, ON, OFF, -1),
        case(whole(-2, 6, 2, 3), 4, ON, OFF, -1),
        case(whole(0, 4, 2, 3), 4, scalar(2.5), OFF, 0),
        case(whole(0, 4, 2, 3), 4, ON, scalar(-1), 1),
    ],
    "OneHotExt": [
        case(whole(0, 4, 5, dtype=np.int64), 4, scalar(1, np.int64), scalar(0, np.int64), -1),
        case(whole(0, 4, 2, 3), 4, scalar(1, np.int32), scalar(0, np.int32), -1),
    ],
    "UnsortedSegmentSum": [
        case(f32(6, 3), whole(0, 4, 6), 4),
        case(f32(2, 5, 3), whole(0, 4, 2, 5, dtype=np.int64), 6),
        case(f32(40), whole(0, 4, 40), 5),
        case(whole(0, 9, 6, 2), whole(0, 3, 6), 3),
        case(f16(60, 2), whole(0, 3, 60), 3),
    ],
    # normalization
    "Softmax": [case(f32(3, 4), [-1]), case(f32(3, 4, 5), [1]), case(f32(3, 4, scale=60), [-1]), case(f16(3, 4), [-1])],
    "SoftmaxBackward": [case(f32(3, 4), np.abs(f32(3, 4)), -1), case(f32(3, 4, 5), np.abs(f32(3, 4, 5)), -1)],
    "LogSoftmax": [case(f32(3, 4), -1), case(f32(3, 4), 0), case(f32(3, 4, scale=60), -1)],
    "LogSoftmaxGrad": [case(-above_0(3, 4), f32(3, 4), -1), case(-above_0(3, 4), f32(3, 4), 0)],
    "LayerNorm": [
        case(NORM_X, NORM_GAMMA, f32(6), -1, -1, 1e-5),
        case(f32(4, 6, scale=0.01), NORM_GAMMA, f32(6), 1, 1, 1e-5),
        case(f32(2, 3, 6), NORM_GAMMA, f32(6), 2, 2, 1e-6),
    ],
    "LayerNormGrad": [
        case(NORM_X, f32(4, 6), NORM_VARIANCE, NORM_MEAN, NORM_GAMMA, -1, -1, epsilon=1e-5),
        case(NORM_X, f32(4, 6), NORM_VARIANCE, NORM_MEAN, NORM_GAMMA, 1, 1, epsilon=0.1),
    ],
    # activations
    "ReLU": [*FLOATS, case(whole(-5, 5, 7))],
    "Sigmoid": [*FLOATS, case(f32(9, scale=60))],
    "SigmoidGrad": [case(np.clip(above_0(n, 4), 0, 1), f32(n, 4)) for n in (1, 3)],
    "SiLU": [*FLOATS, case(f32(9, scale=60))],
    "SiLUGrad": [case(f32(3, 4), f32(3, 4)), case(f32(9), f32(9, scale=60)), case(f16(3, 4), f16(3, 4))],
    "GeLU": [*FLOATS, case(f32(9, scale=9))],
    "GeLUGrad": [case(f32(3, 4), f32(3, 4), f32(3, 4)), case(f32(9), f32(9, scale=9), f32(9))],
    # kept values
    "TensorMove": FLOATS,
    "Assign": [case(f32(3, 4), f32(3, 4), None), case(whole(0, 9, 1), whole(0, 9, 1), None)],
    "AssignAdd": [
        case(f32(3, 4), f32(3, 4), None),
        case(whole(0, 9, 1), whole(0, 9, 1), None),
        case(f32(1), scalar(2), None),
        case(f32(3), f16(3), None),
    ],
    "AdamWeightDecay": [
        adam(f32(3, 4), *MOMENTS, decay=0.1),
        adam(f32(3, 4), *MOMENTS, decay=0),
        adam(f32(12, 5), f32(12, 5), above_0(12, 5), decay=0.01),
    ],
    # sorting
    "TopK": [
        case(f32(3, 8), 3, sorted=True),
        case(f32(2, 3, 5), 5, sorted=True),
        case(whole(0, 99, 1, 9), 1, sorted=True),
    ],
    "ArgMaxWithValue": [
        *(case(f32(3, 4, 5), along, keep) for along in (0, -1) for keep in (True, False)),
        case(f32(6), 0, False),
        case(whole(0, 9, 3, 4), 1, True),
    ],
    # losses; MindSpore's kernel writes nothing at all where it ignores a label and reduces nothing
    "NLLLoss": [
        case(-above_0(5, 7), whole(0, 7, 5), np.ones(7, np.float32), 2, -100),
        *(case(-above_0(5, 7), np.array([0, 3, 6, 2, 3], np.int32), above_0(7), way, 3) for way in (0, 1)),
    ],
    "NLLLossGrad": [
        case(-above_0(5, 7), f32(5), whole(0, 7, 5), np.ones(7, np.float32), scalar(5.0), 2, -100),
        *(
            case(-above_0(5, 7), given, np.array([0, 3, 6, 2, 3], np.int32), LOSS_WEIGHTS, LOSS_TOTAL, way, 3)
            for way, given in ((0, scalar(1.5)), (1, scalar(-0.5)), (2, f32(5)))
        ),
    ],
}
