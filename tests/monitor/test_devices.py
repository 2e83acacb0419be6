"""Marks of devices, npu-smi that answers, hangs and fails, hosts by another program than ssh."""

from __future__ import annotations

import os
import stat
import sys
import time

import pytest
from devices.npu_smi_texts import info_a2

from msparallel.cluster.hosts import Host
from msparallel.devices import query
from msparallel.devices.npu_smi import parse_info
from msparallel.monitor import machines
from msparallel.monitor.machines import Hosts, Machine, ThisMachine
from msparallel.monitor.marks import Limits, idle_among_working, marks_of
from msparallel.monitor.snapshot import Watch

pytestmark = pytest.mark.pure


def table_of(loads, *, processes=None, **options):
    """A table of as many devices, with these AI core loads."""
    text = info_a2(range(len(loads)), processes=processes, **options)
    lines = iter(loads)
    out = [line.replace(":00.0  | 0  ", f":00.0  | {next(lines)}  ", 1) if "0000:" in line else line
           for line in text.splitlines()]  # fmt: skip
    table = parse_info("\n".join(out), "test")
    assert [device.aicore_percent for device in table.devices] == list(loads)
    return table


def on(*ids):
    return {number: [(100 + number, "python", 100)] for number in ids}


@pytest.mark.parametrize(
    ("loads", "processes", "idle"),
    [
        ([90, 90, 0, 90], on(0, 1, 2, 3), {2}),
        ([90, 90, 0, 90], on(0, 1, 3), {2}),  # its process is gone
        ([90, 90, 0, 0, 0, 0, 0, 0], on(0, 1), set()),  # a job of two devices: the others are free
        ([90, 0], on(0, 1), {1}),
        ([0, 0, 0, 0], on(0, 1, 2, 3), set()),  # all wait for the same thing, or a profiler runs
        ([90, 90, 0, 90], None, {2}),  # the table of processes was cut off
        ([90, 90, 6, 90], on(0, 1, 2, 3), set()),
        ([0], on(0), set()),
    ],
)
def test_a_device_that_idles_while_its_neighbours_work(loads, processes, idle):
    assert {npu for npu, _ in idle_among_working(table_of(loads, processes=processes))} == idle


def test_health_heat_and_memory():
    table = parse_info(info_a2((0,), health="Alarm", temperature="80", hbm="63000 / 65536"), "test")
    assert [(mark.kind, mark.text) for mark in marks_of(table, "h", Limits(), {})] == [
        ("health", "health is Alarm"),
        ("temperature", "80 C, the limit is 85: check the fans"),
        ("memory", "96.1% of its memory is in use"),
    ]
    fine = parse_info(info_a2((0,), temperature="79", hbm="62000 / 65536"), "test")
    assert marks_of(fine, "h", Limits(), {}) == ()
    assert marks_of(fine, "h", Limits(temperature_c=84.0), {})[0].kind == "temperature"


def test_samples_of_idling_are_counted_and_forgotten():
    loads = [[90, 0, 90], [90, 0, 90], [90, 90, 90], [90, 0, 90]]

    class Told:
        def machines(self, now_s):
            return (Machine(host="h", source="s", time_s=now_s, table=table_of(loads.pop(0), processes=on(0, 1, 2))),)

    watch = Watch(Told(), None)
    texts = [[trouble.text.partition(":")[0] for trouble in watch.at(0.0).troubles] for _ in range(4)]
    idle = "idles while its neighbours work"
    assert texts == [[f"{idle} (1 sample)"], [f"{idle} (2 samples)"], [], [f"{idle} (1 sample)"]]


@pytest.fixture
def npu_smi(tmp_path, monkeypatch):
    monkeypatch.setattr(query, "NPU_SMI", ("npu-smi",))
    monkeypatch.setattr(machines, "NPU_SMI", ("npu-smi",))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def put(script):
        path = tmp_path / "npu-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return put


