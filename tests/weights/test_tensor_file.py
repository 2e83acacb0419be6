"""Our reader and writer of safetensors beside the reference library, and files that are no such thing."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from msparallel.errors import UserError
from msparallel.weights.tensor_file import TensorFile
from msparallel.weights.write_tensors import Planned, as_dtype, write_tensors

pytestmark = pytest.mark.pure


def arrays():
    rng = np.random.default_rng(0)
    return {"b.weight": rng.standard_normal((5, 7)).astype(np.float32), "a": np.arange(6, dtype=np.int64).reshape(2, 3),
            "c.bias": rng.standard_normal(9).astype(np.float16), "empty": np.zeros((0, 4), np.float32),
            "scalar": np.array(3.5, np.float32)}  # fmt: skip


def test_what_the_library_writes_is_read_whole_and_in_parts(tmp_path):
    save_file(arrays(), tmp_path / "m.safetensors")
    with TensorFile(tmp_path / "m.safetensors") as file:
        assert sorted(file.names()) == sorted(arrays())
        for name, values in arrays().items():
            assert file.shape(name) == values.shape and name in file
            np.testing.assert_array_equal(file.read(name), values)
        np.testing.assert_array_equal(file.read("b.weight", [(1, 4), (2, 7)]), arrays()["b.weight"][1:4, 2:7])


def test_our_file_is_the_librarys_byte_for_byte(tmp_path):
    values = {name: array for name, array in arrays().items() if array.size and array.ndim}
    save_file(values, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    words = {"float32": "F32", "float16": "F16", "int64": "I64"}
    planned = [Planned(name, words[str(one.dtype)], one.shape, lambda one=one: one) for name, one in values.items()]
    write_tensors(tmp_path / "ours.safetensors", planned)
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    assert load_file(tmp_path / "ours.safetensors").keys() == values.keys()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bfloat16_is_the_nearest_and_comes_back_exactly(tmp_path_factory, numbers):
    values = np.array(numbers, np.float32)
    path = tmp_path_factory.mktemp("bf16") / "m.safetensors"
    write_tensors(path, [Planned("x", "BF16", values.shape, lambda: values)])
    with TensorFile(path) as file:
        read = file.read("x")
    assert read.dtype == np.float32
    assert (np.isnan(read) == np.isnan(values)).all()
    finite = np.isfinite(values) & np.isfinite(read)
    bits = values.view(np.uint32)
    low, high = (bits & 0xFFFF0000).view(np.float32), ((bits & 0xFFFF0000) + np.uint32(0x10000)).view(np.float32)
    for value, found, below, above in zip(*(one[finite].astype(np.float64) for one in (values, read, low, high)),
                                          strict=True):  # fmt: skip
        assert abs(found - value) <= min(abs(below - value), abs(above - value))
    again = as_dtype(read, "BF16")
    np.testing.assert_array_equal(again[~np.isnan(read)], as_dtype(values, "BF16")[~np.isnan(read)])


def _file(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(("content", "words"), [
    (b"", "it is empty"),
    (b"\x01", "cut off, or of another format"),
    (b"PK\x03\x04" + b"\0" * 40, "cut off, or of another format"),
    ((5).to_bytes(8, "little") + b"{}{}{", "not JSON"),
    ((2).to_bytes(8, "little") + b"[]", "no object"),
])  # fmt: skip
def test_other_files_are_refused(tmp_path, content, words):
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=words):
        TensorFile(tmp_path / "m.safetensors")


@pytest.mark.parametrize(("entry", "words"), [
    ({"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}, "layer.weight has the type F99"),
    ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "layer.weight has no shape"),
    ({"dtype": "F32", "shape": [1]}, "layer.weight has no shape"),
    ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "takes 8 bytes, 4 are set aside"),
    ({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "layer.weight ends at byte .*: it is cut off"),
    (7, "layer.weight has the type 7"),
])  # fmt: skip
def test_a_damaged_tensor_is_named(tmp_path, entry, words):
    with pytest.raises(UserError, match=words):
        TensorFile(_file(tmp_path / "m.safetensors", {"layer.weight": entry}, b"\0" * 8))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, with_length):
    path = tmp_path_factory.mktemp("any") / "m.safetensors"
    path.write_bytes(len(content).to_bytes(8, "little") + content if with_length else content)
    with contextlib.suppress(UserError):
        TensorFile(path)
