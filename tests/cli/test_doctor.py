"""`msparallel doctor` at the terminal and as JSON: this machine, recorded folders, exit codes, imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from devices.npu_smi_texts import info_a2
from doctor.node import clean, write

from msparallel.doctor.ladder import RUNGS

ROOT = Path(__file__).parents[2]
FINDING = {"rule", "severity", "root_cause", "rank", "host", "evidence", "remedy"}


def run(*words: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "msparallel", "doctor", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=timeout)


def document(*words: str, code: int = 0, **env: str) -> dict:
    done = run(*words, "--json", **env)
    assert (done.returncode, done.stderr) == (code, ""), done
    return json.loads(done.stdout)


pure = pytest.mark.pure


@pure
def test_a_clean_folder(tmp_path):
    write(tmp_path, clean())
    told = document("--from", str(tmp_path))
    assert set(told) == {"findings", "rungs", "broken", "hosts", "left_out"}
    assert told["findings"] == [] and told["broken"] is None and told["hosts"] == ["node-0"]
    assert [rung["rung"] for rung in told["rungs"]] == list(RUNGS)
    assert [rung["state"] for rung in told["rungs"]] == ["passed"] * 3 + ["not_possible"] * 3


@pure
def test_a_broken_folder_names_the_root_cause_first(tmp_path):
    write(tmp_path, {**clean(), "env.txt": "ASCEND_HOME_PATH=/c\nASCEND_DEVICE_ID=0\nHCCL_ALGO=Tree\n",
                     "hccn_link_0.txt": "link status: DOWN\n", "notes.md": "x"})  # fmt: skip
    told = document("--from", str(tmp_path), code=1)
    first = told["findings"][0]
    assert set(first) == FINDING and first["rank"] is None
    assert (first["rule"], first["severity"], told["broken"]) == ("env_value", "error", "environment")
    assert first["evidence"] == [{"file": f"{tmp_path}/env.txt", "line": 3, "text": "HCCL_ALGO=Tree"}]
    assert "no algorithm Tree" in first["root_cause"]
    assert [rung["state"] for rung in told["rungs"]][:3] == ["broken", "not_reached", "not_reached"]
    assert told["left_out"] == [{"file": f"{tmp_path}/notes.md", "reason": "no name that the doctor reads"}]
    shown = run("--from", str(tmp_path))
    assert shown.returncode == 1 and shown.stderr == ""
    order = [shown.stdout.index(word) for word in ("environment      "
                                                   "BROKEN", "Root cause", "env_value", "Worth mending",
                                                   "Not read", "Mend environment first")]  # fmt: skip
    assert order == sorted(order) and max(map(len, shown.stdout.splitlines())) <= 100


@pure
def test_hosts_are_compared(tmp_path):
    write(tmp_path / "node_0", clean())
    newer = clean()["versions.txt"].replace("9.0.0", "9.0.1")
    write(tmp_path / "node_1", {**clean("node_1", 40), "versions.txt": newer})
    told = document("--from", str(tmp_path), code=1)
    assert told["hosts"] == ["node_0", "node_1"]
    assert {(one["rule"], one["severity"]) for one in told["findings"]} == {
        ("versions_differ", "error"), ("mindspore_cann", "warning")}  # fmt: skip
    assert told["findings"][0]["rule"] == "versions_differ"


@pure
def test_what_holds_for_many_hosts_is_told_once(tmp_path):
    for number in range(9):
        write(tmp_path / f"node_{number}", {**clean(f"node_{number}", 10 + 20 * number), "ports.txt": "8118\n"})
    done = run("--from", str(tmp_path))
    assert done.returncode == 0 and done.stdout.count("msrun_port_taken") == 1
    assert "Also on node_1, node_2, node_3, node_4, node_5, node_6 and 2 more." in done.stdout
    assert len([one for one in document("--from", str(tmp_path))["findings"] if one["rule"] == "msrun_port_taken"]) == 9


@pure
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "nowhere"), "There is no such folder"),
        (("--from", "recipes"), "Nothing that the doctor reads"),
        (("--from", "docs", "quickstart"), "leave out RECIPE, or --from"),
        (("--from", "docs", "--until", "collective"), "a recording runs nothing"),
        (("--save", "x", "--until", "links"), "leave out RECIPE, --from and --until"),
        (("--until", "moon"), "Invalid value for '--until'"),
        (("nosuch",), "no shipped recipe of this name"),
        (("missing/recipe.yaml",), "missing/recipe.yaml"),
    ],
)
def test_bad_input_is_told_with_exit_code_2(words, says):
    done = run(*words)
    assert done.returncode == 2 and says in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


@pure
def test_nothing_imports_mindspore(tmp_path):
    write(tmp_path, clean())
    code = ("import sys\nfrom msparallel.cli.main import _run\ncode = _run(['doctor', '--from', sys.argv[1], "
            "'--json'])\n"
            "print([name for name in ('mindspore', 'numpy', 'torch', 'matplotlib') if name in sys.modules], code,"
            " file=sys.stderr)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)  # fmt: skip
    assert done.stderr.strip() == "[] 0"


@pure
def test_this_machine_without_npu():
    told = document("--until", "links")
    states = {rung["rung"]: rung["state"] for rung in told["rungs"]}
    if not list(Path("/dev").glob("davinci*")):
        assert states["devices"] == "not_possible" and states["links"] == "not_possible"
    assert states["environment"] in ("passed", "broken") and states["collective"] == "not_asked"
    assert not [one for one in told["findings"] if one["rule"] == "record_unreadable"]


@pure
def test_this_machines_variables_count():
    told = document("--until", "environment", code=1, HCCL_RDMA_TIMEOUT="30", MS_SECRET_TOKEN="s3cret")
    found = [one for one in told["findings"] if one["rule"] == "env_value"]
    assert found[0]["evidence"][0]["text"] == "HCCL_RDMA_TIMEOUT=30" and "s3cret" not in str(told)


@pure
def test_npu_smi_of_this_machine_is_asked(tmp_path):
    tool = tmp_path / "npu-smi"
    (tmp_path / "table").write_text(info_a2(range(2), processes={}).replace("OK  ", "Alarm  ", 1))
    tool.write_text(f'#!/bin/sh\ncase "$*" in info) cat {tmp_path}/table;; *health*) echo "Health Status : Alarm";'
                    ' echo "Error Code : 0x80E01801";; *) echo "This device does not support it";; esac\n')  # fmt: skip
    tool.chmod(0o755)
    told = document("--until", "devices", code=1, PATH=f"{tmp_path}:{os.environ['PATH']}", ASCEND_HOME_PATH="/c")
    assert told["broken"] == "devices" and told["findings"][0]["rule"] == "device_health"
    assert told["findings"][0]["evidence"][0]["file"] == "npu-smi info"


@pure
def test_saving_and_reading_back(tmp_path):
    done = run("--save", str(tmp_path / "me"))
    assert done.returncode == 0 and "files written" in done.stdout
    told = document("--from", str(tmp_path / "me"), code=run("--from", str(tmp_path / "me")).returncode)
    assert told["left_out"] == [] and told["rungs"][0]["unchecked"] in ([], ["clock.txt"], ["firewall.txt"],
                                                                      ["clock.txt", "firewall.txt"])  # fmt: skip
    again = run("--save", str(tmp_path / "me"))
    assert again.returncode == 2 and "something there already" in again.stderr


@pure
def test_hostile_records_change_no_terminal(tmp_path):
    write(tmp_path / "a\x1b[31m", {"env.txt": "HCCL_ALGO=\x1b]0;owned\x07\nHCCL_BUFFSIZE=password=hunter2\n"})
    for words in ((), ("--json",)):
        done = run("--from", str(tmp_path), *words)
        assert done.returncode == 1 and "\x1b" not in done.stdout + done.stderr and "hunter2" not in done.stdout


@pytest.mark.slow
def test_the_whole_ladder_of_this_machine():
    told = json.loads(run("gpt_tiny_dp2_cpu", "--json", timeout=1200).stdout)
    states = {rung["rung"]: rung["state"] for rung in told["rungs"]}
    assert {states[name] for name in ("environment", "collective", "smallest", "recipe")} == {"passed"}
