"""A checkpoint is whole or does not count, whatever happens while it is written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from msparallel.errors import RunError, UserError
from msparallel.slice import Slice
from msparallel.train import checkpoint as module
from msparallel.train.checkpoint import CheckpointStore

pytestmark = pytest.mark.pure


def kinds(step: int, rows: int = 40) -> dict[str, dict[str, np.ndarray]]:
    weights = {"model.embed_tokens.weight": np.full((rows, 8), step, np.float32), "norm": np.ones(8, np.float32) * step}
    return {
        "model": weights,
        "optimizer": {**{f"adam_m.{k}": v / 2 for k, v in weights.items()}, "n": np.array([step])},
    }


def store(root: Path, **options) -> tuple[CheckpointStore, list[str]]:
    said: list[str] = []
    return CheckpointStore(root, notice=said.append, **options), said


def test_what_was_written_is_read(tmp_path):
    checkpoints, said = store(tmp_path / "checkpoints")
    assert checkpoints.newest() is None
    path = checkpoints.write(7, kinds(7), {"seed": 3})
    found = checkpoints.newest()
    assert (found.step, found.state, found.path, found.ranks) == (7, {"seed": 3}, path, 0)
    for kind, arrays in kinds(7).items():
        read = found.arrays(kind)
        assert set(read) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array)
            assert read[name].dtype == array.dtype
    assert found.parameters["model.embed_tokens.weight"] == {
        "file": "model.safetensors",
        "dtype": "float32",
        "shape": [40, 8],
        "slice": [[0, 40], [0, 8]],
        "cut_by": [[], []],
    }
    assert not said


def test_old_ones_go_and_the_newest_stay(tmp_path):
    checkpoints, _ = store(tmp_path, keep=2)
    for step in (5, 10, 15, 1_000_000):
        checkpoints.write(step, kinds(step), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000015", "step_1000000"]
    assert checkpoints.newest().step == 1_000_000


def test_a_damaged_newer_one_does_not_push_out_a_whole_one(tmp_path):
    checkpoints, _ = store(tmp_path, keep=2)
    for step in (10, 20, 30):
        checkpoints.write(step, kinds(step), {})
    (tmp_path / "step_000030" / "model.safetensors").unlink()
    assert checkpoints.newest().step == 20
    checkpoints.write(25, kinds(25), {})
    (tmp_path / "step_000025" / "model.safetensors").unlink()
    assert checkpoints.newest().step == 20


def test_a_step_can_be_written_again(tmp_path):
    checkpoints, _ = store(tmp_path)
    checkpoints.write(1, kinds(1), {"time": 1})
    checkpoints.write(1, kinds(1), {"time": 2})
    assert checkpoints.newest().state == {"time": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_a_damaged_one_is_set_aside_when_its_step_is_written_again(tmp_path):
    checkpoints, said = store(tmp_path)
    for step in (1, 2):
        checkpoints.write(step, kinds(step), {})
    for count in (1, 2):
        (tmp_path / "step_000002" / "model.safetensors").write_bytes(b"damaged %d" % count)
        assert checkpoints.newest().step == 1
        checkpoints.write(2, kinds(2), {})
        assert checkpoints.newest().step == 2
        assert (tmp_path / f"step_000002.damaged{count}" / "model.safetensors").read_bytes() == b"damaged %d" % count


def test_damaged_ones_before_a_whole_one_are_set_aside(tmp_path):
    checkpoints, said = store(tmp_path, keep=9)
    for step in (1, 2, 3, 4):
        checkpoints.write(step, kinds(step), {})
    assert checkpoints.set_damaged_aside() == []
    data = bytearray((tmp_path / "step_000004" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "step_000004" / "model.safetensors").write_bytes(data)
    (tmp_path / "step_000003" / "state.json").unlink()
    (tmp_path / "step_000001" / "state.json").unlink()  # older than the one that will be used: in nobody's way
    (first, why), (second, _) = checkpoints.set_damaged_aside()
    assert [first.name, second.name] == ["step_000004.damaged1", "step_000003.damaged1"] and "sha256 differs" in why
    assert checkpoints.newest().step == 2 and said == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step_000001", "step_000002", "step_000003.damaged1", "step_000004.damaged1"
    ]  # fmt: skip


def test_nothing_is_set_aside_where_none_is_whole(tmp_path):
    checkpoints, _ = store(tmp_path)
    checkpoints.write(1, kinds(1), {})
    (tmp_path / "step_000001" / "state.json").unlink()
    with pytest.raises(UserError, match="No checkpoint here is whole"):
        checkpoints.set_damaged_aside()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    assert store(tmp_path / "none")[0].set_damaged_aside() == []


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the program runs after it."""


