"""One attempt, with programs that speak as agents do: whose fault it was, and that everybody was told to stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inject import recipe

from msparallel.cluster.hosts import parse_hosts
from msparallel.launch.hosts import lay_out
from msparallel.launch.preflight_ask import Asking
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.supervise import agents, watch
from msparallel.supervise import attempt as module
from msparallel.supervise.attempt import Outcome, attempt

pytestmark = pytest.mark.pure


def line(event: str, **fields) -> str:
    return f"echo '{json.dumps({'event': event, **fields})}'\n"


STARTED = line("started", ranks=[0])
UNTIL_STOP = 'while read -r word; do [ "$word" = stop ] && break; done\n' + line("stopped", left=[])
RESULT = {
    "world_size": 2,
    "losses": [1.0],
    "eval_losses": [],
    "tokens_per_s": 1.0,
    "checkpoint": "c",
    "resumed_from": None,
}


def ranks(number: int, step: int, status: str = "running") -> str:
    told = {"rank": number, "status": status, "state": "S", "phase": "step", "step": step, "step_s": 0.1, "loss": 2.5}
    return line("ranks", ranks=[told])


@pytest.fixture
def run(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "SETTLE_S", 0.7)
    monkeypatch.setattr(agents, "_LEASE_OVER_S", 1.0)
    plan = resolve(load_recipe(recipe(tmp_path, 150, cluster__nodes=2, cluster__devices_per_node=1)))
    layout = lay_out(plan, parse_hosts("h0 192.0.2.1\nh1 192.0.2.2\nh2 192.0.2.3\n", "hosts.txt"), "hosts.txt")

    def go(first: str, second: str, **options) -> Outcome:
        shell = tmp_path / "shell"
        shell.write_text(f'#!/bin/sh\ncase "$1" in\nh0)\n{first};;\nh1)\n{second};;\nesac\n')
        shell.chmod(0o755)
        asking = Asking(recipe="r", overrides=(), python="python", workdir="/", env={}, shell=[str(shell)])
        return attempt(plan, layout, asking, port=8118, **options)

    return go


def test_a_job_that_is_done(run):
    places = []
    done = line("done", result=RESULT)
    outcome = run(STARTED + ranks(0, 7) + done, STARTED + "sleep 0.3\n" + line("done", result={}), show=places.append)
    assert outcome.fault is None and outcome.result == RESULT and outcome.left == ()
    assert (places[0].step, places[0].loss) == (7, 2.5)


def test_the_cause_is_told_and_not_its_effect(run):
    effect = line("failed", how="scheduler", text="The scheduler is gone", rank=None, exit_code=1)
    cause = "sleep 0.3\n" + ranks(1, 9) + line("failed", how="killed", text="Rank 1 was killed", rank=1, exit_code=1)
    outcome = run(STARTED + effect + UNTIL_STOP, STARTED + cause + UNTIL_STOP)
    fault = outcome.fault
    assert (fault.kind, fault.rank, fault.node, fault.host) == ("worker_killed", 1, 1, "h1")
    assert outcome.step == 9 and outcome.result is None


def test_all_nodes_are_told_to_stop(run, tmp_path):
    failed = line("failed", how="input", text="wrong", rank=None, exit_code=2) + line("stopped", left=[])
    outcome = run(STARTED + failed, STARTED + UNTIL_STOP + f"echo $word > {tmp_path}/told\n")
    assert outcome.fault.kind == "bad_input" and (tmp_path / "told").read_text() == "stop\n"


@pytest.mark.parametrize(
    "script, kind",
    [
        (STARTED + "echo 'Timeout, server not responding.' >&2\nexit 255\n", "node_lost"),
        ("echo 'ssh: connect: No route to host' >&2\nexit 255\n", "node_lost"),
        (STARTED + "exit 1\n", "node_lost"),
        ("echo 'No module named msparallel' >&2\nexit 1\n", "start_failed"),
    ],
)
def test_a_connection_that_ends(run, script, kind):
    told = []
    outcome = run(STARTED + ranks(0, 3) + UNTIL_STOP, script, told=told.append)
    assert (outcome.fault.kind, outcome.fault.host) == (kind, "h1")
    assert ">&2" not in script or outcome.fault.text.splitlines()[-1].strip("| ") in script
    waited = "h1 cannot be asked" in "".join(told)
    assert waited == (STARTED in script), "a node whose agent ran may still run its part, until its lease is over"


def test_a_node_that_goes_silent_is_the_cause_of_what_others_complain_about(run, monkeypatch):
    monkeypatch.setattr(watch, "SILENT_S", 2.0)
    monkeypatch.setattr(module, "SILENT_S", 2.0)
    monkeypatch.setattr(module, "QUIET_S", 0.5)
    monkeypatch.setattr(agents, "_STOPS_S", 1.0)
    alive = "for i in 1 2 3 4 5 6; do sleep 0.5; " + ranks(0, 3).strip() + "; done\n"
    complaint = "sleep 1\n" + line("failed", how="failed", text="peer is gone", rank=0, exit_code=1) + alive
    outcome = run(STARTED + complaint + UNTIL_STOP, STARTED + ranks(1, 3) + "sleep 100\n")
    assert (outcome.fault.kind, outcome.fault.host) == ("node_lost", "h1")
    assert "has said nothing for 2 s" in outcome.fault.text


def test_processes_that_cannot_be_ended_are_the_fault(run):
    failed = line("failed", how="killed", text="Rank 0 was killed", rank=0, exit_code=1)
    stuck = line("stopped", left=[{"pid": 7, "state": "D", "name": "python"}])
    outcome = run(STARTED + failed + stuck, STARTED + UNTIL_STOP)
    assert (outcome.fault.kind, outcome.fault.node) == ("processes_left", 0)
    assert '"state": "D"' in outcome.left[0] and "Rank 0 was killed" in outcome.fault.text


def test_what_is_no_event_is_left_out(run):
    noise = "echo Welcome to h1\nprintf '\\377\\000\\n'\necho '{\"event\": broken'\necho '{\"event\":[1]}'\n"
    outcome = run(noise + STARTED + line("done", result=RESULT), noise + line("done", result={}))
    assert outcome.fault is None and outcome.result == RESULT
