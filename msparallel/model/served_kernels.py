"""Kernels that serve on a processor: what stands between the matrix products of a layer, one operator each.

In and out: float32 tensors. MindSpore's Custom operator calls functions of a C++ library that is built on first use
(`native/served_kernels.cc`); it is made for the processor of this machine.

>>> attended = attend()  # doctest: +SKIP
>>> mixed = attended(projected, positions, slots, key_cache, value_cache, cosine, sine, norms, eps)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model.kernel_library import kernel_path

PANEL = 16
"""Rows of a weight that stand side by side: two registers of eight numbers."""


def panels_of(weight: np.ndarray) -> np.ndarray:
    """A weight [N, K] as [ceil(N / 16), K, 16], filled up with zeros.

    >>> panels_of(np.arange(34, dtype=np.float32).reshape(17, 2)).shape
    (2, 2, 16)
    """
    rows, width = weight.shape
    if rows % PANEL:
        weight = np.pad(weight, ((0, -rows % PANEL), (0, 0)))
    return np.ascontiguousarray(weight.reshape(-1, PANEL, width).transpose(0, 2, 1), np.float32)


def _kernel(name: str, shape: Callable, dtype: Callable) -> ops.Custom:
    return ops.Custom(f"{kernel_path()}:{name}", shape, dtype, func_type="aot")


def _first(first, *others):
    return first


def attend() -> ops.Custom:
    """All of attention but its products with weights: norm and turn queries and keys, remember, attend.

    Inputs: projected [T, (N + 2 KV) * D] of R requests of S tokens, T = R * S; positions [R, S] and slots [R], int32;
    key and value cache [slots, KV, L, D], written in place; cosine and sine [R, S, 1, D], or [1] for none; norms
    [2, D] of queries and keys, or [1] for none; eps [1]. Output: [T, N * D], zeros for tokens at L and behind, which
    only fill a batch up.
    """

    def shape(projected, positions, slots, key_cache, *others):
        return projected[0], projected[1] - 2 * key_cache[1] * key_cache[3]

    return _kernel("Attend", shape, _first)


def swiglu() -> ops.Custom:
    """x [T, 2 F] -> silu(left half) * right half, [T, F]."""
    return _kernel("SwiGlu", lambda x: (x[0], x[1] // 2), _first)


class KernelLinear(nn.Cell):
    """x [T, in] -> x @ weight.T (+ bias), as `linear.Linear`; the weight is held in panels.

    MindSpore's own product packs the whole weight anew at every call, which takes longer than a product of few tokens.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        panels = (-(-out_features // PANEL), in_features, PANEL)
        self.weight = Parameter(initializer("zeros", panels, ms.float32), name="weight")
        self.has_bias = bias
        if bias:
            self.bias = Parameter(initializer("zeros", (out_features,), ms.float32), name="bias")
        self.none = Tensor(np.zeros(1, np.float32))
        self.kernel = _kernel("Product", lambda x, panels, bias: (x[0], out_features), _first)

    def construct(self, x):
        return self.kernel(x, self.weight, self.bias if self.has_bias else self.none)


class KernelRMSNorm(nn.Cell):
    """x [..., width] -> x / sqrt(mean(x^2) + eps) * weight, as `norm.RMSNorm`."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(initializer("ones", (width,), ms.float32), name="weight")
        self.eps = Tensor(np.array([eps], np.float32))
        self.kernel = _kernel("RmsNorm", _first, _first)

    def construct(self, x):
        return self.kernel(x, self.weight, self.eps)
