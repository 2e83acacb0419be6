"""The agent: one node's part of a run, under a lease.

    python -m msparallel.launch.agent RECIPE [section.key=value ...] --node-rank R --master-addr A --master-port P

In: the lease, on stdin: any line at least every LEASE_S seconds, `stop` to end it. Out: the node's part as
`msparallel run RECIPE --node-rank R` would run it, and events on stdout, one JSON object a line:

  started  pid, host, ranks, lease_s, ended (processes of an earlier attempt that were still here)
  ranks    ranks: [{rank, pid, status (running, done, failed, killed), state of /proc (R S D T Z, empty where it is
           gone), phase, step, beat (Unix seconds), step_s, loss}]; about once a second
  disk     path, free_bytes
  devices  devices: [{device, name, health, temperature_c, memory_used_mib, memory_total_mib, aicore_percent}] of those
           that the part uses, or error: why npu-smi does not tell; where npu-smi is there
  failed   text, rank (null where no rank is to blame), how (input, busy, port, killed, scheduler, start, failed,
           lease), exit_code, standing: [{rank, state}] of ranks that stood still (T or D) when the failure was seen
  stopped  left: [{pid, state, name}] that could not be ended; the last event of a part that did not come to its end
  done     result: fields of `run --json`

The lease is what keeps a node from going on alone: when the link to it breaks, or ssh, or whoever holds the lease dies,
every process of the part is ended (SIGTERM, grace, SIGKILL), so that a job that was restarted elsewhere does not find
this node still writing checkpoints. Exit code: 0 done, 1 failed or stopped, 2 bad input.

>>> main(["gpt_tiny_dp2_cpu", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "8118"])
0
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msparallel.errors import RunError, UserError
from msparallel.launch.agent_devices import DeviceWatch
from msparallel.launch.agent_line import LEASE_S, Events, Lease
from msparallel.launch.agent_part import Outcome, outcome_from, parser
from msparallel.launch.devices import check_devices, check_mindspore
from msparallel.launch.marked import MARK, end_marked, marked, process_state
from msparallel.launch.msrun import PortTaken, check_port, clear_logs, local_ranks, logs_dir, without_our_own
from msparallel.launch.processes import die_with_parent
from msparallel.launch.status import first_failure, read_beats, read_states
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.train.run import run_dir, sole_run

POLL_S = 0.25
DIES_S = 2.0
"""A part whose agent has just been killed is gone by then."""
RANKS_S = 1.0
DISK_S = 5.0
PART_ENDS_S = 30.0
"""After a rank has failed, how long the part may take to stop the others and say why."""
LONG_WAIT_S = 10.0
"""A rank in state D for less only reads or writes a file."""
SCHEDULER_S = 5.0
"""Ranks that say nothing for so long after the scheduler has gone did not end by themselves."""


def mark_of(plan: Plan, node: int) -> str:
    """What the processes of a node's part carry as MSPARALLEL_JOB; the same for every attempt."""
    return f"{run_dir(plan).absolute()}#{node}"


def main(arguments: Sequence[str]) -> int:
    """Exit code of the agent."""
    given = parser().parse_args(arguments)
    events, lease = Events(node=given.node_rank), Lease()
    told_to_end: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: told_to_end.append(number))
    try:
        plan = resolve(load_recipe(given.recipe, given.overrides))
        _check(plan, given.node_rank)
        with sole_run(plan, given.node_rank):
            return _Node(plan, given, arguments, events, lease, told_to_end).run()
    except UserError as error:  # nothing was started
        how = "busy" if isinstance(error, RunError) else "input"
        events.send("failed", text=str(error), rank=None, how=how, exit_code=error.exit_code, standing=[])
        return error.exit_code
    finally:
        events.flush(patience_s=LEASE_S)


def _check(plan: Plan, node: int) -> None:
    if plan.recipe.train is None:
        raise UserError(f"{plan.recipe.path}\n  The recipe has no `train` section: there is nothing to train.")
    if not 0 <= node < plan.nodes:
        raise UserError(f"--node-rank {node}: {plan.recipe.name} has {plan.nodes} nodes, 0 to {plan.nodes - 1}.")
    check_devices(plan)
    check_mindspore()


