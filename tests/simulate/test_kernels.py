"""Every kernel of the virtual cluster against MindSpore's own for the processor, called as the bare primitive.

What the processor has no kernel for is compared with the same computed from operators that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulate.kernel_cases import CASES, Case, case, f32, whole

from msparallel.compile.graph import TensorType, Type
from msparallel.simulate.kernels import KERNELS, WRITES, Call

COMPOSED = {
    *(
        "EmbeddingDenseBackward",
        "FlashAttentionScore",
        "FlashAttentionScoreGrad",
        "Load",
        "NPUClearFloatStatusV2",
        "NPUGetFloatStatusV2",
    ),
    *("Outer", "PagedAttention", "ReshapeAndCache", "RmsNorm", "RmsNormGrad"),
}
"""Without a kernel for the processor; attention is tested in test_kernels_attention and test_kernels_paged."""


@pytest.fixture(scope="module")
def ms():
    import mindspore

    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    return mindspore


def tensors_of(ms, value: Any) -> Any:
    """Arrays as MindSpore's tensors, with memory of their own."""
    if isinstance(value, np.ndarray):
        return ms.Tensor(value.copy())
    if isinstance(value, (tuple, list)):
        return tuple(tensors_of(ms, item) for item in value)
    return value


def arrays_of(value: Any) -> Any:
    return tuple(map(arrays_of, value)) if isinstance(value, (tuple, list)) else np.asarray(value.asnumpy())


def frozen(value: Any) -> Any:
    """Arrays that a kernel cannot write into."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return tuple(map(frozen, value)) if isinstance(value, tuple) else value


def type_of(value: Any) -> Type:
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    return TensorType(str(value.dtype).capitalize(), value.shape)


def of_mindspore(ms, op: str, given: Case) -> Any:
    """What MindSpore's kernel gives; of operators that write, what stands in their inputs then."""
    primitive = ms.ops.Primitive(op)
    for name, value in given.attributes.items():
        primitive.add_prim_attr(name, value)
    inputs = tensors_of(ms, given.inputs)
    result = primitive(*(item for item in inputs if item is not None or op not in WRITES))
    if op in WRITES:
        written = tuple(arrays_of(inputs[place]) for place in WRITES[op])
        return written if len(written) > 1 else written[0]
    return arrays_of(result)


def check(op: str, given: Case, expected: Any) -> None:
    """Run the kernel and compare dtypes, shapes and values."""
    result = KERNELS[op](Call(op, frozen(given.inputs), given.attributes, type_of(expected)))
    compare(result, expected)


def compare(result: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert isinstance(result, tuple) and len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            compare(one, other)
        return
    assert isinstance(result, np.ndarray)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind == "f":
        tolerance = 2e-3 if expected.dtype == np.float16 else 2e-6
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
        np.testing.assert_allclose(result, expected, rtol=2 * tolerance, atol=tolerance * float(largest))
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.pure
def test_every_kernel_is_compared():
    assert set(KERNELS) == set(CASES) | COMPOSED and not set(CASES) & COMPOSED
    assert set(WRITES) <= set(KERNELS)
    assert all(len(cases) > 1 for cases in CASES.values())


@pytest.mark.cpu
@pytest.mark.parametrize("op", sorted(CASES))
def test_like_mindspore(ms, op):
    for given in CASES[op]:
        check(op, given, of_mindspore(ms, op, given))


def by_gradient(ms, forward: Callable[..., Any], inputs: tuple[np.ndarray, ...], outside: np.ndarray) -> Any:
    """Gradients of sum(forward(inputs) * outside)."""
    weights = ms.Tensor(outside)
    gradient = ms.grad(lambda *values: (forward(*values) * weights).sum(), tuple(range(len(inputs))))
    result = arrays_of(gradient(*tensors_of(ms, inputs)))
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 8)])
def test_rms_norm(ms, shape):
    x, gamma, dy, epsilon = f32(*shape, scale=0.1), f32(shape[-1]), f32(*shape), 1e-2

    def inverse(x):
        return ms.ops.rsqrt(ms.ops.square(x).mean(-1, keep_dims=True) + epsilon)

    def forward(x, gamma):
        return x * inverse(x) * gamma

    expected = arrays_of((forward(ms.Tensor(x), ms.Tensor(gamma)), inverse(ms.Tensor(x))))
    check("RmsNorm", case(x, gamma, epsilon), expected)
    check("RmsNormGrad", case(dy, x, expected[1], gamma), by_gradient(ms, forward, (x, gamma), dy))


@pytest.mark.cpu
@pytest.mark.parametrize("padding", [None, 1])
def test_embedding_grad(ms, padding):
    rows, indices, dy = f32(5, 3), whole(0, 5, 2, 4), f32(2, 4, 3)
    [expected] = by_gradient(ms, lambda w: ms.ops.gather(w, ms.Tensor(indices), 0), (rows,), dy)
    if padding is not None:
        expected[padding] = 0
    check("EmbeddingDenseBackward", case(dy, indices, 5, padding, False), expected)


@pytest.mark.pure
def test_outer_and_load():
    x, y = f32(3), f32(4)
    check("Outer", case(x, y), x[:, None] * y)
    x, y = whole(0, 9, 2), whole(0, 9, 3)
    check("Outer", case(x, y), x[:, None] * y)
    check("Load", case(x, None), x)


@pytest.mark.pure
@pytest.mark.parametrize("op", ["NPUGetFloatStatusV2", "NPUClearFloatStatusV2"])
def test_no_overflow_flag_is_set(op):
    check(op, case(whole(0, 9, 8)), np.zeros(8, np.int32))
