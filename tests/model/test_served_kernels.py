"""Kernels that serve on a processor beside NumPy: sizes around every block, absent parts, fillers, many threads."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from msparallel.errors import RunError
from msparallel.model.kernel_library import kernel_library, kernel_path

pytestmark = pytest.mark.cpu
NONE = np.zeros(1, np.float32)
EPS = np.array([1e-5], np.float32)


@pytest.fixture(scope="module")
def library():
    return ctypes.CDLL(str(kernel_library().path()))


def call(library, name: str, *arrays: np.ndarray) -> np.ndarray:
    """Runs a kernel as MindSpore does; the last array is the output."""
    count = len(arrays)
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    assert all(array.flags.c_contiguous for array in arrays)
    failed = getattr(library, name)(
        count,
        (ctypes.c_void_p * count)(*(array.ctypes.data for array in arrays)),
        (ctypes.c_int * count)(*(array.ndim for array in arrays)),
        (ctypes.c_void_p * count)(*map(ctypes.addressof, shapes)),
        None, None, None,
    )  # fmt: skip
    assert failed == 0
    return arrays[-1]


def panels(weight: np.ndarray) -> np.ndarray:
    """By definition: panel p holds, for each k, weights of the rows 16 p .. 16 p + 15."""
    rows, width = weight.shape
    found = np.zeros((-(-rows // 16), width, 16), np.float32)
    for row in range(rows):
        found[row // 16, :, row % 16] = weight[row]
    return found


def test_panels():
    from msparallel.model.served_kernels import panels_of

    weight = np.random.default_rng(0).standard_normal((37, 5)).astype(np.float32)
    np.testing.assert_array_equal(panels_of(weight), panels(weight))


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 11, 13, 64])
def test_products(library, tokens):
    rng = np.random.default_rng(tokens)
    for width, k, biased in product((1, 15, 16, 17, 100, 512), (1, 7, 96), (False, True)):
        x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((tokens, k), (width, k)))
        bias = rng.standard_normal(width).astype(np.float32) if biased and width > 1 else NONE
        y = call(library, "Product", x, panels(weight), bias, np.full((tokens, width), np.nan, np.float32))
        expected = x.astype(np.float64) @ weight.T + (bias if bias is not NONE else 0)
        np.testing.assert_allclose(y, expected, atol=1e-4, err_msg=f"{width} x {k}")


def rms_norm(x, weight, eps=EPS[0]):
    return x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 64), (2, 5, 96), (200, 512)])
def test_norms(library, shape):
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal(shape).astype(np.float32) * 3, rng.standard_normal(shape[-1]).astype(np.float32)
    np.testing.assert_allclose(call(library, "RmsNorm", x, weight, EPS, np.empty_like(x)), rms_norm(x, weight),
                               rtol=1e-5, atol=1e-6)  # fmt: skip


def test_gates_of_every_size_of_number(library):
    gate = np.concatenate([np.linspace(-100, 100, 40_001), [0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30]]).astype(np.float32)
    x = np.stack([np.concatenate([gate, np.full_like(gate, 2)])] * 2)
    y = call(library, "SwiGlu", x, np.empty((2, len(gate)), np.float32))
    with np.errstate(over="ignore"):
        expected = 2 * gate / (1 + np.exp(-gate.astype(np.float64)))
    np.testing.assert_allclose(y, np.stack([expected] * 2), rtol=4e-7, atol=1e-35)


def attention(projected, positions, slots, keys, values, cosine, sine, norms):
    """[T, N * D] and the caches afterwards, one token and head after the other."""
    rows, fresh = positions.shape
    _, kv, length, d = keys.shape
    heads = projected.shape[1] // d - 2 * kv
    keys, values = keys.astype(np.float64), values.astype(np.float64)
    out = np.zeros((rows * fresh, heads * d))

    def turned(x, weight, token):
        if weight is not None:
            x = rms_norm(x, weight)
        if cosine is None:
            return x
        half = d // 2
        return x * cosine[token] + np.concatenate([-x[half:], x[:half]]) * sine[token]

    real = [(row, new) for row in range(rows) for new in range(fresh) if positions[row, new] < length]
    split = projected.astype(np.float64).reshape(rows * fresh, -1, d)
    for row, new in real:
        token = row * fresh + new
        for head in range(kv):
            at = slots[row], head, positions[row, new]
            keys[at] = turned(split[token, heads + head], None if norms is None else norms[1], token)
            values[at] = split[token, heads + kv + head]
    for row, new in real:
        token, seen = row * fresh + new, positions[row, new] + 1
        for head in range(heads):
            query = turned(split[token, head], None if norms is None else norms[0], token) / np.sqrt(d)
            place = slots[row], head * kv // heads, slice(seen)
            weights = np.exp(keys[place] @ query)
            out[token, head * d : (head + 1) * d] = weights @ values[place] / weights.sum()
    return out, keys, values


CASES = {  # requests, new tokens, heads, key heads, D, slots, length
    "one token": (1, 1, 4, 2, 16, 3, 9),
    "a batch": (5, 1, 4, 4, 64, 8, 300),
    "one key head": (3, 1, 7, 1, 32, 4, 40),
    "a piece": (1, 37, 4, 2, 16, 3, 100),
    "a long piece, odd heads": (1, 128, 6, 3, 24, 2, 400),
    "heads that are no multiple of a register": (2, 5, 4, 2, 10, 2, 50),
    "smallest heads": (2, 3, 2, 1, 2, 4, 6),
    "several rows of several tokens": (4, 12, 8, 2, 48, 4, 64),
}


@pytest.mark.parametrize("rotary", [True, False], ids=["turned", "as they are"])
@pytest.mark.parametrize("normed", [True, False], ids=["normed", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_attention(library, case, normed, rotary):
    rows, fresh, heads, kv, d, slot_count, length = CASES[case]
    rng = np.random.default_rng(3)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    keys, values = drawn(slot_count, kv, length, d), drawn(slot_count, kv, length, d)
    slots = rng.permutation(slot_count)[:rows].astype(np.int32)
    start = rng.integers(0, length - fresh + 1, rows)
    positions = (start[:, None] + np.arange(fresh)).astype(np.int32)
    positions[:, fresh - fresh // 3 :] = length  # what fills a piece up stands behind
    if rows > 2:
        positions[1] = length  # and so does what fills a batch up
    projected, norms = drawn(rows * fresh, (heads + 2 * kv) * d), drawn(2, d)
    cosine, sine = drawn(rows, fresh, 1, d), drawn(rows, fresh, 1, d)
    by_token = (cosine.reshape(-1, d), sine.reshape(-1, d)) if rotary else (None, None)
    expected, new_keys, new_values = attention(
        projected, positions, slots, keys, values, *by_token, norms if normed else None
    )
    tables, out = (cosine, sine) if rotary else (NONE, NONE), np.full((rows * fresh, heads * d), np.nan, np.float32)
    call(library, "Attend", projected, positions, slots, keys, values, *tables, norms if normed else NONE, EPS, out)
    np.testing.assert_allclose(out, expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(keys, new_keys, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values, new_values)


def test_kernels_that_are_called_at_once(library):
    """Only one of them has the threads; the others do without."""
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal((16, 256)).astype(np.float32), rng.standard_normal((999, 256)).astype(np.float32)
    held, expected = panels(weight), x @ weight.T

    def many(_):
        found = [call(library, "Product", x, held, NONE, np.empty((16, 999), np.float32)) for _ in range(50)]
        return all(np.allclose(one, expected, atol=1e-3) for one in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(8)))


def test_a_machine_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("MSPARALLEL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RunError, match=r"kernels that serve on a processor.*apt-get install g\+\+"):
        kernel_library().path()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_a_compiler_that_does_not_link_the_library_of_its_language(tmp_path, monkeypatch):
    monkeypatch.setenv("MSPARALLEL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "gcc")
    with pytest.raises(RunError, match="undefined reference"):
        kernel_library().path()
    assert not list(tmp_path.iterdir())


def test_threads_stay_when_their_user_lets_go_of_the_library():
    """MindSpore does so with the last operator."""
    code = """
import _ctypes, ctypes, sys, time
from test_served_kernels import NONE, call, np, panels
for _ in range(10):
    library = ctypes.CDLL(sys.argv[1])
    x, weight = np.ones((16, 256), np.float32), np.ones((1024, 256), np.float32)
    assert (call(library, "Product", x, panels(weight), NONE, np.empty((16, 1024), np.float32)) == 256).all()
    _ctypes.dlclose(library._handle)
    time.sleep(0.01)
"""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", code, str(kernel_library().path())]
    assert subprocess.run(command, env=environment, timeout=120).returncode == 0


def test_a_folder_with_a_colon_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MSPARALLEL_CACHE_DIR", str(tmp_path / "a:b"))
    with pytest.raises(RunError, match="first colon"):
        kernel_path.__wrapped__()


def test_another_processor_has_another_library(monkeypatch):
    from msparallel.model import kernel_library as module

    mine = kernel_library()._fingerprint()
    monkeypatch.setattr(module, "_processor", lambda: "another")
    assert kernel_library()._fingerprint() != mine