class _Node:
    """The part while it runs."""

    def __init__(
        self,
        plan: Plan,
        given: argparse.Namespace,
        words: Sequence[str],
        events: Events,
        lease: Lease,
        told_to_end: list[int],
    ):
        self._plan, self._given, self._words = plan, given, words
        self._node = node = given.node_rank
        self._events, self._lease, self._told_to_end = events, lease, told_to_end
        self._logs, self._ranks, self._mark = logs_dir(plan), local_ranks(plan, node), mark_of(plan, node)
        self._devices = DeviceWatch(plan.devices_per_node)
        self._written, self._scheduler = bytearray(), 0
        self._due: dict[str, float] = {}

    def run(self) -> int:
        self._refuse_where_another_lives()
        ended = [asdict(process) for process in marked(self._mark)]
        if left := end_marked(self._mark):
            pids = ", ".join(f"{process.pid} (state {process.state})" for process in left)
            raise RunError(f"Processes of an earlier attempt cannot be ended here: {pids}. The node needs a restart.")
        clear_logs(self._logs, self._ranks)
        part = self._start()
        self._events.send(
            "started",
            pid=os.getpid(),
            host=socket.gethostname(),
            ranks=list(self._ranks),
            lease_s=LEASE_S,
            ended=ended,
        )
        try:
            failure = self._watch(part)
        except BaseException:
            end_marked(self._mark, grace_s=0.0)
            raise
        outcome = self._outcome(part)
        if failure is None and outcome is not None and outcome.result is not None:
            self._events.send("done", result=outcome.result)
            return 0
        failure = failure or self._why(part, standing=[])
        self._events.send("ranks", ranks=self._rank_reports())  # how far they came
        self._events.send("failed", **failure)
        left = end_marked(self._mark, tick=self._events.flush)
        part.wait()
        self._events.send("stopped", left=[asdict(process) for process in left])
        return int(failure["exit_code"])

    def _refuse_where_another_lives(self) -> None:
        """A part dies with its agent, so one that stays has an agent that lives: somebody deleted the lock under it."""
        deadline = time.monotonic() + DIES_S
        while parts := [process.pid for process in marked(self._mark) if _is_part(process.pid)]:
            if time.monotonic() > deadline:
                raise RunError(
                    f"{run_dir(self._plan)}\n  Another process is training here (process {parts[0]}). End it, wait for "
                    "it, or set another train.output_dir."
                )
            time.sleep(POLL_S)

    def _start(self) -> subprocess.Popen[bytes]:
        package = str(Path(__file__).resolve().parents[2])
        environment = {
            **os.environ,
            MARK: self._mark,
            "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        }
        # A run on one device has no msrun that keeps its worker's words.
        name = "worker_0.log" if self._plan.world_size == 1 else f"node_{self._node}.log"
        with (self._logs / name).open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "msparallel.launch.agent_part", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _take(self, part: subprocess.Popen[bytes]) -> bool:
        """Read what the part has written; whether it still runs. It waits while its pipe is full."""
        ended = part.poll() is not None
        assert part.stdout is not None, "it was started with a pipe"
        os.set_blocking(part.stdout.fileno(), False)
        while chunk := part.stdout.read(1 << 16):
            self._written += chunk
        return not ended

    def _outcome(self, part: subprocess.Popen[bytes]) -> Outcome | None:
        self._take(part)
        return outcome_from(bytes(self._written))

    def _watch(self, part: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """Until the part has ended (None), or must be (why)."""
        scheduler_gone = 0.0
        while self._take(part):
            time.sleep(POLL_S)
            if self._told_to_end:
                return _lost(f"it got {signal.Signals(self._told_to_end[0]).name}")
            if not self._lease.holds():
                return _lost(self._lease.ended)
            if self._events.broken:
                return _lost("nobody reads what it says")
            self._report()
            states = read_states(self._logs, self._ranks)
            if self._scheduler_is_gone() and any(state.state == "running" for state in states):
                scheduler_gone = scheduler_gone or time.monotonic()
            else:
                scheduler_gone = 0.0
            failure = first_failure(states)
            if scheduler_gone and (failure or time.monotonic() - scheduler_gone > SCHEDULER_S):
                return self._scheduler_failure()
            if failure:
                standing = self._standing()  # now: the part is about to end them
                self._let_end(part)
                return self._why(part, standing)
        return None

    def _let_end(self, part: subprocess.Popen[bytes]) -> None:
        """Time to stop the other ranks and to say why."""
        deadline = time.monotonic() + PART_ENDS_S
        while self._take(part) and time.monotonic() < deadline and self._lease.holds():
            time.sleep(POLL_S)
            self._events.flush()

    def _why(self, part: subprocess.Popen[bytes], standing: list[dict[str, Any]]) -> dict[str, Any]:
        """What the part itself says, or else what is seen of it and its ranks."""
        outcome = self._outcome(part)
        if outcome is not None:
            return _failed(outcome.error, outcome.kind, outcome.rank, outcome.exit_code, standing)
        code = part.poll()
        ended = signal.Signals(-code).name if code is not None and code < 0 else f"code {code}"
        failure = first_failure(
            without_our_own(read_states(self._logs, self._ranks), self._logs / f"msrun_{self._node}.log")
        )
        if failure is not None:
            text = failure.text or f"Rank {failure.rank} of {self._plan.world_size} was killed ({ended})."
            log = self._logs / f"worker_{failure.rank}.log"
            how = "killed" if failure.state == "killed" else "input" if failure.exit_code == 2 else "failed"
            return _failed(f"{text}\n  Log: {log}", how, failure.rank, failure.exit_code or 1, standing)
        text = f"The launcher of node {self._node} ended ({ended}) before it could say why.\n  Logs: {self._logs}"
        return _failed(text, "start", None, RunError.exit_code, standing)

    def _scheduler_is_gone(self) -> bool:
        if self._node or self._plan.world_size == 1:
            return False
        if not self._scheduler:
            schedulers = [process for process in marked(self._mark) if process.role == "MS_SCHED"]
            self._scheduler = schedulers[0].pid if schedulers else 0
            return False
        return process_state(self._scheduler) in ("", "Z", "X")

    def _scheduler_failure(self) -> dict[str, Any]:
        log = self._logs / "scheduler.log"
        # A port that somebody else has keeps ranks from starting. Once one has begun it was ours, and what still holds
        # it is on its way out.
        if all(beat.phase == "start" for beat in read_beats(self._logs, self._ranks)):
            try:
                check_port(self._given.master_addr, self._given.master_port)
            except PortTaken as taken:
                return _failed(f"{taken}\n  Log: {log}", "port", None, RunError.exit_code, [])
        text = (
            f"The scheduler process ({self._scheduler}) of node 0 is gone while its ranks were running.\n  Log: {log}"
        )
        return _failed(text, "scheduler", None, RunError.exit_code, self._standing())

    def _standing(self) -> list[dict[str, Any]]:
        pids = {state.rank: state.pid for state in read_states(self._logs, self._ranks)}
        beats = {beat.rank: beat.time for beat in read_beats(self._logs, self._ranks)}
        now, standing = time.time(), []
        for rank, pid in pids.items():
            state = process_state(pid)
            waits = state == "D" and now - beats.get(rank, now) > LONG_WAIT_S
            if state in ("T", "t") or waits:
                standing.append({"rank": rank, "state": state})
        return standing

    def _report(self) -> None:
        self._events.flush()
        if self._is_due("ranks", RANKS_S):
            self._events.send("ranks", ranks=self._rank_reports())
        if self._is_due("disk", DISK_S):
            self._tell_disk()
        if (devices := self._devices.latest()) is not None:
            self._events.send("devices", **devices)

    def _tell_disk(self) -> None:
        try:
            free_bytes = shutil.disk_usage(self._logs).free
        except OSError:  # the folder of a network file system can be away; the ranks will say so
            return
        self._events.send("disk", path=str(self._logs), free_bytes=free_bytes)

    def _is_due(self, name: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(name, 0.0):
            return False
        self._due[name] = now + every_s
        return True

    def _rank_reports(self) -> list[dict[str, Any]]:
        beats = {beat.rank: beat for beat in read_beats(self._logs, self._ranks)}
        reports = []
        for state in read_states(self._logs, self._ranks):
            beat = beats.get(state.rank)
            reports.append(
                {
                    "rank": state.rank,
                    "pid": state.pid,
                    "status": state.state,
                    "state": process_state(state.pid),
                    "phase": beat.phase if beat else "start",
                    "step": beat.step if beat else None,
                    "beat": beat.time if beat else state.time,
                    "step_s": beat.step_s if beat else None,
                    "loss": beat.loss if beat else None,
                }
            )
        return reports


def _is_part(pid: int) -> bool:
    try:
        return b"msparallel.launch.agent_part" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _failed(
    text: str, how: str, rank: int | None, exit_code: int, standing: list[dict[str, Any]]
) -> dict[str, Any]:
    """Fields of the event."""
    return {"text": text, "rank": rank, "how": how, "exit_code": exit_code, "standing": standing}


def _lost(why: str) -> dict[str, Any]:
    return _failed(f"The agent stopped: {why}.", "lease", None, RunError.exit_code, [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
