"""What a pod waits for: a name that resolves, a rank table that is whole."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from msparallel.errors import RecipeError, RunError
from msparallel.schedule import before_start

pytestmark = pytest.mark.pure


def table(**more: Any) -> dict[str, Any]:
    devices = [{"device_id": str(at), "device_ip": f"198.51.100.{at + 1}", "rank_id": str(at)} for at in range(8)]
    return {
        "version": "1.0",
        "server_count": "1",
        "status": "completed",
        "server_list": [{"server_id": "node_0", "device": devices}],
        **more,
    }


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "msparallel.schedule.before_start", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_name_that_resolves() -> None:
    done = run("--host", "127.0.0.1", "--wait", "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "127.0.0.1 is 127.0.0.1\n", "")


def test_a_name_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(name: str, *_: Any, **__: Any) -> Any:
        asked.append(name)
        if len(asked) < 3:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("198.51.100.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(before_start, "POLL_S", 0.01)
    assert before_start.wait_for_host("demo-worker-0.demo", time.monotonic() + 60) == "198.51.100.7"
    assert asked == ["demo-worker-0.demo"] * 3


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 300, "x..y", "\x1b[31m", ""])
def test_a_name_that_never_resolves_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not name:  # the empty name is this machine
        name = "."

    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    if name.endswith(".invalid"):
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(RunError, match="does not resolve"):
        before_start.wait_for_host(name, time.monotonic())


def test_a_table_becomes_a_file_once_it_is_whole(tmp_path: Path) -> None:
    """As a ConfigMap's volume has it: a link to a link, exchanged when the text changes."""
    volume, target = tmp_path / "config", tmp_path / "run" / "hccl.json"
    target.parent.mkdir()
    _publish(volume, {"status": "initializing"})
    later = threading.Timer(0.3, lambda: _publish(volume, table()))
    later.start()
    assert (volume / "hccl.json").is_symlink()
    assert before_start.main(["--table", str(volume / "hccl.json"), "--copy", str(target), "--wait", "30"]) == 0
    later.join()
    assert json.loads(target.read_text()) == table() and not target.is_symlink()
    assert os.listdir(target.parent) == ["hccl.json"]


def _publish(volume: Path, value: dict[str, Any]) -> None:
    version = volume.parent / f"..{time.monotonic_ns()}"
    version.mkdir()
    (version / "hccl.json").write_text(json.dumps(value))
    volume.mkdir(exist_ok=True)
    fresh = volume / "..data_tmp"
    fresh.symlink_to(version)
    os.replace(fresh, volume / "..data")
    if not (volume / "hccl.json").is_symlink():
        (volume / "hccl.json").symlink_to("..data/hccl.json")


def test_a_table_that_stays_unready_or_is_wrong(tmp_path: Path) -> None:
    source, target = tmp_path / "hccl.json", tmp_path / "out.json"
    source.write_text('{"status": "initializing"}')
    done = run("--table", str(source), "--copy", str(target), "--wait", "0.1")
    assert done.returncode == 1 and "has not written a rank table" in done.stderr and not target.exists()
    source.write_text(json.dumps(table(server_count="2")))
    with pytest.raises(RecipeError, match="server_count"):
        before_start.copy_table(str(source), str(target), time.monotonic() + 5)
    done = run("--table", str(source), "--copy", str(target), "--wait", "5")
    assert done.returncode == 2 and "Traceback" not in done.stderr and not target.exists()
    source.write_text(json.dumps(table()))
    with pytest.raises(RunError, match="cannot be written"):
        before_start.copy_table(str(source), str(tmp_path / "none" / "out.json"), time.monotonic() + 5)


def test_a_table_needs_a_place() -> None:
    done = run("--table", "x")
    assert done.returncode == 2 and "go together" in done.stderr