@pytest.mark.parametrize("target", ["save_file", "_write_json", "_sync", "rename", "mkdir", "rmtree"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_at_any_moment_leaves_a_whole_one(tmp_path, monkeypatch, target, moment):
    """The n-th call of each operation on the disk is the last thing that happens; the next run finds step 2 or 3."""
    place = {"rename": Path, "mkdir": Path, "rmtree": shutil}.get(target, module)
    original = getattr(place, target)
    for count in range(1, 12):
        root = tmp_path / f"{count}"
        before, _ = store(root)
        for step in (1, 2):
            before.write(step, kinds(step), {})
        calls = 0

        def dying(*arguments, count=count, **options):
            nonlocal calls
            calls += 1
            if calls == count and moment == "before":
                raise Killed
            result = original(*arguments, **options)
            if calls == count:
                raise Killed
            return result

        with monkeypatch.context() as patch:
            patch.setattr(place, target, dying)
            try:
                store(root)[0].write(3, kinds(3), {})
                died = False
            except Killed:
                died = True
        after, said = store(root)
        found = after.newest()
        assert found.step in ((2, 3) if died else (3,)) and not said
        np.testing.assert_array_equal(found.arrays("model")["norm"], kinds(found.step)["model"]["norm"])
        after.write(4, kinds(4), {})  # what the kill left over is no obstacle
        assert all(path.name in ("step_000003", "step_000002", "step_000004") for path in root.iterdir())
        if not died:
            break
    else:
        pytest.fail(f"{target} is called without end")
    assert count > 1 or target == "rmtree"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "one byte differs"])
def test_a_damaged_newest_gives_way_to_its_predecessor(tmp_path, name, damage):
    checkpoints, said = store(tmp_path)
    for step in (1, 2):
        checkpoints.write(step, kinds(step), {})
    path = tmp_path / "step_000002" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        middle = content.index(b"format") if name == "state.json" else len(content) - 5
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert checkpoints.newest().step == 1
    assert len(said) == 1 and "step_000002" in said[0] and name in said[0]
    checkpoints.write(2, kinds(2), {})
    assert checkpoints.newest().step == 2


def test_none_whole_is_not_a_start_from_nothing(tmp_path):
    checkpoints, said = store(tmp_path)
    checkpoints.write(1, kinds(1), {})
    (tmp_path / "step_000001" / "state.json").unlink()
    with pytest.raises(UserError, match="No checkpoint here is whole.*--fresh"):
        checkpoints.newest()
    assert said


@pytest.mark.parametrize(
    ("key", "value"), [("step", "2"), ("step", 7), ("state", []), ("ranks", "x"), ("files", []), ("parameters", None)]
)
def test_a_state_of_another_kind_is_damage(tmp_path, key, value):
    checkpoints, said = store(tmp_path)
    checkpoints.write(1, kinds(1), {})
    checkpoints.write(2, kinds(2), {})
    path = tmp_path / "step_000002" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert checkpoints.newest().step == 1
    assert len(said) == 1 and key in said[0]


def test_a_newer_format_is_refused(tmp_path):
    checkpoints, _ = store(tmp_path)
    path = checkpoints.write(1, kinds(1), {}) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": module.VERSION + 1}))
    with pytest.raises(UserError, match=f"format version {module.VERSION + 1}"):
        checkpoints.newest()


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_checkpoint import kinds
from msparallel.errors import RunError
from msparallel.train.checkpoint import CheckpointStore
store = CheckpointStore(Path({root!r}))
store.write(1, kinds(1), {{}})
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    store.write(2, kinds(2, rows=200_000), {{}})
except RunError as error:
    print(error)
    assert error.exit_code == 1
