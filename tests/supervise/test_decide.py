"""What follows from each kind of fault: every row of the table, and what the recipe and the past make of it."""

from __future__ import annotations

import errno
import os

import pytest

from msparallel.launch.msrun import RUN_AGAIN
from msparallel.recipe.schema import Supervise
from msparallel.supervise.decide import MOST_PORTS, Past, decide
from msparallel.supervise.fault import ROWS, Fault, fault_of, first_cause

pytestmark = pytest.mark.pure
POLICY = Supervise()


def fault(kind: str, step: int = 10, host: str = "b") -> Fault:
    return Fault(kind=kind, text="words", node=1, host=host, step=step)


def past(kind: str, step: int = 10, checkpoint: int = 8, action: str = "retry", ended: float = 0.0) -> Past:
    return Past(fault=fault(kind, step), checkpoint=checkpoint, action=action, ended=ended)


@pytest.mark.parametrize(
    "kind, without_spare, with_spare",
    [
        ("worker_killed", "retry", "retry"),
        ("worker_failed", "retry", "retry"),
        ("scheduler_killed", "retry", "retry"),
        ("start_failed", "retry", "retry"),
        ("agent_lost", "retry", "retry"),
        ("hang", "retry", "retry"),
        ("checkpoint_damaged", "retry", "retry"),
        ("port_taken", "other_port", "other_port"),
        ("node_lost", "wait", "exclude"),
        ("device_alarm", "give_up", "exclude"),
        ("device_hot", "give_up", "exclude"),
        ("processes_left", "give_up", "exclude"),
        ("disk_full", "give_up", "give_up"),
        ("bad_input", "give_up", "give_up"),
        ("busy", "give_up", "give_up"),
    ],
)
def test_every_kind(kind, without_spare, with_spare):
    assert decide(fault(kind), POLICY, past=[], checkpoint=8).action == without_spare
    assert decide(fault(kind), POLICY, past=[], checkpoint=8, spares=1).action == with_spare
    assert decide(fault(kind), POLICY, past=[], checkpoint=8).reason.endswith((".", ")"))


def test_the_table_above_has_every_row():
    told = [mark.args[1] for mark in test_every_kind.pytestmark if mark.name == "parametrize"][0]
    assert {row[0] for row in told} == set(ROWS)


@pytest.mark.parametrize("kind", [kind for kind, row in ROWS.items() if row.action == "replace"])
def test_on_node_fault_stop_takes_no_spare(kind):
    decision = decide(fault(kind), Supervise(on_node_fault="stop"), past=[], checkpoint=8, spares=3)
    assert decision.action == "give_up" and "on_node_fault" in decision.reason


def test_the_same_at_the_same_step_twice_is_no_chance():
    decision = decide(fault("worker_failed"), POLICY, past=[past("worker_failed")], checkpoint=8)
    assert decision.action == "give_up" and "twice at step 10" in decision.reason


@pytest.mark.parametrize(
    "before, checkpoint",
    [
        (past("worker_killed"), 8),  # another kind
        (past("worker_failed", step=9), 8),  # another step
        (past("worker_failed", checkpoint=6), 8),  # a checkpoint in between
        (past("worker_failed", action="wait"), 8),
    ],
)
def test_what_is_not_the_same_is_tried_again(before, checkpoint):
    assert decide(fault("worker_failed"), POLICY, past=[before], checkpoint=checkpoint).action == "retry"


def test_restarts_are_counted_and_waiting_and_ports_are_not():
    policy = Supervise(max_restarts=2)
    waited = [past("node_lost", action="wait"), past("port_taken", action="other_port")]
    one = [*waited, past("hang", step=1)]
    assert decide(fault("worker_killed"), policy, past=one, checkpoint=8).action == "retry"
    two = [*one, past("hang", step=2)]
    decision = decide(fault("worker_killed"), policy, past=two, checkpoint=8)
    assert decision.action == "give_up" and "max_restarts is 2" in decision.reason
    assert decide(fault("node_lost"), policy, past=two, checkpoint=8, spares=1).action == "give_up"


