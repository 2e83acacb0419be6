"""The rungs that run something: what they make of processes that fail, hang or answer wrongly; and the real thing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from msparallel.devices.query import Answer
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.doctor import runners
from msparallel.doctor.runners import run_collective, run_recipe, run_smallest
from msparallel.errors import RecipeError
from msparallel.recipe.load import load_recipe


def answered(monkeypatch, *ranks: dict, code: int = 0, log: str = "") -> None:
    """run_tool as if the workers had written these answers."""

    def run(arguments, **options):
        folder = Path(arguments[-3])
        (folder / "logs").mkdir()
        (folder / "logs" / "worker_0.log").write_text(log)
        for rank, told in enumerate(ranks):
            (folder / f"rank_{rank}.json").write_text(json.dumps(told))
        return Answer(text="", code=code, cut=False)

    monkeypatch.setattr(runners, "run_tool", run)


def rank(number: int, got: float = 3.0, size: int = 2) -> dict:
    return {"rank": number, "size": size, "least": got, "most": got, "seconds": 0.01}


@pytest.mark.pure
def test_the_sum_must_be_right(monkeypatch):
    answered(monkeypatch, rank(0), rank(1))
    assert run_collective(0).state == "passed"
    answered(monkeypatch, rank(0), rank(1, got=1.0))
    broken = run_collective(0)
    assert broken.state == "broken" and "Rank 1 got 1 to 1 of 2 ranks; 3 is right" in broken.findings[0].root_cause
    answered(monkeypatch, rank(0, size=1), rank(1))
    assert run_collective(0).state == "broken"


@pytest.mark.pure
def test_a_worker_that_dies_or_tells_an_error(monkeypatch):
    answered(monkeypatch, rank(0), code=1, log="line\n[ERROR] EI0006: get socket timeout\n")
    broken = run_collective(0).findings[0]
    assert "Rank 1 of 2 ended without an answer; msrun's exit code is 1" in broken.root_cause
    assert [(line.file, line.line) for line in broken.evidence] == [("worker_0.log", 2)]
    answered(monkeypatch, rank(0), {"error": "RuntimeError: no"})
    assert "Rank 1 of 2: RuntimeError: no" in run_collective(0).findings[0].root_cause


@pytest.mark.pure
def test_a_collective_that_hangs(monkeypatch):
    def hangs(arguments, **options):
        raise DeviceUnavailable("msrun did not answer within 300 s.")

    monkeypatch.setattr(runners, "run_tool", hangs)
    assert "did not answer within 300 s" in run_collective(0).findings[0].root_cause


@pytest.mark.pure
def test_what_cannot_be_run_says_why(monkeypatch):
    assert run_collective(1).state == "not_possible"
    monkeypatch.setattr(runners, "find_spec", lambda name: None)
    for rung in (run_collective(0), run_smallest(0)):
        assert rung.state == "not_possible" and "MindSpore is not installed" in rung.told


@pytest.mark.pure
@pytest.mark.parametrize(
    ("text", "code", "state", "says"),
    [
        ('{"losses": [8.3, 8.2]}', 0, "passed", "loss 8.3000, 8.2000"),
        ('{"losses": [8.3]}', 0, "broken", "after 1 of 2 steps"),
        ('{"losses": [8.3, NaN]}', 0, "broken", "failed"),
        ('{"error": "Rank 1 of 2 was killed by SIGKILL."}', 1, "broken", "failed"),
        ('{"problems": [{"message": "no corpus"}]}', 2, "broken", "failed"),
        ("no json", 1, "broken", "failed"),
        ("[]", 0, "broken", "failed"),
    ],
)
def test_what_the_smallest_recipe_told(monkeypatch, text, code, state, says):
    monkeypatch.setattr(runners, "run_tool", lambda arguments, **options: Answer(text=text, code=code, cut=False))
    rung = run_smallest(0)
    assert rung.state == state and says in rung.told + "".join(one.root_cause for one in rung.findings)
    if "SIGKILL" in text:
        assert "SIGKILL" in rung.findings[0].root_cause


@pytest.mark.pure
def test_overrides_of_the_smallest_recipe_pass_every_rule(monkeypatch):
    asked = []
    monkeypatch.setattr(runners, "run_tool", lambda arguments, **options: asked.append(arguments) or Answer(
        text='{"losses": [8.3, 8.2]}', code=0, cut=False))  # fmt: skip
    for devices in (0, 1, 8, 16):
        run_smallest(devices)
        words = asked[-1]
        load_recipe(words[4], words[5:-1])


@pytest.mark.pure
def test_your_recipe_is_checked_and_planned():
    assert "it trains on the CPU" in run_recipe("quickstart", (), None, devices_known=False).told
    fits = run_recipe("llama2_7b_dp2_tp2_pp2", (), None, devices_known=False)
    assert fits.state == "passed" and "GiB of" in fits.told
    name = "llama2_13b_dp4_tp4_pp2"
    big = ("parallel.optimizer_shard=false", "parallel.model_parallel=1", "parallel.pipeline_stages=1",
           "parallel.data_parallel=32", "parallel.sequence_parallel=false")  # fmt: skip
    try:
        load_recipe(name, big)
    except RecipeError as refused:
        broken = run_recipe(name, big, refused, devices_known=False)
        assert broken.state == "broken" and broken.findings[0].evidence[0].file.endswith(".yaml")
    else:
        broken = run_recipe(name, big, None, devices_known=False)
        assert broken.findings[0].rule == "recipe_does_not_fit"


@pytest.mark.pure
def test_broken_rules_are_findings_with_their_lines():
    with pytest.raises(RecipeError) as caught:
        load_recipe("llama2_13b_dp4_tp4_pp2", ("parallel.model_parallel=3",))
    rung = run_recipe("llama2_13b_dp4_tp4_pp2", ("parallel.model_parallel=3",), caught.value, devices_known=False)
    assert rung.state == "broken"
    assert any("40 attention heads" in one.root_cause and "Try" in one.remedy for one in rung.findings)


@pytest.mark.pure
def test_devices_that_are_not_here_break_the_rung_only_where_there_are_some():
    name = "llama2_7b_dp2_tp2_pp2"
    assert run_recipe(name, (), None, devices_known=False).state == "passed"
    broken = run_recipe(name, (), None, devices_known=True)
    assert broken.findings[0].rule == "recipe_devices" and "none is here" in broken.findings[0].root_cause


@pytest.mark.msrun
def test_two_processes_add_up():
    rung = run_collective(0)
    assert (rung.state, rung.findings) == ("passed", ()), rung
    assert rung.told.startswith("2 processes on the CPU summed 4,096 numbers")


@pytest.mark.msrun
def test_what_is_given_up_leaves_no_process():
    before = set(children())
    rung = run_collective(0, timeout_s=4.0)
    assert rung.state == "broken" and "4 s" in rung.findings[0].root_cause
    for _ in range(100):
        left = set(children()) - before
        if not left:
            return
        time.sleep(0.2)
    raise AssertionError(f"still there: {left}")


def children() -> list[int]:
    """Processes whose command line names the worker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"allreduce_worker" in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_the_smallest_recipe_trains():
    rung = run_smallest(0)
    assert rung.state == "passed" and "2 steps on 2 processes on the CPU" in rung.told, rung
