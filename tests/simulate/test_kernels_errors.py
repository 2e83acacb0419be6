"""What a kernel cannot compute it refuses, with numbers; it never wraps around, clips or guesses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulate.kernel_cases import CASES, F16, I32, I64, MASKS, NO_MASKS, OFF, ON, f16, f32, scalar, whole

from msparallel.simulate.kernels import KERNELS, Call, UnsupportedCall

pytestmark = pytest.mark.pure
LARGEST = np.iinfo(np.int32).max


def run(op: str, *inputs: Any, **attributes: Any) -> Any:
    return KERNELS[op](Call(op, inputs, attributes, "not asked"))


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("op", "inputs", "told"),
    [
        ("Gather", (f32(5, 3), i32(0, 5, 7), 0, 0), r"index 5 is outside \[0, 5\); so are 2 of 3"),
        ("Gather", (f32(5, 3), i32(-1), 0, 0), r"index -1 is outside \[0, 5\)"),
        ("Gather", (f32(5, 3), i32(0), 2, 0), r"dim 2 is outside \[-2, 2\)"),
        ("Gather", (f32(2, 5), i32(5, 0).reshape(2, 1), 1, 1), r"index 5 is outside \[0, 5\)"),
        ("GatherD", (f32(2, 3), 1, i32(3, 0).reshape(2, 1)), r"index 3 is outside \[0, 3\)"),
        ("GatherD", (f32(2, 3), 1, i32(-4, 0).reshape(2, 1)), r"index -1 is outside \[0, 3\)"),
        ("Embedding", (i32(5), f32(5, 3), None, None, 2.0, False), r"index 5 is outside"),
        ("EmbeddingDenseBackward", (f32(1, 3), i32(-1), 5, None, False), r"index -1 is outside"),
        ("ScatterNd", (i32(0, -1).reshape(2, 1), f32(2, 3), (4, 3)), r"index of dim 0 -1 is outside \[0, 4\)"),
        ("UnsortedSegmentSum", (f32(2, 3), i32(0, 4), 4), r"segment 4 is outside \[0, 4\)"),
        ("UnsortedSegmentSum", (f32(2, 3), i32(0, -1), 4), r"segment -1 is outside \[0, 4\)"),
        ("StridedSlice", (f32(2, 3), [2], [3], [1], 0, 0, 0, 0, 1), "element 2 of dim 0, which has 2"),
        ("ReduceSum", (f32(2, 3), [2], False, False), r"dim 2 is outside \[-2, 2\)"),
        ("Transpose", (f32(2, 3), [0, 2]), r"dim 2 is outside"),
        ("Softmax", (f32(2, 3), [-3]), r"dim -3 is outside"),
    ],
)
def test_places_outside(op, inputs, told):
    with pytest.raises(IndexError, match=f"{op}: {told}"):
        run(op, *inputs)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Add", (i32(LARGEST), i32(1))),
        ("Sub", (i32(-LARGEST), i32(2))),
        ("Mul", (i32(1 << 16), i32(1 << 15))),
        ("Mul", (i32(1 << 16), i32(1 << 16))),  # wraps around to 0
        ("Add", (i64(2**63 - 1), i64(1))),
        ("Mul", (i64(2**62), i64(4))),
        ("Mul", (i64(-(2**62)), i64(2**40))),
        ("Neg", (i32(-LARGEST - 1),)),
        ("Square", (i32(46341),)),
        ("Muls", (i32(LARGEST), 2)),
        ("Muls", (np.array([1], np.int8), 300)),
        ("AddExt", (i32(1), i32(LARGEST), 2)),
        ("FloorDiv", (i32(-LARGEST - 1), i32(-1))),
        ("AddN", ((i32(LARGEST), i32(1)),)),
        ("AssignAdd", (i32(LARGEST), i32(1))),
        ("ReduceSum", (i32(LARGEST, 1), [], False, False)),
        ("ReduceSum", (i64(2**62, 2**62), [], False, False)),
        ("CumSum", (i32(LARGEST, 1), 0, False, False)),
        ("CumSum", (i64(2**62, 2**62), 0, False, False)),
        ("UnsortedSegmentSum", (i32(LARGEST, 1), i32(0, 0), 1)),
        ("Cast", (np.array([3e9], np.float32), I32)),
        ("Cast", (np.array([2.0**31], np.float32), I32)),
        ("Cast", (np.array([2.0**63]), I64)),
        ("Cast", (np.array([np.nan], np.float32), I32)),
        ("Cast", (np.array([-np.inf], np.float32), I64)),
        ("Cast", (i64(2**31), I32)),
    ],
)
def test_whole_numbers_that_do_not_fit(op, inputs):
    with pytest.raises(OverflowError, match=f"{op}: .* does not fit into"):
        run(op, *inputs)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Add", (i32(LARGEST - 1), i32(1))),
        ("Mul", (i64(2**31), i64(2**31))),
        ("Mul", (i64(-(2**62)), i64(2))),
        ("Neg", (i32(-LARGEST),)),
        ("ReduceSum", (i32(LARGEST, 5, -5), [], False, False)),
        ("Cast", (np.array([2147483520.0, -2147483648.9], np.float32), I32)),
        ("Cast", (np.array([2.0**63 - 1024, -(2.0**63)]), I64)),
    ],
)
def test_whole_numbers_at_the_edge(op, inputs):
    exact = {"Add": np.add, "Mul": np.multiply, "Neg": np.negative}
    result = run(op, *inputs)
    if op in exact:
        assert result.tolist() == exact[op](*(item.astype(object) for item in inputs)).tolist()
    elif op == "ReduceSum":
        assert result == LARGEST and result.dtype == np.int32
    else:
        assert result.tolist() == [int(value) for value in inputs[0]]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "told"),
    [
        ("Add", (f32(2), f16(2)), {}, "float32 and float16; they must be of one dtype"),
        ("Add", (f32(2), 1.0), {}, "input 1 must be a tensor, not 1.0"),
        ("Add", (np.ones(2, bool), np.ones(2, bool)), {}, "booleans"),
        ("Add", (f32(2),), {}, "has 1 inputs"),
        ("Muls", (i32(1), 0.5), {}, "the fraction would be lost"),
        ("RealDiv", (i32(1), i32(1)), {}, "input 0 is int32"),
        ("LogicalNot", (i32(1),), {}, "dtype is 'int32'"),
        ("Select", (i32(1), f32(1), f32(1)), {}, "dtype of the condition is 'int32'"),
        ("Log", (f32(2),), {"base": 2.0}, "base is 2.0"),
        ("Exp", (f32(2),), {"scale": 2.0}, "scale is 2.0"),
        ("Cast", (f32(2), 45), {}, "dtype number 45"),
        ("Cast", (f32(2), None), {}, "no dtype given"),
        ("ReduceSum", (f32(2, 3), [0, -2], False, False), {}, "name one twice"),
        ("SumExt", (f32(2), None, False, I32), {}, "a sum of float32 in int32"),
        ("ReduceMean", (i32(1, 2), [], False), {}, "input 0 is int32"),
        ("MatMul", (f32(2, 3, 4), f32(4, 5), False, False), {}, "3 and 2 dims"),
        ("MatMul", (f32(2, 3), f16(3, 4), False, False), {}, "one dtype"),
        ("Outer", (f32(2, 3), f32(4)), {}, "2 and 1 dims"),
        ("Reshape", (f32(6), [-1, -1]), {}, "at most one length"),
        ("Reshape", (f32(6), [4, 2]), {}, "6 elements"),
        ("Split", (f32(5), 0, 2), {}, "2 equal parts"),
        ("SplitWithSize", (f32(5), [2, 2], 0), {}, "do not add up"),
        ("Tile", (f32(2, 3), [2]), {}, "for each of the 2 dims"),
        ("Transpose", (f32(2, 3), [0]), {}, "1 dims are named of 2"),
        ("StridedSlice", (f32(4), [0], [4], [0], *MASKS), {}, "may not be 0"),
        ("StridedSlice", (f32(4), [0], [4, 4], [1], *MASKS), {}, "for 1 dims"),
        ("StridedSlice", (f32(4), [0, 0], [4, 4], [1, 1], *MASKS), {}, "for 1 dims"),
        ("StridedSlice", (f32(4), [0], [4], [1], 0, 0, 1, 0, 0), {}, "ellipsis_mask is 1"),
        ("StridedSlice", (f32(4), [0], [4], [1], 0, 0, 0, 1, 0), {}, "new_axis_mask is 1"),
        ("StridedSliceGrad", (f32(3), [4], [0], [2], [1]), NO_MASKS, r"has shape \(2,\), its gradient \(3,\)"),
        ("OneHotExt", (i32(1), 3, ON, OFF, 0), {}, "axis is 0"),
        ("ReduceSum", (f32(3), [], False, True), {}, "skip_mode without dims is True"),
        ("BatchMatMul", (f32(2, 1, 3, 4), f32(3, 4, 5), False, False), {}, "alike in all but the last 2 dims"),
        ("Gather", (f32(4), f32(1), 0, 0), {}, "indices are whole numbers"),
        ("Gather", (f32(2, 4), i32(1), 0, 1), {}, "1 batch dims"),
        ("OneHot", (f32(3), 4, ON, OFF, -1), {}, "indices are whole numbers"),
        ("UnsortedSegmentSum", (f32(2, 3), i32(0, 1, 2), 3), {}, "must be the first dims"),
        ("ScatterNd", (i32(0, 1).reshape(2, 1), f32(3, 3), (4, 3)), {}, "updates"),
        ("TopK", (f32(2, 3), 2), {"sorted": False}, "sorted is False"),
        ("TopK", (f32(2, 3), 4), {}, "k 4 of rows in"),
        ("TopK", (np.array([1, np.nan], np.float32), 1), {}, "1 of 2 elements are NaN"),
        ("ArgMaxWithValue", (np.array([1, np.nan], np.float32), 0, False), {}, "1 of 2 elements are NaN"),
        ("LayerNorm", (f32(2, 3, 4), f32(4), f32(4), 1, 1, 1e-5), {}, "begin_norm_axis is 1"),
        ("LayerNormGrad", (f32(2, 4), f32(2, 4), f32(2, 1), f32(2, 1), f32(4), 1, 1), {}, "no epsilon"),
        ("RmsNorm", (f32(2, 4), f32(3), 1e-6), {}, "gamma"),
        ("Assign", (f32(4), f32(2, 4)), {}, "shape"),
        ("AssignAdd", (f16(4), f32(4)), {}, "a value float32 is written to one of float16"),
        ("Embedding", (i32(1), f32(2, 4), None, 1.0, 2.0, False), {}, "max_norm is 1.0"),
        ("EmbeddingDenseBackward", (f32(1, 4), i32(1), 2, None, True), {}, "scale_grad_by_freq is True"),
        ("AdamWeightDecay", (f32(2), f32(2), f32(3), *map(scalar, (1, 1, 1, 1, 1)), f32(2), False), {}, "the same"),
    ],
)
def test_what_is_not_computed(op, inputs, attributes, told):
    with pytest.raises(UnsupportedCall, match=rf"^{op}: .*{told}"):
        run(op, *inputs, **attributes)


@pytest.mark.parametrize("op", ["FloorDiv", "FloorMod"])
def test_whole_numbers_over_0(op):
    with pytest.raises(UnsupportedCall, match=f"{op}: 1 of 2 divisors are 0"):
        run(op, i32(1, 2), i32(0, 1))


def test_an_index_outside_has_no_place_in_a_one_hot():
    """By MindSpore's definition, unlike every other operator with indices."""
    assert run("OneHot", i32(-1, 3, 1), 3, ON, OFF, -1).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_of_equal_elements_the_first_is_largest():
    """By MindSpore's definition; its own kernel for the processor takes others."""
    values, places = run("TopK", np.array([[1, 3, 3, 0, 3], [0, 0, 0, 0, 0]], np.float32), 4)
    assert values.tolist() == [[3, 3, 3, 1], [0, 0, 0, 0]]
    assert places.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert run("ArgMaxWithValue", np.array([1, 3, 3], np.float32), 0, False)[0] == 1


