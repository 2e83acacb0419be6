"""Small C++ libraries of this package, built with the user's compiler on first use.

In: sources, flags, and what a library must fit besides. Out: its path. It is kept in the user's cache folder under a
name that holds a hash of all of these, so that a change of any builds anew.

>>> kernel_library().path()  # doctest: +SKIP
PosixPath('/home/me/.cache/msparallel/served_kernels-4be1f3c2a5d0.so')
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from msparallel.errors import RunError
from msparallel.launch.processes import die_with_parent, kill

COMPILERS = ("g++", "c++", "clang++")
_LIBRARY = (b"\x7fELF", b"\xcf\xfa\xed\xfe")
"""How shared libraries begin, on Linux and on macOS."""
_SEAL_BYTES = hashlib.sha256().digest_size
_LEAST_DISK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class NativeLibrary:
    """Attributes:
    name: its file name begins so.
    what: as a message calls it.
    needs: of a compiler, as a message says it.
    flags: of the compiler; folders that hold MindSpore go to `places` instead, since the hash has no paths.
    fits: what else it was made for, such as a kind of processor.
    """

    name: str
    what: str
    needs: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    fits: str = ""
    places: tuple[str, ...] = ()

    def path(self) -> Path:
        """The library, built if it is not in the cache.

        Raises:
            RunError: there is no C++ compiler, it failed, or there is no place for the library.
        """
        name = f"{self.name}-{self._fingerprint()}.so"
        folders = _cache_folders()
        for folder in folders:
            if self.usable(folder / name):
                return folder / name
        for folder in folders:
            if _writable(folder):
                return self.build(folder / name)
        raise RunError(
            f"There is no place for {self.what}: {', '.join(map(str, folders))} cannot be written. "
            "Set MSPARALLEL_CACHE_DIR to a folder that can."
        )

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(" ".join((*self.flags, self.fits)).encode())
        for source in self.sources:
            digest.update(source.read_bytes())
        return digest.hexdigest()[:12]

    def usable(self, path: Path) -> bool:
        """Whether the library is there, whole, and this user's or the system's: it will be loaded as code."""
        try:
            status = path.stat()
            return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022 and self._is_whole(path)
        except OSError:
            return False

    @staticmethod
    def _is_whole(path: Path) -> bool:
        """Whether a file is as it was built: what was cut off, or lost with the machine's power, would end the process
        that loads it."""
        content = path.read_bytes()
        library, seal = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
        return hashlib.sha256(library).digest() == seal

    def build(self, target: Path) -> Path:
        """Compile it. Raises RunError."""
        compiler = self.compiler()
        # The library appears whole or not at all: several processes may want it at once.
        handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".so")
        os.close(handle)
        try:
            command = [*compiler, *self.flags, *map(str, self.sources), "-o", partial, *self.places]
            code, words = _run(command)
            library = b"" if code else Path(partial).read_bytes()
            if code or not library.startswith(_LIBRARY):
                raise RunError(self._failure(shlex.join(compiler), code, words, target.parent))
            with open(partial, "ab") as file:  # behind what a loader reads
                file.write(hashlib.sha256(library).digest())
            os.chmod(partial, 0o755)
            os.replace(partial, target)
        finally:
            Path(partial).unlink(missing_ok=True)
        return target

    def compiler(self) -> list[str]:
        """The compiler's command; CXX may hold arguments too, as in "ccache g++". Raises RunError."""
        stated = os.environ.get("CXX", "").strip()
        try:
            words = shlex.split(stated)
        except ValueError as error:
            raise RunError(f"CXX={stated}: {error}. Try: CXX=g++") from None
        words = words or [next(filter(shutil.which, COMPILERS), "")]
        if not words[0] or shutil.which(words[0]) is None:
            looked = f"CXX={stated}" if stated else ", ".join(COMPILERS)
            raise RunError(
                f"No C++ compiler found ({looked}); {self.what} is built once. "
                "Try: apt-get install g++ (Debian, Ubuntu), yum install gcc-c++ (openEuler), or set CXX to a compiler."
            )
        return words

    def _failure(self, compiler: str, code: int, words: str, folder: Path) -> str:
        """Why there is no library, in the compiler's words."""
        lines = words.splitlines()
        told = [line for line in lines if "error" in line.lower() or "No space" in line or "ld:" in line] or lines
        if not told:
            told = [f"it ended with code {code} and said nothing" if code else "it ended well, and built no library"]
        if shutil.disk_usage(folder).free < _LEAST_DISK_BYTES:
            why = f"there is no space left in {folder}; set MSPARALLEL_CACHE_DIR to a roomier place"
        else:
            why = f"it needs {self.needs}"
        quoted = "\n".join(f"  | {line}" for line in told[:6])
        return f"{compiler} could not build {self.what} ({why}):\n{quoted}"


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
