"""A run that goes on is seen by its lock, and the lock is never taken."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest
import yaml
from tiny_recipe import run, sections, write_recipe

from msparallel.launch import preflight_lock
from msparallel.launch.preflight_lock import holders
from msparallel.plan import resolve
from msparallel.recipe.load import load_text
from msparallel.train.run import run_dir, sole_run

pytestmark = pytest.mark.pure
LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


@pytest.fixture
def plan(tmp_path):
    return resolve(load_text(yaml.safe_dump(sections(tmp_path)), str(tmp_path / "tiny.yaml")))


def test_who_trains_and_who_supervises(plan):
    folder, own = run_dir(plan), f"(pid {os.getpid()})"
    assert holders(folder) == ()
    with sole_run(plan, 1), sole_run(plan, "supervise", "supervising"):
        assert holders(folder) == (f"node rank 1 {own}", f"msparallel supervise {own}")
    assert holders(folder) == () and folder.with_name(".tiny.1.lock").exists()


def test_the_run_of_another_name_is_none_of_ours(plan):
    with sole_run(plan):
        assert holders(run_dir(plan).with_name("tin")) == () == holders(run_dir(plan).with_name("tiny.0"))


def test_asking_takes_nothing(plan, monkeypatch):
    """A run that starts while it is asked is not refused: no call that locks is made."""
    with sole_run(plan):
        pass
    monkeypatch.setattr(fcntl, "flock", None)
    monkeypatch.setattr(fcntl, "lockf", None)
    assert holders(run_dir(plan)) == ()


def test_another_device_number_than_the_file_tells(plan, monkeypatch):
    """As on btrfs and overlayfs: then the process's open files decide."""
    with sole_run(plan):
        inode = run_dir(plan).with_name(".tiny.0.lock").stat().st_ino
        for pid, expected in ((os.getpid(), 1), (2**22 + 5, 0)):
            text = f"1: FLOCK  ADVISORY  WRITE {pid} ff:ff:{inode} 0 EOF\n"
            monkeypatch.setattr(preflight_lock, "_proc_locks", lambda text=text: text)
            assert len(holders(run_dir(plan))) == expected


def test_a_lock_of_bytes_as_nfs_makes_of_flock(plan):
    folder = run_dir(plan)
    folder.parent.mkdir(parents=True)
    path = folder.with_name(".tiny.0.lock")
    with subprocess.Popen([sys.executable, "-c", LOCK, path], stdin=-1, stdout=-1) as process:
        assert process.stdout.readline() == b"held\n"
        assert holders(folder) == (f"node rank 0 (pid {process.pid})",)
        process.communicate(b"\n")
    assert holders(folder) == ()


def test_check_and_launch_are_refused_while_a_run_goes_on(tmp_path, plan):
    path = write_recipe(tmp_path)
    with sole_run(plan):
        done = run("launch", path, "--check", cwd=tmp_path)
        assert done.returncode == 2 and "Ready" not in done.stdout
        assert "A run of this recipe goes on in train.output_dir: node rank 0 (pid " in done.stderr
        assert "in use !" in done.stderr
        assert run("launch", path, cwd=tmp_path).returncode == 2
    done = run("launch", path, "--check", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("Ready"), done.stderr
