"""The simulated Ascend target as a shared library, built with the user's compiler on first use.

In: the MindSpore that is installed. Out: the path of a library that fits it. It is kept in the user's cache folder by
MindSpore version and by a hash of sources and flags, so that an upgrade of either builds anew.

>>> library_path()  # doctest: +SKIP
PosixPath('/home/me/.cache/msparallel/simulated_ascend-2.10.0-4be1f3c2a5d0.so')
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from msparallel.errors import RunError, UserError
from msparallel.launch.processes import die_with_parent, kill

SUPPORTED_VERSIONS = ("2.9", "2.10")
"""MindSpore versions whose classes the C++ sources were checked against."""
SOURCES = tuple(sorted((Path(__file__).parent / "native").glob("*.cc")))
COMPILERS = ("g++", "c++", "clang++")
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


def library_path() -> Path:
    """The library, built if it is not in the cache.

    Raises:
        UserError: no MindSpore that fits.
        RunError: there is no C++ compiler, or it failed.
    """
    name = f"simulated_ascend-{mindspore_version()}-{_fingerprint()}.so"
    folders = _cache_folders()
    for folder in folders:
        if _usable(folder / name):
            return folder / name
    for folder in folders:
        if _writable(folder):
            return _build(folder / name)
    raise RunError(
        f"There is no place for the simulated Ascend target: {', '.join(map(str, folders))} cannot be written. "
        "Set MSPARALLEL_CACHE_DIR to a folder that can."
    )


def _cache_folders() -> list[Path]:
    """The user's cache, then a folder of the user's own beside other temporary files."""
    stated = os.environ.get("MSPARALLEL_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache")
    own = Path(tempfile.gettempdir()) / f"msparallel-{os.getuid()}"
    return [Path(stated).expanduser()] if stated else [home / "msparallel", own]


def _writable(folder: Path) -> bool:
    """Whether a library may be put there; nobody else may have put the folder in its place."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _usable(path: Path) -> bool:
    """Whether the library is there, whole, and this user's or the system's: it will be loaded as code."""
    try:
        status = path.stat()
        return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022 and _is_library(path)
    except OSError:
        return False


def _is_library(path: Path) -> bool:
    """Whether a file begins as a library does and has what the linker writes last."""
    with path.open("rb") as file:
        return file.read(len(_ELF)) == _ELF and _EXPORTED in file.read()


_ELF, _EXPORTED = b"\x7fELF", b"msparallel_export_graph"


def _fingerprint() -> str:
    digest = hashlib.sha256(" ".join((*FLAGS, *INCLUDES, *LIBRARIES)).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _compiler() -> list[str]:
    """The compiler's command; CXX may hold arguments too, as in "ccache g++"."""
    stated = os.environ.get("CXX", "").strip()
    words = shlex.split(stated) if stated else [next(filter(shutil.which, COMPILERS), "")]
    if not words[0] or shutil.which(words[0]) is None:
        looked = f"CXX={stated}" if stated else ", ".join(COMPILERS)
        raise RunError(
            f"No C++ compiler found ({looked}); the simulated Ascend target is a small library that is built once. "
            "Try: apt-get install g++ (Debian, Ubuntu), yum install gcc-c++ (openEuler), or set CXX to a compiler."
        )
    return words


def _build(target: Path) -> Path:
    spec = importlib.util.find_spec("mindspore")
    assert spec is not None and spec.origin is not None, "mindspore_version has found it"
    mindspore = Path(spec.origin).parent
    compiler = _compiler()
    # The library appears whole or not at all: several processes may want it at once.
    handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    command = [
        *(*compiler, *FLAGS, *map(str, SOURCES), "-o", partial),
        *(f"-I{mindspore / 'include' / folder}" for folder in INCLUDES),
        *(f"-L{mindspore / 'lib'}", *(f"-l{name}" for name in LIBRARIES), f"-Wl,-rpath,{mindspore / 'lib'}"),
    ]
    try:
        code, words = _run(command)
        if code or not _is_library(Path(partial)):
            raise RunError(_build_failure(shlex.join(compiler), code, words, target.parent))
        os.chmod(partial, 0o755)
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def _run(command: list[str]) -> tuple[int, str]:
    """Exit code and words of a compiler; it and its own processes end with this one, and leave no files."""
    with (
        tempfile.TemporaryDirectory(prefix="msparallel-") as folder,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,
            preexec_fn=die_with_parent,
        ) as process,
    ):
        try:
            words, _ = process.communicate()
        finally:
            kill(process)
    return process.returncode, words


def _build_failure(compiler: str, code: int, words: str, folder: Path) -> str:
    """Why there is no library, in the compiler's words."""
    lines = words.splitlines()
    told = [line for line in lines if "error" in line.lower() or "No space" in line or "ld:" in line] or lines
    if not told:
        told = [f"it ended with code {code} and said nothing" if code else "it ended well, and built no library"]
    if shutil.disk_usage(folder).free < _LEAST_DISK_BYTES:
        why = f"there is no space left in {folder}; set MSPARALLEL_CACHE_DIR to a roomier place"
    else:
        why = "it needs C++17: g++ 7 or newer, and the headers that come with MindSpore's wheel"
    quoted = "\n".join(f"  | {line}" for line in told[:6])
    return f"{compiler} could not build the simulated Ascend target ({why}):\n{quoted}"


_LEAST_DISK_BYTES = 2**20
