"""The simulated Ascend target as a library that fits the MindSpore which is installed.

>>> simulated_target().path()  # doctest: +SKIP
PosixPath('/home/me/.cache/msparallel/simulated_ascend-2.10.0-4be1f3c2a5d0.so')
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from msparallel.errors import UserError
from msparallel.native_library import NativeLibrary

SUPPORTED_VERSIONS = ("2.9", "2.10")
"""MindSpore versions whose classes the C++ sources were checked against."""
SOURCES = tuple(sorted((Path(__file__).parent / "native").glob("*.cc")))
# The two macros are those of MindSpore's own builder of C++ extensions (ops/operations/custom_ops.py): with other
# values its classes have another layout.
FLAGS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", "-DENABLE_FAST_HASH_TABLE=1")
INCLUDES = (
    *("", "mindspore", "mindspore/core", "mindspore/core/include", "mindspore/core/mindrt", "mindspore/ccsrc"),
    *("mindspore/ccsrc/include", "third_party", "third_party/include", "third_party/robin_hood_hashing"),
)
LIBRARIES = ("mindspore_core", "mindspore_common", "mindspore_frontend")


def mindspore_version() -> str:
    """Version of the installed MindSpore, without importing it.

    Raises:
        UserError: there is none, or one that this was not made for.
    """
    if importlib.util.find_spec("mindspore") is None:
        raise UserError(
            "MindSpore is not installed, and its engine is what compiles. Try: pip install 'mindspore>=2.9,<2.11' "
            "(Linux, Python 3.10 to 3.12)."
        )
    version = importlib.metadata.version("mindspore")
    if ".".join(version.split(".")[:2]) not in SUPPORTED_VERSIONS:
        supported = " and ".join(f"{name}.x" for name in SUPPORTED_VERSIONS)
        raise UserError(
            f"MindSpore {version} is installed; the simulated Ascend target is made for {supported}. "
            "Try: pip install 'mindspore>=2.9,<2.11' in an environment of its own."
        )
    return version


def simulated_target() -> NativeLibrary:
    """Raises UserError: no MindSpore that fits."""
    version = mindspore_version()
    spec = importlib.util.find_spec("mindspore")
    assert spec is not None and spec.origin is not None, "mindspore_version has found it"
    mindspore = Path(spec.origin).parent
    return NativeLibrary(
        name=f"simulated_ascend-{version}",
        what="the simulated Ascend target",
        needs="C++17: g++ 7 or newer, and the headers that come with MindSpore's wheel",
        sources=SOURCES,
        flags=FLAGS,
        fits=" ".join((*INCLUDES, *LIBRARIES)),
        places=(
            *(f"-I{mindspore / 'include' / folder}" for folder in INCLUDES),
            *(f"-L{mindspore / 'lib'}", *(f"-l{name}" for name in LIBRARIES), f"-Wl,-rpath,{mindspore / 'lib'}"),
        ),
    )
