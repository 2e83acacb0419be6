"""Incidents are kept and numbered; what could go from a full disk; what runs on fewer nodes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from msparallel.supervise import incident as incidents
from msparallel.supervise.advice import fewer_nodes, to_free
from msparallel.supervise.attempt import Outcome
from msparallel.supervise.fault import Fault
from msparallel.supervise.incident import keep, write

pytestmark = pytest.mark.pure


def outcome(**words) -> Outcome:
    fault = Fault(kind="worker_killed", text="Rank 1 was killed", rank=1)
    return Outcome(result=None, fault=fault, step=7, left=(), words=words or {}, devices={})


def run_folder(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker_0.log").write_text("step 1\nOSError: [Errno 98] Address already in use\n")
    (tmp_path / "logs" / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "logs" / "sub").mkdir()
    return tmp_path


def test_logs_are_kept_with_what_is_wrong_in_them(tmp_path):
    folder = run_folder(tmp_path)
    words = outcome()
    words.words[0] = "  | ssh: gone"
    first = keep(folder, words)
    assert first.folder == folder / "incidents" / "001" and first.problem == ""
    assert sorted(path.name for path in (first.folder / "logs").iterdir()) == ["agent_0.log", "worker_0.log"]
    assert first.cause is not None and first.cause["evidence"][0]["file"] == "worker_0.log"
    write(first, words, {"attempt": 1})
    told = json.loads((first.folder / "incident.json").read_text())
    assert told["attempt"] == 1 and told["fault"]["rank"] == 1
    assert told["diagnosis"]["findings"][0]["rule"] == first.cause["rule"]
    assert keep(folder, outcome()).folder.name == "002"


@pytest.mark.parametrize(
    "program, told", [("exit 3\n", "code 3"), ("echo boom >&2; exit 1\n", "boom"), ("exec sleep 9\n", "0.5 s")]
)
def test_a_diagnosis_that_fails_keeps_nothing_from_going_on(tmp_path, monkeypatch, program, told):
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\n{program}")
    stand_in.chmod(0o755)
    monkeypatch.setattr(incidents.sys, "executable", str(stand_in))
    monkeypatch.setattr(incidents, "DIAGNOSIS_S", 0.5)
    found = keep(run_folder(tmp_path), outcome())
    assert found.folder is not None and found.findings == () and told in found.problem


def test_numbers_go_on_after_the_highest(tmp_path):
    (tmp_path / "incidents" / "017").mkdir(parents=True)
    (tmp_path / "incidents" / "notes").mkdir()
    assert keep(tmp_path, outcome()).folder.name == "018"


def test_of_a_long_log_both_ends_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(incidents, "MOST_BYTES", 100)
    folder = run_folder(tmp_path)
    (folder / "logs" / "worker_1.log").write_text("a" * 500 + "b" * 500)
    kept = (keep(folder, outcome()).folder / "logs" / "worker_1.log").read_text()
    assert kept == "a" * 50 + "\n... 900 bytes left out ...\n" + "b" * 50


def test_a_disk_that_takes_nothing_is_told(tmp_path):
    (tmp_path / "incidents").write_text("a file where the folder should be")
    found = keep(tmp_path, outcome())
    assert found.folder is None and "could not be kept" in found.problem
    write(found, outcome(), {"attempt": 1})


def test_a_run_without_logs(tmp_path):
    found = keep(tmp_path, outcome())
    assert found.folder is not None and found.cause is None


def test_what_could_go(tmp_path):
    run = tmp_path / "tiny"
    sizes = {"incidents/001/x": 10, "checkpoints/step_000010.damaged1/m": 300, "checkpoints/step_000008/m": 900}
    for name, size in sizes.items():
        (run / name).parent.mkdir(parents=True)
        (run / name).write_bytes(bytes(size))
    (tmp_path / "tiny.old1").mkdir()
    (tmp_path / "tiny.old1" / "m").write_bytes(bytes(200))
    assert to_free(run) == [
        (run / "checkpoints" / "step_000010.damaged1", 300),
        (tmp_path / "tiny.old1", 200),
        (run / "incidents", 10),
    ]
    assert to_free(tmp_path / "none") == []


SLICES = SimpleNamespace(ranks=8)
COPIES = SimpleNamespace(ranks=0)


@pytest.mark.parametrize(
    "recipe, overrides, newest, words",
    [
        ("gpt_tiny_dp4_cpu", ["cluster.nodes=2", "cluster.devices_per_node=2"], COPIES,
         ["cluster.nodes=1", "parallel.data_parallel=2"]),
        ("llama2_13b_dp8_tp4_pp2", [], None, ["cluster.nodes=4", "parallel.data_parallel=4"]),
        ("llama2_13b_dp8_tp4_pp2", [], SLICES, []),
        ("gpt_tiny_dp2_cpu", [], COPIES, []),
    ],
)  # fmt: skip
def test_fewer_nodes(recipe, overrides, newest, words):
    assert fewer_nodes(recipe, overrides, newest) == words
