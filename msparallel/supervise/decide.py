"""What to do after a fault: the row of its kind, and what the recipe and the past say about it.

In: a Fault, the recipe's `supervise` section, what was decided before. Out: a Decision. No clock, no process.

>>> decide(Fault(kind="worker_killed", text="", step=12), Supervise(), past=[], checkpoint=10).action
'retry'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msparallel.recipe.schema import Supervise
from msparallel.supervise.fault import ROWS, Fault

MOST_PORTS = 5
"""Ports in a row that may be taken; more is no chance but a machine that forbids them."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """An attempt before this one.

    Attributes:
        checkpoint: step of the newest whole one when it ended.
        action: what was decided then.
        ended: seconds on the supervisor's clock.
    """

    fault: Fault
    checkpoint: int
    action: str
    ended: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Attributes:
    action: retry; other_port; exclude: a spare takes the node's place; wait: start again, the node may be back;
        give_up.
    reason: why, as a sentence.
    """

    action: Literal["retry", "other_port", "exclude", "wait", "give_up"]
    reason: str

    @property
    def goes_on(self) -> bool:
        return self.action != "give_up"


def decide(
    fault: Fault,
    policy: Supervise,
    *,
    past: Sequence[Past],
    checkpoint: int,
    spares: int = 0,
    port_given: bool = False,
    now: float = 0.0,
) -> Decision:
    """What follows from a fault.

    Args:
        past: the attempts before, oldest first.
        checkpoint: step of the newest whole checkpoint now.
        spares: hosts that are left.
        port_given: the user named the port.
    """
    row = ROWS[fault.kind]
    if row.action == "give_up":
        return Decision(action="give_up", reason=f"{_sentence(row.title)} {row.remedy}")
    if row.action == "other_port":
        return _port(past, port_given)
    if row.action == "replace" and policy.on_node_fault == "stop":
        return Decision(
            action="give_up", reason=f"{_sentence(row.title)} {row.remedy} (supervise.on_node_fault is stop.)"
        )
    if row.action == "replace" and not spares:
        return _without_spare(fault, policy, past, now)
    restarts = sum(one.action in ("retry", "exclude") for one in past)
    if restarts >= policy.max_restarts:
        return Decision(
            action="give_up",
            reason=f"It was started again {restarts} times, and supervise.max_restarts is {policy.max_restarts}. "
            f"{row.remedy}",
        )
    if row.action == "replace":
        return Decision(action="exclude", reason=f"A spare host takes the place of {fault.host}. {row.remedy}")
    if past and _is_repeated(past[-1], fault, checkpoint):
        where = f"at step {fault.step}" if fault.step else "before the first step"
        return Decision(
            action="give_up",
            reason=f"The same happened twice {where}, with no new checkpoint in between: it is not chance. "
            f"{row.remedy}",
        )
    return Decision(action="retry", reason=f"It goes on from step {checkpoint}." if checkpoint else "It starts over.")


def _port(past: Sequence[Past], given: bool) -> Decision:
    if given:
        return Decision(action="give_up", reason=ROWS["port_taken"].remedy)
    in_a_row = 0
    for one in reversed(past):
        if one.fault.kind != "port_taken":
            break
        in_a_row += 1
    if in_a_row + 1 >= MOST_PORTS:
        return Decision(action="give_up", reason=f"{MOST_PORTS} ports in a row could not be had on node 0.")
    return Decision(action="other_port", reason="Another port is tried.")


def _without_spare(fault: Fault, policy: Supervise, past: Sequence[Past], now: float) -> Decision:
    row = ROWS[fault.kind]
    if fault.kind != "node_lost":
        return Decision(action="give_up", reason=f"{_sentence(row.title)} {row.remedy} There is no spare host.")
    since = now
    for one in reversed(past):
        if one.action != "wait" or one.fault.host != fault.host:
            break
        since = one.ended
    if now - since >= policy.node_wait_s:
        return Decision(
            action="give_up",
            reason=f"{fault.host} has not come back within {policy.node_wait_s:g} s (supervise.node_wait_s), and there "
            f"is no spare host. {row.remedy}",
        )
    left = policy.node_wait_s - (now - since)
    return Decision(action="wait", reason=f"There is no spare host; {fault.host} may come back for {left:.0f} s.")


def _is_repeated(before: Past, fault: Fault, checkpoint: int) -> bool:
    same = before.fault.kind == fault.kind and before.fault.step == fault.step
    return same and before.checkpoint == checkpoint and before.action in ("retry", "exclude")


def _sentence(title: str) -> str:
    return f"{title[0].upper()}{title[1:]}."