def test_a_port_that_was_given_is_not_replaced():
    decision = decide(fault("port_taken"), POLICY, past=[], checkpoint=8, port_given=True)
    assert decision.action == "give_up" and "--master-port" in decision.reason


def test_ports_are_not_tried_for_ever():
    before = [past("port_taken", action="other_port")] * (MOST_PORTS - 1)
    assert decide(fault("port_taken"), POLICY, past=before[1:], checkpoint=8).action == "other_port"
    assert decide(fault("port_taken"), POLICY, past=before, checkpoint=8).action == "give_up"


def test_a_lost_node_is_waited_for_as_long_as_the_recipe_says():
    policy = Supervise(node_wait_s=100.0)
    before = [past("hang", ended=5.0), past("node_lost", action="wait", ended=10.0)]
    before += [past("node_lost", action="wait", ended=60.0)]
    decision = decide(fault("node_lost"), policy, past=before, checkpoint=8, now=109.0)
    assert decision.action == "wait" and "for 1 s" in decision.reason
    decision = decide(fault("node_lost"), policy, past=before, checkpoint=8, now=110.0)
    assert decision.action == "give_up" and "within 100 s" in decision.reason


def test_another_node_that_is_lost_has_its_own_time():
    policy = Supervise(node_wait_s=100.0)
    before = [Past(fault=fault("node_lost", host="a"), checkpoint=8, action="wait", ended=0.0)]
    assert decide(fault("node_lost"), policy, past=before, checkpoint=8, now=500.0).action == "wait"


@pytest.mark.parametrize(
    "how, kind",
    [
        ("input", "bad_input"),
        ("busy", "busy"),
        ("port", "port_taken"),
        ("killed", "worker_killed"),
        ("scheduler", "scheduler_killed"),
        ("failed", "worker_failed"),
        ("start", "start_failed"),
        ("lease", "agent_lost"),
        ("unheard of", "worker_failed"),
    ],
)
def test_what_an_agent_says(how, kind):
    found = fault_of({"how": how, "text": "words", "rank": 3}, node=1, host="b", step=4)
    assert (found.kind, found.rank, found.node, found.step) == (kind, 3, 1, 4)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_known_by_the_systems_words(number):
    text = f"Rank 0 of 2 failed first:\n/data/log.jsonl\n  The log cannot be written: {os.strerror(number)}."
    assert fault_of({"how": "failed", "text": text}, node=0, host="a").kind == "disk_full"


def test_a_slice_that_is_damaged_is_no_wrong_input():
    text = "x\n  The slice has another content than when it was written (sha256 differs)."
    assert fault_of({"how": "input", "text": text}, node=0, host="a").kind == "checkpoint_damaged"


@pytest.mark.parametrize("how", ["killed", "failed", "scheduler"])
def test_mindspore_gave_up_a_rank_that_was_stopped(how):
    event = {"how": how, "text": "Rank 0 failed", "rank": 0, "standing": [{"rank": 1, "state": "T"}]}
    found = fault_of(event, node=0, host="a")
    assert (found.kind, found.rank) == ("hang", 1) and "Rank 1 stood still" in found.text


def test_the_cause_goes_before_its_effects():
    lost, failed, killed = fault("node_lost"), fault("worker_failed"), fault("worker_killed")
    assert first_cause([failed, lost]) is lost
    assert first_cause([failed, lost, killed]) is killed
    assert first_cause([fault("hang"), lost]) is lost, "a link that breaks shows as a hang first"
    ended = fault("agent_lost")
    assert first_cause([ended, fault("hang")]) is ended, "nothing moves on a node whose agent has ended"
    other = fault("worker_failed", host="c")
    assert first_cause([failed, other]) is failed


def test_nobody_is_told_to_run_again_what_goes_on_by_itself():
    text = f"Rank 1 of 2 was killed by SIGKILL. The other workers were stopped. {RUN_AGAIN}\n  | last\n  Log: x"
    found = fault_of({"how": "killed", "rank": 1, "text": text}, node=0, host="a")
    assert "again" not in found.text and found.text.endswith("were stopped.\n  | last\n  Log: x")
