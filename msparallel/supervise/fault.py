"""What ends an attempt, by kind, and what is done about each kind: a table.

In: an agent's `failed` event, or what the watch saw. Out: a Fault; `ROWS[kind]`, its row.

>>> fault_of({"how": "killed", "rank": 1, "text": "Rank 1 of 2 was killed by SIGKILL."}, node=0, host="localhost").kind
'worker_killed'
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msparallel.launch.msrun import RUN_AGAIN

Action = Literal["retry", "other_port", "replace", "give_up"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why an attempt ended.

    Attributes:
        kind: a key of ROWS.
        text: for a person; may have several lines.
        node, host: where, None and empty where it is no single node's.
        rank: to blame, None where it is no single rank's.
        step: the last one done when it was seen, None before any.
    """

    kind: str
    text: str
    node: int | None = None
    host: str = ""
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """Attributes:
    action: retry: start again from the newest whole checkpoint; other_port: the same on another port; replace: the same
        with a spare host in the node's place; give_up: a person must do something first.
    title: what happened, as a clause.
    remedy: what a person can do about it.
    cause: order among faults that are seen together; what has a higher number is more often another one's effect.
    """

    action: Action
    title: str
    remedy: str
    cause: int


ROWS: dict[str, Row] = {
    "bad_input": Row(action="give_up", cause=0, title="the input is wrong", remedy="Mend it, then start again."),
    "busy": Row(
        action="give_up",
        cause=0,
        title="the run's folder is in use, or a node cannot start",
        remedy="Wait for the other process, or set another train.output_dir.",
    ),
    "checkpoint_damaged": Row(
        action="retry",
        cause=0,
        title="a checkpoint is damaged",
        remedy="It is set aside, and the one before it is used. Check the disk.",
    ),
    "device_alarm": Row(
        action="replace",
        cause=0,
        title="npu-smi reports a device as ill",
        remedy="`npu-smi info -t health -i N` names the fault code. Do not use the node before the alarm is gone.",
    ),
    "device_hot": Row(
        action="replace",
        cause=0,
        title="a device is too hot",
        remedy="Check fan and air duct of the node.",
    ),
    "disk_full": Row(
        action="give_up",
        cause=1,
        title="the disk is full",
        remedy="Free some space or set train.output_dir to another disk, then start again: it goes on from the last "
        "checkpoint.",
    ),
    "port_taken": Row(
        action="other_port",
        cause=1,
        title="another process has the scheduler's port",
        remedy="Leave --master-port out to have another one tried.",
    ),
    "worker_killed": Row(
        action="retry",
        cause=1,
        title="a worker was killed",
        remedy="Where nobody did it, it was the kernel for want of memory: see `dmesg`.",
    ),
    "hang": Row(
        action="retry",
        cause=7,
        title="the run stood still",
        remedy="Look at the named rank: `npu-smi info` of its device, its plog, its stack with py-spy.",
    ),
    "node_lost": Row(
        action="replace",
        cause=2,
        title="a node cannot be reached",
        remedy="See whether it is up and whether ssh reaches it.",
    ),
    "scheduler_killed": Row(
        action="retry",
        cause=4,
        title="MindSpore's scheduler was killed",
        remedy="See `dmesg` of node 0, and scheduler.log.",
    ),
    "worker_failed": Row(
        action="retry",
        cause=4,
        title="a worker failed",
        remedy="Read its words; `msparallel diagnose` on the incident's folder names known causes.",
    ),
    "start_failed": Row(
        action="retry",
        cause=5,
        title="the workers did not start, or ended without a word",
        remedy="Read msrun_N.log and node_N.log in the incident's folder.",
    ),
    "agent_lost": Row(
        action="retry",
        cause=6,
        title="an agent ended",
        remedy="See whether something on its machine ends processes: `dmesg`, limits of the login session.",
    ),
    "processes_left": Row(
        action="replace",
        cause=0,
        title="processes of the run cannot be ended",
        remedy="State D is a wait in the kernel, for a device or a file server: only that, or a restart of the node, "
        "ends it.",
    ),
}
"""Kind of fault -> what is done."""

_OF_AGENT = {
    "input": "bad_input",
    "busy": "busy",
    "port": "port_taken",
    "killed": "worker_killed",
    "scheduler": "scheduler_killed",
    "failed": "worker_failed",
    "start": "start_failed",
    "lease": "agent_lost",
}
SURE = 1
"""Up to this `cause` a fault is nobody else's effect."""
_DISK_FULL = (
    "No space for the checkpoint",
    *(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
)
_DAMAGED = ("has another content than when it was written", "No checkpoint here is whole")


def fault_of(event: Mapping[str, Any], *, node: int, host: str, step: int | None = None) -> Fault:
    """The fault that an agent's `failed` event tells of."""
    how, text = str(event.get("how", "")), str(event.get("text", "")).replace(f" {RUN_AGAIN}", "")
    kind, rank = _OF_AGENT.get(how, "worker_failed"), event.get("rank")
    standing = event.get("standing")
    stopped = [one.get("rank") for one in standing if isinstance(one, dict)] if isinstance(standing, list) else []
    if kind in ("worker_failed", "start_failed", "bad_input") and any(words in text for words in _DISK_FULL):
        kind = "disk_full"
    elif kind == "bad_input" and _DAMAGED[0] in text:
        kind = "checkpoint_damaged"
    elif kind in ("worker_killed", "worker_failed", "scheduler_killed") and stopped:
        # MindSpore gives up a rank that does not answer for half a minute; that it was stopped is the reason.
        kind, rank = "hang", stopped[0]
        text = f"Rank {rank} stood still (its process was stopped) until MindSpore gave it up.\n{text}"
    return Fault(
        kind=kind, text=text, node=node, host=host, rank=rank if isinstance(rank, int) else None, step=step
    )


def is_sure(fault: Fault) -> bool:
    """Whether it is nobody else's effect."""
    return ROWS[fault.kind].cause <= SURE


def first_cause(faults: list[Fault]) -> Fault:
    """Of faults in the order in which they were seen, the one that the others follow from."""
    return min(faults, key=lambda fault: ROWS[fault.kind].cause)
