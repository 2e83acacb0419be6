"""A rank's last word: also on a full disk, and told from the end that msrun gave the others."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from msparallel.launch.msrun import without_our_own
from msparallel.launch.status import WorkerState, WorkerStatus, first_failure, read_states

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("text", ["disk full", "long " * 5000])
def test_a_full_disk_keeps_nobody_from_saying_so(tmp_path, monkeypatch, number, text):
    status = WorkerStatus(tmp_path, 0)

    def full(self, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", full)
    status.failed(text, exit_code=1)
    [state] = read_states(tmp_path, [0])
    assert (state.state, state.exit_code) == ("failed", 1)
    assert state.text == text or (len(state.text) >= 1000 and text.startswith(state.text))


def test_what_is_no_full_disk_is_not_hidden(tmp_path, monkeypatch):
    status = WorkerStatus(tmp_path, 0)

    def broken(self, data):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "write_bytes", broken)
    with pytest.raises(OSError, match="Input/output error"):
        status.done()


def gone(rank: int, time_s: float, state: str = "killed") -> WorkerState:
    return WorkerState(rank=rank, pid=1000 + rank, state=state, time=time_s)


def blamed(states: list[WorkerState], log: Path) -> int | None:
    failure = first_failure(without_our_own(states, log))
    return None if failure is None else failure.rank


def test_the_rank_that_msrun_found_dead_is_blamed(tmp_path):
    """Both are gone without a word; which log is the older says nothing."""
    log = tmp_path / "msrun_0.log"
    states = [gone(0, 20.0), gone(1, 10.0)]
    assert blamed(states, log) == 1, "nothing is known"
    log.write_text("Worker process 1000 exit with exception. Error code: -9.\n")
    assert blamed(states, log) == 0


def test_a_rank_that_said_why_goes_before_those_that_msrun_ended(tmp_path):
    log = tmp_path / "msrun_0.log"
    log.write_text("Worker process 1000 exit with exception. Error code: 1.\n")
    states = [gone(0, 20.0, "failed"), gone(1, 10.0)]
    assert blamed(states, log) == 0


def test_a_rank_that_was_killed_goes_before_those_that_complain(tmp_path):
    log = tmp_path / "msrun_0.log"
    log.write_text("Worker process 1001 exit with exception. Error code: -11.\n")
    states = [gone(0, 5.0, "failed"), gone(1, 10.0), gone(2, 1.0)]
    assert blamed(states, log) == 1


def test_a_state_that_is_being_written_over_is_read_again(tmp_path):
    WorkerStatus(tmp_path, 0)
    path = tmp_path / "rank_0.json"
    whole = path.read_text()
    path.write_text(whole[:20])
    mend = f"import time; time.sleep(0.03); open({str(path)!r}, 'w').write({whole!r})"
    process = subprocess.Popen([sys.executable, "-S", "-c", mend])
    for _ in range(50):
        try:
            [state] = read_states(tmp_path, [0])
            break
        except ValueError:  # the other program has not begun yet
            continue
    process.wait()
    assert state.pid == os.getpid() and json.loads(whole)["rank"] == 0
