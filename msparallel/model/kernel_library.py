"""The C++ library of kernels that serve on a processor, without MindSpore.

In: the machine. Out: the library for its processor, built on first use. What calls it is `served_kernels.py`.

>>> kernel_path()  # doctest: +SKIP
PosixPath('/home/me/.cache/msparallel/served_kernels-4be1f3c2a5d0.so')
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from msparallel.errors import RunError
from msparallel.native_library import NativeLibrary

# Sums stay in their order: the two steps of an exponential's reduction would become one. `defs`: what `gcc` or `clang`
# instead of their C++ forms leave out shows here, not where the library is loaded. `nodelete`: MindSpore lets go of a
# library with its last operator, but its threads stay.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-pthread",
         "-Wl,-z,defs,-z,nodelete")  # fmt: skip


@functools.cache
def kernel_path() -> Path:
    """Where the library stands, built if it was not there.

    Raises RunError: there is no compiler, it failed, or MindSpore could not load from where the library is kept.
    """
    path = kernel_library().path()
    if ":" in str(path):
        raise RunError(f"{path}\n  MindSpore takes a library's path as ending at its first colon. Set "
                       "MSPARALLEL_CACHE_DIR to a folder without one.")  # fmt: skip
    return path


def kernel_library() -> NativeLibrary:
    """The library for this machine."""
    return NativeLibrary(
        name="served_kernels",
        what="the library of kernels that serve on a processor",
        needs="C++17: g++ 7 or newer",
        sources=(Path(__file__).parent / "native" / "served_kernels.cc",),
        flags=FLAGS,
        fits=_processor(),
    )


def _processor() -> str:
    """What -march=native and the linker depend on: several machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {' '.join(platform.libc_ver())} {features}"
