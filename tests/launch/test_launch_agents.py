"""What the launcher makes of its nodes' agents: stand-ins that say what an agent can say, and what none should."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.cluster.hosts import parse_hosts
from msparallel.errors import RunError, UserError
from msparallel.launch import connections, nodes
from msparallel.launch.connections import Agent
from msparallel.launch.hosts import lay_out
from msparallel.launch.nodes import Progress, run_nodes
from msparallel.launch.preflight_ask import Asking
from msparallel.launch.processes import interruptible
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
RESULT = {
    "world_size": 2,
    "losses": [5.5, 5.25],
    "eval_losses": [],
    "tokens_per_s": 10.0,
    "checkpoint": "step_000002",
    "resumed_from": None,
}
DONE = {"event": "done", "result": RESULT}
HOLDS = 'while read -r line; do [ "$line" = stop ] && break; done'
"""As an agent does, until it is told to stop or its input ends."""


def say(*events: dict) -> str:
    return "\n".join(f"echo '{json.dumps(event)}'" for event in events)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Runs a job on two nodes whose agents are these shell scripts."""
    monkeypatch.setattr(nodes, "GRACE_S", 2.0)
    monkeypatch.setattr(nodes, "STOP_S", 10.0)
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nwhile [ "$1" != --node-rank ]; do shift; done\n. {tmp_path}/agent_$2\n')
    for path in (shell, python):
        path.chmod(0o755)
    plan = resolve(load_recipe("gpt_tiny_dp2_cpu", ["cluster.nodes=2", "cluster.devices_per_node=1"]))
    layout = lay_out(plan, parse_hosts("a 192.0.2.1\nb 192.0.2.2\n", "hosts.txt"), "hosts.txt")
    asking = Asking(
        recipe="gpt_tiny_dp2_cpu", overrides=(), python=str(python), workdir="/", env={}, shell=[str(shell)]
    )

    def call(first: str, second: str, told: list[Progress] | None = None):
        for rank, text in enumerate((first, second)):
            (tmp_path / f"agent_{rank}").write_text(text + "\n")
        return run_nodes(plan, layout, asking, tell=(told if told is not None else []).append)

    return call


def test_the_result_is_that_of_the_rank_that_knows_the_loss(job):
    other = {"event": "done", "result": {**RESULT, "losses": [], "checkpoint": ""}}
    told: list[Progress] = []
    ranks = {"event": "ranks", "ranks": [{"rank": 0, "phase": "step", "step": 1, "loss": 5.5}, {"rank": 1}]}
    result = job("echo Welcome; " + say(ranks, DONE), say(other), told)
    assert result.losses == [5.5, 5.25] and result.checkpoint == "step_000002"
    assert told == [Progress(phase="step", step=1, loss=5.5)]


def test_the_first_failure_is_told_with_its_node_and_the_others_stop(job, tmp_path):
    failed = {"event": "failed", "text": "Rank 1 of 2 was killed by SIGKILL.", "how": "killed", "exit_code": 1}
    with pytest.raises(RunError) as caught:
        job(f"{HOLDS}; touch {tmp_path}/stopped", say(failed) + "; exit 1")
    assert str(caught.value) == "Node 1 (b) failed first:\nRank 1 of 2 was killed by SIGKILL."
    assert (tmp_path / "stopped").exists()


@pytest.mark.parametrize("how", ["lease", "scheduler", "start"])
def test_what_follows_from_another_nodes_failure_is_not_told(job, how):
    cause = {"event": "failed", "text": "disk full", "how": "failed", "exit_code": 1}
    effect = {"event": "failed", "text": "lost the others", "how": how, "exit_code": 1}
    with pytest.raises(RunError, match=r"Node 1 \(b\) failed first:\ndisk full"):
        job(say(effect), "sleep 1; " + say(cause))


def test_wrong_input_keeps_its_exit_code(job):
    with pytest.raises(UserError, match="no such file") as caught:
        job(say({"event": "failed", "text": "no such file", "how": "input", "exit_code": 2}), HOLDS)
    assert caught.value.exit_code == 2


def test_processes_that_are_left_are_told(job):
    left = {"event": "stopped", "left": [{"pid": 7, "state": "D", "name": "python"}]}
    failed = {"event": "failed", "text": "stuck", "how": "failed", "exit_code": 1}
    with pytest.raises(RunError, match=r'stuck\n  Still running on b: {"pid": 7, "state": "D"'):
        job(HOLDS, say(failed, left))


