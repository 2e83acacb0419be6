"""The C++ library of kernels that serve on a processor, without MindSpore.

In: the machine. Out: the library for its processor, built on first use. What calls it is `served_kernels.py`.

>>> kernel_library().path()  # doctest: +SKIP
PosixPath('/home/me/.cache/msparallel/served_kernels-4be1f3c2a5d0.so')
"""

from __future__ import annotations

import platform
from pathlib import Path

from msparallel.native_library import NativeLibrary

# Sums may be reordered, so that they become vector instructions; infinities and NaN keep their meaning.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
         "-fassociative-math", "-shared", "-fPIC", "-pthread")  # fmt: skip


def kernel_library() -> NativeLibrary:
    """The library for this machine."""
    return NativeLibrary(
        name="served_kernels",
        what="the library of kernels that serve on a processor",
        needs="C++17: g++ 7 or newer",
        exports="msparallel_served_kernels",
        sources=(Path(__file__).parent / "native" / "served_kernels.cc",),
        flags=FLAGS,
        fits=_processor(),
    )


def _processor() -> str:
    """What -march=native depends on: several machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {features}"
