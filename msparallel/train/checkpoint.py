"""Checkpoints on disk: written whole or not at all, checked when read.

In: arrays by name and a JSON state. Out: a folder `step_000100` with `model.safetensors`, `optimizer.safetensors` and
`state.json`; where ranks hold slices, a folder `rank_0003` for every rank with its two files and `slices.json`.

`state.json` (format version 1): `step`, `state` (what the trainer wants back), `ranks` (number of rank folders, 0 where
one copy holds everything), `files` {name: {bytes, sha256}} and `parameters`, the public map:
{name: {file, dtype, shape of the whole parameter, slice [[start, stop] of each dim], cut_by [axes of each dim]}}.
`slices.json` has `files` and `parameters` of one rank. Weights have the names and layouts of Hugging Face; the
embedding's rows are padded to model.vocab_multiple (`state.vocab_size` says how many are real).

>>> store = CheckpointStore(Path("output/quickstart/checkpoints"), keep=2)
>>> store.write(100, {"model": weights, "optimizer": moments}, {"seed": 1})
>>> store.newest().step
100
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from msparallel.errors import RunError, UserError
from msparallel.slice import Slice

FORMAT, VERSION = "msparallel-checkpoint", 1
KINDS = ("model", "optimizer")
_READERS = 8
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Arrays = Mapping[str, np.ndarray]


class Damaged(Exception):
    """A checkpoint folder that does not hold what its state says; the text names the file and what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One folder that was read and found whole.

    Attributes:
        path: the folder.
        step: optimizer steps done.
        state: what the trainer stored.
        ranks: rank folders; 0 where one copy holds everything.
        parameters: the public map of the read rank.
    """

    path: Path
    step: int
    state: dict[str, Any]
    ranks: int
    parameters: dict[str, dict[str, Any]] = field(repr=False)
    folder: Path

    def arrays(self, kind: str) -> dict[str, np.ndarray]:
        """Arrays of `model` or `optimizer` as this rank holds them."""
        return load_file(self.folder / f"{kind}.safetensors")


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        root: folder that holds `step_000100` and the like.
        keep: newest checkpoints that stay.
        rank, ranks: this process among those that hold different slices; ranks 0 means that one copy holds everything
            and this process writes it.
        barrier: returns when all ranks have called it; None where this process is the only writer.
        notice: takes one line for the person at the terminal.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int = 2,
        rank: int = 0,
        ranks: int = 0,
        barrier: Callable[[], None] | None = None,
        notice: Callable[[str], None] = print,
    ):
        self.root, self.keep = root, keep
        self.rank, self.ranks = rank, ranks
        self._barrier, self._notice = barrier or (lambda: None), notice

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is or will be."""
        return self.root / f"step_{step:06d}"

    def write(
        self,
        step: int,
        kinds: Mapping[str, Arrays],
        state: Mapping[str, Any],
        slices: Mapping[str, Slice] | None = None,
    ) -> Path:
        """Write `step_NNNNNN` and remove the ones that are too old. Returns its path.

        Args:
            kinds: the arrays of `model` and `optimizer`.
            slices: of arrays that are not whole; the others are.

        Raises:
            RunError: no space or no permission; the checkpoints that were there are untouched.
        """
        final = self.path(step)
        partial = final.with_name(f"{final.name}.partial")
        if self.rank == 0:
            self._prepare(partial, sum(array.nbytes for arrays in kinds.values() for array in arrays.values()))
        self._barrier()
        folder = partial / f"rank_{self.rank:04d}" if self.ranks else partial
        try:
            folder.mkdir(exist_ok=True)
            described = self._write_arrays(folder, kinds, slices or {})
            if self.ranks:
                _write_json(folder / "slices.json", described)
                self._barrier()
                described = {"files": {}, "parameters": {}}
            if self.rank == 0:
                head = {"format": FORMAT, "version": VERSION, "step": step, "ranks": self.ranks}
                _write_json(partial / "state.json", {**head, "state": dict(state), **described})
                self._publish(partial, final)
        except (OSError, SafetensorError) as error:
            needed = sum(array.nbytes for arrays in kinds.values() for array in arrays.values())
            shutil.rmtree(partial, ignore_errors=True)
            raise _cannot_write(self.root, needed, error) from error
        self._barrier()
        return final

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, None where there is none; says which ones it passed over.

        Raises UserError where one was written by a newer version of the format, or where there are some and none is
        whole: to start over would write over what may still be worth something.
        """
        for path in self._folders():
            try:
                return self._read(path)
            except Damaged as damage:
                self._notice(f"Checkpoint {path} is damaged and not used: {damage}")
        if self._folders():
            raise self._none_whole()
        return None

    def set_damaged_aside(self) -> list[tuple[Path, str]]:
        """Rename the damaged checkpoints that are newer than the newest whole one to `step_NNNNNN.damagedN`: new path
        and what is wrong, newest first. Unlike `newest` this reads every rank's slices.

        Raises UserError where there are some and none is whole, or where one is of a newer version of the format.
        """
        damaged = []
        for path in self._folders():
            try:
                self._read(path, every_hash=True)
                break
            except Damaged as damage:
                damaged.append((path, str(damage)))
        else:
            if damaged:
                raise self._none_whole()
        return [(_set_aside(path), what) for path, what in damaged]

    def _none_whole(self) -> UserError:
        return UserError(
            f"{self.root}\n  No checkpoint here is whole. Restore one, or start over with `--fresh` (the old output is "
            f"moved aside, not deleted)."
        )

    def _prepare(self, partial: Path, needed: int) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for left_over in (*self.root.glob("step_*.partial"), *self.root.glob("step_*.replaced")):
                shutil.rmtree(left_over)
            free = shutil.disk_usage(self.root).free
            if free < needed * max(1, self.ranks):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            partial.mkdir()
        except OSError as error:
            raise _cannot_write(self.root, needed * max(1, self.ranks), error) from error

    def _write_arrays(self, folder: Path, kinds: Mapping[str, Arrays], slices: Mapping[str, Slice]) -> dict[str, Any]:
        files, parameters = {}, {}
        for kind, arrays in kinds.items():
            path = folder / f"{kind}.safetensors"
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
            _sync(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for name, array in arrays.items():
                part = slices.get(name) or Slice(
                    shape=array.shape, bounds=tuple((0, n) for n in array.shape), cut_by=((),) * array.ndim
                )
                parameters[name] = {
                    "file": path.name,
                    "dtype": str(array.dtype),
                    "shape": list(part.shape),
                    "slice": [list(bound) for bound in part.bounds],
                    "cut_by": [list(axes) for axes in part.cut_by],
                }
        return {"files": files, "parameters": parameters}

    def _publish(self, partial: Path, final: Path) -> None:
        """The one moment at which the checkpoint begins to exist."""
        replaced = final.with_name(f"{final.name}.replaced")
        if final.exists():
            try:
                self._read(final, every_hash=True)
                shutil.rmtree(replaced, ignore_errors=True)
                final.rename(replaced)
            except Damaged:  # a resumed run passed over it
                _set_aside(final)
        partial.rename(final)
        _sync(self.root)
        shutil.rmtree(replaced, ignore_errors=True)
        folders = self._folders()
        for old in folders[folders.index(final) :][self.keep :]:  # newer ones are damaged, and count for nothing
            shutil.rmtree(old)

    def _folders(self) -> list[Path]:
        """Newest first."""
        paths = [path for path in self.root.glob("step_*") if re.fullmatch(r"step_\d{6,}", path.name)]
        return sorted(paths, key=lambda path: int(path.name[5:]), reverse=True)

    def _read(self, path: Path, *, every_hash: bool = False) -> Checkpoint:
        head = _read_json(path / "state.json")
        if head.get("format") != FORMAT or not isinstance(head.get("version"), int):
            raise Damaged(f"state.json is not of the format {FORMAT}.")
        if head["version"] > VERSION:
            raise UserError(
                f"{path}\n  The checkpoint has format version {head['version']}; this msparallel reads up to "
                f"{VERSION}. Use the msparallel that wrote it, or `--fresh` to start over."
            )
        expected = {"step": int, "state": dict, "ranks": int, "files": dict, "parameters": dict}
        for key, kind in expected.items():
            if not isinstance(head.get(key), kind):
                raise Damaged(f"state.json has no {key} that is a {kind.__name__}.")
        if head["step"] != int(path.name[5:]):
            raise Damaged(f"state.json is of step {head['step']}.")
        folders = [path / f"rank_{rank:04d}" for rank in range(head["ranks"])] or [path]
        mine = folders[self.rank if self.rank < len(folders) else 0]
        described = _read_json(mine / "slices.json") if head["ranks"] else head
        if every_hash:
            with ThreadPoolExecutor(_READERS) as pool:  # hashing leaves Python's lock to others
                list(pool.map(lambda folder: _check_hashes(folder, head), folders))
        for folder in () if every_hash else folders:  # every rank looks at all, so that all choose the same checkpoint
            _check_files(folder, _read_json(folder / "slices.json") if head["ranks"] else head, hashes=folder == mine)
        return Checkpoint(
            path=path,
            step=head["step"],
            state=head["state"],
            ranks=head["ranks"],
            parameters=described["parameters"],
            folder=mine,
        )


def _check_hashes(folder: Path, head: Mapping[str, Any]) -> None:
    described = _read_json(folder / "slices.json") if head["ranks"] else head
    _check_files(folder, described, hashes=False)
    for name, expected in described["files"].items():
        if sha256_of(folder / name) != expected["sha256"]:
            where = f"{folder.name}/{name}" if head["ranks"] else name
            raise Damaged(f"{where} has another content than when it was written (sha256 differs).")


def _set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint so that it is in nobody's way, and still there. Returns its new path."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    return path.rename(aside)


def _check_files(folder: Path, described: Mapping[str, Any], *, hashes: bool) -> None:
    for name, expected in described["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{name} is missing.")
        if path.stat().st_size != expected["bytes"]:
            raise Damaged(f"{name} has {path.stat().st_size:,} bytes instead of {expected['bytes']:,}.")
        if hashes and sha256_of(path) != expected["sha256"]:
            if folder.name.startswith("rank_"):  # only this rank knows, so the others would choose another checkpoint
                raise UserError(
                    f"{path}\n  The slice has another content than when it was written (sha256 differs). Move "
                    f"{folder.parent} away to go on from the checkpoint before it."
                )
            raise Damaged(f"{name} has another content than when it was written (sha256 differs).")


def _cannot_write(root: Path, needed: int, error: Exception) -> RunError:
    # safetensors reports the system's error as text
    number = getattr(error, "errno", None) or int((re.findall(r"os error (\d+)", str(error)) or [0])[0])
    if number in _NO_SPACE:
        existing = next(path for path in (root, *root.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        limit = " A file may not grow that large here (ulimit -f)." if number == errno.EFBIG else ""
        return RunError(
            f"{root}\n  No space for the checkpoint: it takes {needed:,} bytes and {free:,} are free.{limit} "
            f"Earlier checkpoints are untouched. Free some space or set train.output_dir to another disk, "
            f"then run again: it goes on from the last checkpoint."
        )
    return RunError(f"{root}\n  The checkpoint cannot be written: {error}. Earlier checkpoints are untouched.")


def sha256_of(path: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    """Have the file or folder on the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_json(path: Path, value: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise Damaged(f"{path.name} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path.name} is not an object.")
    return value
