"""Attempt after attempt, with programs that speak as agents do: who runs where, on which port, and when it is given
up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inject import recipe
from tiny_recipe import output

from msparallel.cli.supervise_text import closing_text
from msparallel.cluster.hosts import parse_hosts
from msparallel.launch.hosts import lay_out
from msparallel.launch.preflight_ask import Asking
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.supervise import agents, attempt
from msparallel.supervise.supervise import Supervised, supervise

pytestmark = pytest.mark.pure
RESULT = {
    "world_size": 2,
    "losses": [1.0],
    "eval_losses": [{"step": 0, "loss": 2.0}, {"step": 150, "loss": 1.0}],
    "tokens_per_s": 1.0,
    "checkpoint": "c",
    "resumed_from": None,
}
_SHELL = """#!/bin/sh
# Speaks for HOST's n-th call what FOLDER/HOST.n says, or else its last; keeps the command line.
echo "$1 $2" >> {folder}/calls
n=$(grep -c "^$1 " {folder}/calls)
while [ ! -e {folder}/$1.$n ]; do n=$((n - 1)); done
. {folder}/$1.$n
while read -r word; do [ "$word" = stop ] && break; done
echo '{{"event": "stopped", "left": []}}'
"""


def line(event: str, **fields: Any) -> str:
    return f"echo '{json.dumps({'event': event, **fields})}'\n"


STARTED = line("started", ranks=[0])
DONE = STARTED + line("done", result=RESULT) + "exit 0\n"
GONE = "echo 'ssh: No route to host' >&2\nexit 255\n"


def failed(how: str, step: int = 5, text: str = "words") -> str:
    told = {"rank": 0, "status": "running", "state": "S", "phase": "step", "step": step, "step_s": 0.1}
    return STARTED + line("ranks", ranks=[told]) + line("failed", how=how, text=text, rank=0, exit_code=1)


class Job:
    def __init__(self, folder: Path, monkeypatch):
        monkeypatch.setattr(attempt, "SETTLE_S", 0.3)
        monkeypatch.setattr(agents, "_LEASE_OVER_S", 0.5)
        self.folder, self.said = folder, []

    def hosts(self, **scripts: list[str]) -> None:
        for host, calls in scripts.items():
            for number, script in enumerate(calls, start=1):
                (self.folder / f"{host}.{number}").write_text(script)

    def run(self, *policy: str, port_given: bool = False, count: int = 3) -> Supervised:
        path = recipe(self.folder, 150, cluster__nodes=2, cluster__devices_per_node=1)
        self.plan = resolve(load_recipe(path, ["supervise.restart_delay_s=0.0", *policy]))
        text = "".join(f"h{number} 192.0.2.{number + 1}\n" for number in range(count))
        layout = lay_out(self.plan, parse_hosts(text, "hosts.txt"), "hosts.txt")
        shell = self.folder / "shell"
        shell.write_text(_SHELL.format(folder=self.folder))
        shell.chmod(0o755)
        asking = Asking(
            recipe=str(path), overrides=(), python="python", workdir=str(self.folder), env={}, shell=[str(shell)]
        )
        return supervise(self.plan, layout, asking, port_given=port_given, say=self.said.append)

    def calls(self) -> list[tuple[str, str, str]]:
        """(host, address of the master, port) of every agent that was started."""
        found = []
        for call in (self.folder / "calls").read_text().splitlines():
            words = call.split()
            found.append((words[0], words[words.index("--master-addr") + 1], words[words.index("--master-port") + 1]))
        return found


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    return Job(tmp_path, monkeypatch)


def actions(found: Supervised) -> list[tuple[str, str]]:
    return [(one.end, one.action) for one in found.attempts]


def test_a_failure_is_tried_again_and_told(job):
    job.hosts(h0=[failed("killed", text="Rank 0 was killed"), DONE], h1=[STARTED, DONE])
    found = job.run()
    assert actions(found) == [("worker_killed", "retry"), ("done", "done")] and found.exit_code == 0
    first = found.attempts[0]
    assert (first.rank, first.node, first.host, first.to_step) == (0, 0, "h0", 5)
    assert first.incident == str(output(job.folder) / "incidents" / "001") and found.attempts[1].incident is None
    assert found.to_json()["attempts"][1]["end"] == "done" and found.result == RESULT
    text = closing_text(job.plan, found)
    assert "2 attempts" in text and "a worker was killed (rank 0, h0). [001]" in text
    assert "Evaluation loss 2.000 (step 0) -> 1.000 (step 150)" in text
    assert any("Rank 0 was killed" in line for line in job.said)


def test_node_0_is_replaced_and_the_scheduler_moves_with_it(job):
    job.hosts(h0=[STARTED + GONE], h1=[STARTED, DONE], h2=[DONE])
    found = job.run()
    assert actions(found) == [("node_lost", "exclude"), ("done", "done")]
    assert sorted(job.calls()) == [
        ("h0", "192.0.2.1", "8118"),
        ("h1", "192.0.2.1", "8118"),
        ("h1", "192.0.2.3", "8118"),
        ("h2", "192.0.2.3", "8118"),
    ]
    assert "h2 takes the place of h0 as node 0." in job.said
    assert any("h0 cannot be asked" in line for line in job.said)


def test_a_node_that_comes_back_is_waited_for(job):
    job.hosts(h0=[STARTED, STARTED, STARTED, DONE], h1=[GONE, GONE, GONE, DONE])
    found = job.run(count=2)
    assert actions(found) == [("node_lost", "wait")] * 3 + [("done", "done")]
    assert [one.incident is not None for one in found.attempts] == [True, False, False, False]


def test_a_node_that_does_not_come_back_is_given_up_with_what_runs_without_it(job):
    job.hosts(h0=[STARTED], h1=[GONE])
    found = job.run("supervise.node_wait_s=0.0", count=2)
    assert actions(found) == [("node_lost", "give_up")] and found.exit_code == 1
    assert "cluster.nodes=1 parallel.data_parallel=1" in found.gave_up
    assert "Given up: h1 has not come back" in closing_text(job.plan, found)


def test_another_port_is_tried_and_a_given_one_is_not(job, tmp_path):
    job.hosts(h0=[failed("port"), failed("port"), DONE], h1=[STARTED, STARTED, DONE])
    found = job.run()
    assert actions(found) == [("port_taken", "other_port")] * 2 + [("done", "done")]
    ports = [port for host, _, port in job.calls() if host == "h0"]
    assert ports[0] == "8118" and len(set(ports)) == 3 and all(20000 <= int(port) < 32000 for port in ports[1:])


def test_a_port_that_was_given_is_kept(job):
    job.hosts(h0=[failed("port")], h1=[STARTED])
    found = job.run(port_given=True)
    assert actions(found) == [("port_taken", "give_up")] and "--master-port" in found.gave_up


def test_the_same_failure_at_the_same_step_is_given_up(job):
    job.hosts(h0=[failed("failed", step=7, text="ValueError: x")], h1=[STARTED])
    found = job.run()
    assert actions(found) == [("worker_failed", "retry"), ("worker_failed", "give_up")]
    assert "twice at step 7" in found.gave_up


def test_restarts_end(job):
    job.hosts(h0=[failed("killed", step=step) for step in range(5, 10)], h1=[STARTED])
    found = job.run("supervise.max_restarts=2")
    assert [one.action for one in found.attempts] == ["retry", "retry", "give_up"]
    assert "max_restarts is 2" in found.gave_up


def test_a_damaged_checkpoint_with_no_whole_one_is_given_up(job):
    folder = output(job.folder) / "checkpoints" / "step_000010"
    job.hosts(h0=[f"mkdir -p {folder}; echo x > {folder}/state.json\n" + failed("killed")], h1=[STARTED])
    found = job.run()
    assert actions(found) == [("worker_killed", "give_up")] and "No checkpoint here is whole" in found.gave_up


def test_wrong_input_has_its_own_exit_code(job):
    job.hosts(h0=[failed("input", text="no such corpus")], h1=[STARTED])
    found = job.run()
    assert actions(found) == [("bad_input", "give_up")] and found.exit_code == 2