@pytest.mark.filterwarnings("error")
def test_infinities_and_nan_are_results():
    assert np.isinf(run("Cast", np.array([1e6], np.float32), F16)).all()
    assert np.isinf(run("Exp", f32(1, scale=0) + np.float32(1000))).all()
    assert np.isnan(run("RealDiv", f32(1, scale=0), f32(1, scale=0))).all()


@pytest.mark.parametrize("op", ["Add", "ReduceSum", "Square", "Cast", "Exp"])
def test_tensors_without_dims_are_arrays(op):
    first, *others = CASES[op][0].inputs
    others = {"Add": [scalar(1)], "ReduceSum": [[], False, False], "Cast": [I32]}.get(op, others)
    result = run(op, scalar(2), *others)
    assert type(result) is np.ndarray and result.shape == ()


def test_large_sums_by_segment_are_exact_enough():
    """float32 and float16 sums of thousands of rows, against float64."""
    rows, places = f32(20000, 3), whole(0, 7, 20000)
    exact = np.stack([rows[places == place].astype(np.float64).sum(0) for place in range(7)])
    np.testing.assert_allclose(run("UnsortedSegmentSum", rows, places, 7), exact, atol=1e-3)
    half = rows.astype(np.float16)
    np.testing.assert_allclose(run("UnsortedSegmentSum", half, places, 7), exact, atol=0.5)
    np.testing.assert_allclose(run("ReduceSum", half, [0], False, False), half.astype(np.float64).sum(0), rtol=1e-3)