def test_npu_smi_answers(npu_smi, tmp_path):
    (tmp_path / "table").write_text(info_a2(range(8)))
    npu_smi(f"cat {tmp_path}/table")
    (machine,) = ThisMachine().machines(5.0)
    assert len(machine.table.devices) == 8 and machine.time_s == 5.0 and not machine.error


def test_npu_smi_that_is_not_there_fails_or_prints_something_else(npu_smi):
    assert "no Ascend driver" in ThisMachine().machines(0.0)[0].error
    npu_smi("echo 'dcmi module initialize failed. ret is -8005' >&2; exit 1")
    assert "-8005" in ThisMachine().machines(0.0)[0].error
    npu_smi("printf 'segmentation \\033[31m fault'; exit 139")
    (machine,) = ThisMachine().machines(0.0)
    assert machine.table is None and "\x1b" not in machine.error


def test_npu_smi_that_hangs_is_shown_as_such_and_left_alone_for_a_while(npu_smi, tmp_path, monkeypatch):
    npu_smi(f"echo x >> {tmp_path}/asked; sleep 60")
    this = ThisMachine(timeout_s=0.3)
    assert "did not answer within 0.3 s" in this.machines(0.0)[0].error
    began = time.monotonic()
    assert "did not answer" in this.machines(1.0)[0].error and time.monotonic() - began < 30
    assert (tmp_path / "asked").read_text().count("x") == 1
    monkeypatch.setattr(machines, "ASK_AGAIN_S", 0.0)
    this = ThisMachine(timeout_s=0.3)
    this.machines(0.0)
    npu_smi(f"cat {tmp_path}/table")
    (tmp_path / "table").write_text(info_a2((0,)))
    assert this.machines(1.0)[0].table is not None


def test_hosts_are_asked_through_another_program(npu_smi, tmp_path):
    """A stand-in for ssh: HOST COMMAND_LINE, which it gives to a shell as ssh does."""
    (tmp_path / "node_0").write_text(info_a2((0, 1)))
    names = [f"node_{number}" for number in range(6)]
    for name in names[3:]:
        (tmp_path / name).touch()
    (tmp_path / "node_2").write_text("dcmi module initialize failed. ret is -8005\n")
    npu_smi("exit 9")
    reach = tmp_path / "reach.py"
    reach.write_text(
        "import pathlib, sys\n"
        "host, line = sys.argv[1:]\n"
        "assert line == 'exec npu-smi info' or host == 'node_3', line\n"
        f"file = pathlib.Path({str(tmp_path)!r}) / host\n"
        "if not file.exists():\n    print('connect to host: no route\\r'); sys.exit(255)\n"
        "if host == 'node_3':\n    print('sh: 1: npu-smi: not found'); sys.exit(127)\n"
        "if host == 'node_4':\n    print('Permission denied, please try again.'); sys.exit(3)\n"
        "if host == 'node_5':\n    sys.exit(1)\n"
        "print(file.read_text())\n"
    )
    hosts = Hosts([Host(name=name) for name in names], [sys.executable, str(reach)])
    told = hosts.machines(0.0)
    assert [machine.host for machine in told] == names
    said = [" ".join(machine.error.split()) for machine in told]
    assert said[1] == f"{os.path.basename(sys.executable)} to node_1: connect to host: no route (exit code 255)"
    assert "ret is -8005" in said[2] and "cannot be initialised" in said[2] and said[2].endswith("(exit code 0)")
    assert said[3].startswith("node_3: sh: 1: npu-smi: not found (exit code 127). npu-smi is neither on the PATH")
    assert "Permission denied, please try again." in said[4] and said[4].endswith("run as root. (exit code 3)")
    assert said[5] == "npu-smi info on node_5: not a word (exit code 1)"
    npu_smi("echo 'dcmi module initialize failed. ret is -8020' >&2")
    assert "-8020" in Hosts([Host(name="localhost")]).machines(0.0)[0].error  # asked without ssh
    (tmp_path / "npu-smi").unlink()
    assert "no Ascend driver" in Hosts([Host(name="localhost")]).machines(0.0)[0].error
    assert len(told[0].table.devices) == 2
    assert "no route" in told[1].error and "-8005" in told[2].error
