"""Asking the tools: stand-ins on PATH answer, refuse, hang, print without end and are busy."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from devices.npu_smi_texts import info_a2

from msparallel.devices import query
from msparallel.devices.hccn import HccnRefusal
from msparallel.devices.query import hccn_tool, query_devices, run_tool
from msparallel.devices.tool_text import DeviceUnavailable

pytestmark = pytest.mark.pure


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a stand-in on PATH; only what stands in for a tool is found."""
    monkeypatch.setattr(query, "NPU_SMI", ("npu-smi",))
    monkeypatch.setattr(query, "HCCN_TOOL", ("hccn_tool",))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def put(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    put.folder = tmp_path
    return put


def test_devices_are_asked_of_npu_smi(tool):
    (tool.folder / "table").write_text(info_a2(range(8)))
    tool("npu-smi", f'[ "$*" = info ] && cat {tool.folder}/table')
    assert [device.npu_id for device in query_devices().devices] == list(range(8))


def test_no_npu_smi_and_no_hccn_tool(tool):
    with pytest.raises(DeviceUnavailable, match="no Ascend driver"):
        query_devices()
    with pytest.raises(DeviceUnavailable, match="no Ascend driver"):
        hccn_tool(0, "-link", "-g")


def test_a_refusal_on_stderr_with_a_code_is_told(tool):
    tool("npu-smi", "echo 'dcmi module initialize failed. ret is -8005' >&2; exit 251")
    with pytest.raises(DeviceUnavailable, match="driver cannot be initialised") as caught:
        query_devices()
    assert caught.value.code == -8005


@pytest.mark.parametrize("end", ["wait", "exit 0", "kill -9 $$"])
def test_a_tool_that_hangs_is_killed_with_its_children(tool, end):
    tool("npu-smi", f"sleep 60 & echo $! > {tool.folder}/child; {end}")
    with pytest.raises(DeviceUnavailable, match="did not answer within 0.5 s"):
        query_devices(timeout_s=0.5)
    child = int((tool.folder / "child").read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child lives on")


def test_what_is_printed_without_end_is_cut(tool):
    tool("npu-smi", "yes")
    answer = run_tool([tool.folder / "npu-smi"], most_bytes=1000)
    assert answer.cut and len(answer.text) == 1000


def test_bytes_of_any_kind_are_text(tool):
    tool("npu-smi", r"printf '\377\376 no text'")
    assert run_tool([tool.folder / "npu-smi"]).text.endswith("no text")


def test_a_program_that_cannot_be_started(tool):
    (tool.folder / "npu-smi").write_text("not a program")
    (tool.folder / "npu-smi").chmod(0o700)
    with pytest.raises(DeviceUnavailable, match="cannot be started"):
        query_devices()


def test_hccn_tool_is_asked_again_while_busy(tool):
    tool("hccn_tool", f'echo "$*" >> {tool.folder}/calls\n[ $(wc -l < {tool.folder}/calls) -lt 3 ] && '
         "echo 'hccn_tool is busy, please try again.' && exit 0\necho 'link status: UP'")  # fmt: skip
    assert hccn_tool(5, "-link", "-g", wait_s=0.01) == "link status: UP\n"
    assert (tool.folder / "calls").read_text() == "-i 5 -link -g\n" * 3


def test_hccn_tool_that_stays_busy_is_given_up(tool):
    tool("hccn_tool", "echo 'hccn_tool is busy, please try again.'")
    with pytest.raises(HccnRefusal, match="Still busy after 5 tries") as caught:
        hccn_tool(0, "-link", "-g", wait_s=0.0)
    assert caught.value.busy