assert store.newest().step == 1
assert [p.name for p in Path({root!r}).iterdir()] == ["step_000001"]
"""


def run_full(root: Path, limit: int) -> str:
    script = FULL.format(tests=str(Path(__file__).parent), root=str(root), limit=limit)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_that_may_not_grow_leaves_the_previous_one(tmp_path):
    text = run_full(tmp_path / "checkpoints", limit=100_000)
    assert "No space for the checkpoint" in text and "ulimit -f" in text


def test_a_full_disk_leaves_the_previous_one_and_says_how_much_is_needed(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        text = run_full(disk / "checkpoints", limit=0)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    needed = sum(array.nbytes for arrays in kinds(2, rows=200_000).values() for array in arrays.values())
    assert f"takes {needed:,} bytes" in text and "are free" in text


def test_a_disk_that_fills_while_writing(tmp_path, monkeypatch):
    """The space was there when writing began."""
    checkpoints, _ = store(tmp_path)
    checkpoints.write(1, kinds(1), {})

    def full(*_):
        raise module.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(RunError, match="No space for the checkpoint"):
        checkpoints.write(2, kinds(2), {})
    assert checkpoints.newest().step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        store(tmp_path / "file" / "checkpoints")[0].write(1, kinds(1), {})


def write_ranks(root: Path, step: int, ranks: int) -> None:
    """Each rank holds its rows of one parameter."""
    barrier = threading.Barrier(ranks)

    def write(rank: int) -> None:
        weights = np.arange(step, step + 16, dtype=np.float32).reshape(8, 2)
        rows = (8 // ranks * rank, 8 // ranks * (rank + 1))
        slices = {"w": Slice(shape=(8, 2), bounds=(rows, (0, 2)), cut_by=(("tp",), ()))}
        checkpoints = CheckpointStore(root, rank=rank, ranks=ranks, barrier=barrier.wait, notice=print)
        checkpoints.write(step, {"model": {"w": weights[slice(*rows)]}, "optimizer": {}}, {"by": "rank 0"}, slices)

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_ranks_write_their_slices_and_a_public_map(tmp_path):
    write_ranks(tmp_path, 3, ranks=4)
    for rank in range(4):
        checkpoints, _ = store(tmp_path, rank=rank, ranks=4)
        found = checkpoints.newest()
        assert (found.step, found.ranks, found.state) == (3, 4, {"by": "rank 0"})
        assert found.parameters["w"]["slice"] == [[2 * rank, 2 * rank + 2], [0, 2]]
        assert found.parameters["w"]["shape"] == [8, 2] and found.parameters["w"]["cut_by"] == [["tp"], []]
        np.testing.assert_array_equal(
            found.arrays("model")["w"], np.arange(3, 19).reshape(8, 2)[2 * rank : 2 * rank + 2]
        )


def test_all_ranks_fall_back_when_one_slice_is_short(tmp_path):
    for step in (1, 2):
        write_ranks(tmp_path, step, ranks=2)
    path = tmp_path / "step_000002" / "rank_0001" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert [store(tmp_path, rank=rank, ranks=2)[0].newest().step for rank in range(2)] == [1, 1]


def test_a_slice_of_any_rank_that_is_damaged_sets_its_checkpoint_aside(tmp_path):
    """`newest` of a rank hashes its own slice only, since all ranks read at once; one process looks at all."""
    for step in (1, 2):
        write_ranks(tmp_path, step, ranks=2)
    path = tmp_path / "step_000002" / "rank_0001" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    checkpoints, _ = store(tmp_path, rank=0, ranks=2)
    [(aside, why)] = checkpoints.set_damaged_aside()
    assert aside.name == "step_000002.damaged1" and "rank_0001/model.safetensors" in why
    assert [store(tmp_path, rank=rank, ranks=2)[0].newest().step for rank in range(2)] == [1, 1]
