"""The lease, the events, beats and marks: without MindSpore."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.devices.npu_smi import parse_info
from msparallel.launch.agent_devices import used_devices
from msparallel.launch.agent_line import LEASE_S, Events, Lease
from msparallel.launch.marked import MARK, end_marked, marked, process_state
from msparallel.launch.status import Beat, Heartbeat, read_beats

pytestmark = pytest.mark.pure


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def line():
    """(write end, Lease, clock)"""
    reading, writing = os.pipe()
    clock = Clock()
    yield writing, Lease(reading, clock), clock
    os.close(reading)


def test_a_lease_holds_as_long_as_lines_come(line):
    writing, lease, clock = line
    for _ in range(10):
        clock.now += LEASE_S
        assert lease.holds() is True
        os.write(writing, b"on\n")
        assert lease.holds() is True
    clock.now += LEASE_S + 0.1
    assert lease.holds() is False and "15 s" in lease.ended
    os.write(writing, b"on\n")
    assert lease.holds() is False, "a lease that has ended does not come back"
    os.close(writing)


def test_half_a_line_is_no_line(line):
    writing, lease, clock = line
    clock.now += LEASE_S
    os.write(writing, b"on")
    assert lease.holds()
    clock.now += 0.1
    assert not lease.holds()
    os.close(writing)


@pytest.mark.parametrize("parts", [[b"stop\n"], [b"on\nst", b"op\n"], [b"on\nstop\non\n"], [b" stop \n"]])
def test_stop_ends_it_at_once(line, parts):
    writing, lease, _ = line
    for part in parts:
        os.write(writing, part)
        holds = lease.holds()
    assert not holds and lease.ended == "it was told to stop"
    os.close(writing)


def test_the_end_of_input_ends_it(line):
    writing, lease, _ = line
    os.write(writing, b"on\n")
    os.close(writing)
    assert not lease.holds() and "ended" in lease.ended


def test_events_are_lines(tmp_path):
    reading, writing = os.pipe()
    events = Events(writing, node=3)
    events.send("started", ranks=[6, 7])
    events.send("failed", text="two\nlines")
    os.close(writing)
    told = [json.loads(one) for one in os.fdopen(reading).read().splitlines()]
    assert [(one["event"], one["node"]) for one in told] == [("started", 3), ("failed", 3)]
    assert told[1]["text"] == "two\nlines" and told[0]["time"] > 0


def test_a_reader_that_does_not_read_holds_nobody_up():
    reading, writing = os.pipe()
    events = Events(writing, node=0)
    for number in range(2000):
        events.send("ranks", ranks=[{"rank": number, "text": "x" * 1000}])
    events.send("failed", text="the end")
    kept = b""
    os.set_blocking(reading, False)
    while b"the end" not in kept:
        kept += os.read(reading, 65536)
        events.flush()
    told = [json.loads(one) for one in kept.splitlines()]
    assert told[-1]["text"] == "the end" and len(told) < 200
    os.close(reading)
    events.send("failed", text="to nobody")
    assert events.broken
    os.close(writing)


def test_beats_are_read_as_they_were_written(tmp_path):
    beat = Heartbeat(tmp_path, 3)
    [found] = read_beats(tmp_path, range(8))
    assert (found.rank, found.step, found.phase, found.loss) == (3, 0, "start", None)
    for step in (1, 10**12):
        beat(step, "step", 0.25, 4.5)
        [found] = read_beats(tmp_path, [3])
        assert (found.step, found.phase, found.step_s, found.loss) == (step, "step", 0.25, 4.5)
    beat(5, "checkpoint", 0.125, float("nan"))
    [found] = read_beats(tmp_path, [3])
    assert (found.step, found.loss) == (5, None), "a shorter record leaves nothing of a longer one, nan is no JSON"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode) | st.just(b"null") | st.just(b"[1]"))
def test_what_is_no_beat_is_left_out(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("beats")
    (folder / "rank_0.beat").write_bytes(data)
    assert all(isinstance(beat, Beat) for beat in read_beats(folder, [0, 1]))


def sleeper(mark: str, *, deaf: bool = False, child: bool = False) -> subprocess.Popen[bytes]:
    lines = "import signal, subprocess, sys, time\n"
    if deaf:
        lines += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    if child:
        lines += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
    lines += "print('up', flush=True); time.sleep(100)"
    process = subprocess.Popen(
        [sys.executable, "-c", lines], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.readline() == b"up\n"
    return process


def test_processes_are_found_by_their_mark_and_ended(tmp_path):
    mark = f"{tmp_path}#0"
    other = sleeper(f"{tmp_path}#00")
    plain, deaf, parent = sleeper(mark), sleeper(mark, deaf=True), sleeper(mark, child=True)
    stopped = sleeper(mark)
    os.kill(stopped.pid, signal.SIGSTOP)
    while process_state(stopped.pid) != "T":
        time.sleep(0.01)
    while len(marked(mark)) < 5:  # the child of `parent` has it by inheritance
        time.sleep(0.01)
    assert {process.pid for process in marked(mark)} > {plain.pid, deaf.pid, parent.pid, stopped.pid}
    ticks = []
    assert end_marked(mark, grace_s=0.5, tick=lambda: ticks.append(1)) == []
    assert [process.wait() for process in (plain, deaf, parent, stopped)] == [-15, -9, -15, -9]
    assert ticks and marked(mark) == [] and other.poll() is None
    other.kill()
    other.wait()


def test_a_process_that_has_ended_has_no_state():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    assert process_state(gone.pid) == "Z"
    gone.wait()
    assert process_state(gone.pid) == ""


HEAD = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
"""
CARD = """\
| {0}     910B3               | OK            | 92.1        40                0    / 0             |
| 0                         | 0000:C{0}:00.0  | 0           0    / 0          3161 / 65536         |
+===========================+===============+====================================================+
"""
TABLE = HEAD + "".join(CARD.format(number) for number in range(4))


@pytest.mark.parametrize(
    "used, visible, ids",
    [(2, "", [0, 1]), (4, "", [0, 1, 2, 3]), (8, "", [0, 1, 2, 3]), (2, "2,3", [2, 3]), (1, "3", [3]),
     (2, "2, 3", [0, 1]), (2, "x", [0, 1]), (2, "3,9", [3])],
)  # fmt: skip
def test_the_devices_that_a_node_uses(used, visible, ids):
    devices = parse_info(TABLE, "npu-smi info").devices
    assert [device.npu_id for device in used_devices(devices, used, visible)] == ids


def test_the_agent_imports_no_mindspore(repo: Path):
    code = "import sys, msparallel.launch.agent, msparallel.supervise.supervise; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=repo).returncode == 0
