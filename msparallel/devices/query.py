"""Asks npu-smi and hccn_tool of this machine.

In: nothing but what is on PATH. Out: DeviceTable, or a tool's text; DeviceUnavailable where there is no such tool, no
device, or no answer in time. Programs are started with an argument list, with no input, for a bounded time, and of what
they print a bounded part is kept.

>>> len(query_devices().devices)  # doctest: +SKIP
8
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msparallel.devices.hccn import HccnRefusal
from msparallel.devices.npu_smi import DeviceTable, parse_info
from msparallel.devices.tool_text import MOST_BYTES, DeviceUnavailable, ToolHung

NPU_SMI = ("npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi")
HCCN_TOOL = ("hccn_tool", "/usr/local/Ascend/driver/tools/hccn_tool")
"""On PATH, or where the driver's package puts it; /usr/local/sbin is not on every user's PATH."""

TIMEOUT_S = 30.0
BUSY_TRIES = 5
BUSY_WAIT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a program printed (both streams) and its exit code; `cut`: it printed more than is kept."""

    text: str
    code: int
    cut: bool


def find_tool(candidates: Sequence[str]) -> str | None:
    """The first of these programs that is here."""
    return next((path for name in candidates if (path := shutil.which(name))), None)


def run_tool(
    arguments: Sequence[str | Path],
    *,
    timeout_s: float = TIMEOUT_S,
    most_bytes: int = MOST_BYTES,
    environment: Mapping[str, str] | None = None,
    with_stderr: bool = True,
) -> Answer:
    """Run a program to its end.

    Args:
        environment: instead of this process's.
        with_stderr: keep what it prints there too; otherwise that is dropped.

    Raises:
        DeviceUnavailable: it cannot be started.
        ToolHung: it did not end in time, or left a child that holds its output open (all are killed).
    """
    shown = Path(arguments[0]).name
    try:
        process = subprocess.Popen(
            [str(word) for word in arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_stderr else subprocess.DEVNULL,
            start_new_session=True,
            env=dict(environment) if environment is not None else {**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise DeviceUnavailable(f"{shown} cannot be started: {error.strerror}.") from None
    assert process.stdout is not None
    kept, deadline, cut = bytearray(), time.monotonic() + timeout_s, False
    try:
        with selectors.DefaultSelector() as selector, process.stdout as pipe:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise ToolHung(f"{shown} did not answer within {timeout_s:g} s. The driver may hang: see "
                                   "`dmesg`, and ask `npu-smi info` by hand.")  # fmt: skip
                chunk = os.read(pipe.fileno(), 65_536)
                if not chunk:
                    break
                if len(kept) + len(chunk) > most_bytes:
                    kept += chunk[: most_bytes - len(kept)]
                    cut = True
                    break
                kept += chunk
            if not cut:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise ToolHung(f"{shown} did not end within {timeout_s:g} s.") from None
    finally:
        _end(process)
    return Answer(text=kept.decode("utf-8", "replace"), code=process.returncode, cut=cut)


def _end(process: subprocess.Popen) -> None:
    """Kill it and its children, unless its end was waited for. One that has ended and was not waited for keeps its
    number, so that no other group can have it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def npu_smi(*arguments: str, timeout_s: float = TIMEOUT_S) -> str:
    """What `npu-smi ARGUMENTS` prints, whatever its exit code. Raises DeviceUnavailable."""
    tool = find_tool(NPU_SMI)
    if tool is None:
        raise DeviceUnavailable("npu-smi is not on PATH, nor in /usr/local/sbin: this machine has no Ascend driver, "
                                "or this container was started without it.")  # fmt: skip
    return run_tool([tool, *arguments], timeout_s=timeout_s).text


def query_devices(timeout_s: float = TIMEOUT_S) -> DeviceTable:
    """The devices of this machine.

    Raises:
        DeviceUnavailable: no npu-smi, no device, in use, no answer.
        UserError: npu-smi printed what is not known here.
    """
    return parse_info(npu_smi("info", timeout_s=timeout_s), "npu-smi info")


def hccn_tool(device: int, *arguments: str, timeout_s: float = TIMEOUT_S, wait_s: float = BUSY_WAIT_S) -> str:
    """What `hccn_tool -i DEVICE ARGUMENTS` prints; asked again while it says that it is busy.

    Raises:
        DeviceUnavailable: no hccn_tool here, or no answer.
        HccnRefusal: still busy after BUSY_TRIES.
    """
    tool = find_tool(HCCN_TOOL)
    if tool is None:
        raise DeviceUnavailable("hccn_tool is not on PATH, nor in /usr/local/Ascend/driver/tools: this machine has no "
                                "Ascend driver, or its network cards have no tool.")  # fmt: skip
    for tried in range(BUSY_TRIES):
        text = run_tool([tool, "-i", str(device), *arguments], timeout_s=timeout_s).text
        if "hccn_tool is busy" not in text:
            return text
        if tried < BUSY_TRIES - 1:
            time.sleep(wait_s)
    raise HccnRefusal(f"hccn_tool -i {device} {' '.join(arguments)}\n  Still busy after {BUSY_TRIES} tries: another "
                      "program calls it all the time. One call at a time is served.", True, 1)  # fmt: skip