def test_a_connection_that_ends_is_told_with_its_last_words(job):
    with pytest.raises(RunError) as caught:
        job(HOLDS, "echo client_loop: send disconnect >&2; exit 255")
    assert "Node 1 (b) failed first:\nThe connection to it ended with code 255" in str(caught.value)
    assert str(caught.value).endswith("  | client_loop: send disconnect")


def test_a_node_that_says_nothing_is_given_up(job, monkeypatch):
    monkeypatch.setattr(nodes, "SILENT_S", 1.0)
    monkeypatch.setattr(nodes, "STOP_S", 1.0)
    with pytest.raises(RunError, match="It said nothing for 1 s"):
        job(f"while sleep 0.3; do {say({'event': 'ranks', 'ranks': []})}; done", HOLDS)


def test_a_node_that_does_not_stop_is_let_go(job, monkeypatch):
    monkeypatch.setattr(nodes, "STOP_S", 1.0)
    began = time.monotonic()
    with pytest.raises(RunError, match="gone"):
        job("trap '' TERM; while :; do sleep 1; done", say({"event": "failed", "text": "gone", "how": "failed"}))
    assert time.monotonic() - began < 30


def test_a_result_of_another_version_is_refused(job):
    with pytest.raises(RunError, match="a sent a result that is not of this version"):
        job(say({"event": "done", "result": {"loss": 1}}), say(DONE))


def test_an_endless_line_is_no_event(job, monkeypatch):
    for module in (connections, nodes):
        monkeypatch.setattr(module, "MOST_LINE_BYTES", 100_000)
    with pytest.raises(RunError, match="a line of more than 100,000 bytes"):
        job("yes | tr -d '\\n' | head -c 900000", HOLDS)


def test_control_characters_of_a_node_are_seen_as_their_codes(job):
    with pytest.raises(RunError) as caught:
        job(HOLDS, "printf '\\033[31mred\\n' >&2; exit 1")
    assert str(caught.value).endswith(r"  | \x1b[31mred")


def test_leases_are_renewed_until_the_end(job, tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "RENEW_S", 0.1)
    counts = f"read -r a; read -r b; read -r c; echo $a$b$c >{tmp_path}/lease; "
    job(counts + say(DONE), say(DONE))
    assert (tmp_path / "lease").read_text() == "ononon\n"


def test_ctrl_c_tells_every_node_to_stop_and_waits(job, tmp_path):
    script = f"{HOLDS}; sleep 1; echo $line >{tmp_path}/told_$$"
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt), interruptible():
        job(script, script)
    assert [path.read_text() for path in tmp_path.glob("told_*")] == ["stop\n", "stop\n"]


def test_under_nohup_a_terminal_that_closes_ends_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(5)
    finally:
        signal.signal(signal.SIGHUP, before)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.fixed_dictionaries(
    {"event": st.sampled_from(["started", "ranks", "done", "failed", "stopped", "x"]) | JSON},
    optional={
        "ranks": JSON
        | st.lists(st.fixed_dictionaries({"rank": st.just(0), "step": JSON, "loss": JSON, "phase": JSON})),
        **dict.fromkeys(("result", "text", "how", "exit_code", "left"), JSON),
    },
)


def fuzz(events, cut):
    agent = Agent(rank=0, host=parse_hosts("a\n", "x")[0], process=None)
    seen = object.__new__(nodes._Nodes)
    seen._reporting, seen._results, seen._failures, told = 0, {}, {}, []
    seen._tell = told.append
    data = b"".join(json.dumps(event).encode()[: cut or None] + b"\n" for event in events)
    for at in range(0, len(data), 100):
        for event in agent.take("out", data[at : at + 100]):
            seen._hear(agent, event)
    assert all(isinstance(one, Progress) and (one.step is None or one.step >= 0) for one in told)
    if seen._failures:
        assert nodes._first(seen._failures, [agent, agent]).exit_code in (1, 2)
    assert all(isinstance(result, dict) for result in seen._results.values())


@given(st.lists(EVENTS, max_size=5), st.integers(0, 80))
@settings(max_examples=150, deadline=None)
def test_any_event_is_taken_or_left(events, cut):
    fuzz(events, cut)


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=5), st.integers(0, 80))
@settings(max_examples=2000, deadline=None)
def test_any_event_is_taken_or_left_2000(events, cut):
    fuzz(events, cut)


def test_deep_json_is_no_event():
    agent = Agent(rank=0, host=parse_hosts("a\n", "x")[0], process=None)
    assert agent.take("out", b'{"event":' + b"[" * 200_000 + b"\n") == []
