"""Several processes for one run, through MindSpore's own `msrun`.

In: a Plan. Out: `msrun_command`, the argument list (pure), and `launch`, which starts it, shows the progress of the
rank that knows the loss, and says in one message why a run failed. Every worker writes `logs/worker_N.log` and
`logs/rank_N.json` (its state: running, done, failed with a reason).
Under msrun rank = node_rank x local_worker_num + i, and device = i.

>>> msrun_command(plan, master_port=8118)[:3]
['msrun', '--worker_num', '2']
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from msparallel.errors import RunError, UserError
from msparallel.launch.processes import die_with_parent, sigterm_as_interrupt
from msparallel.launch.status import WorkerState, first_failure, read_states
from msparallel.plan import Plan
from msparallel.train.prepare import finished, prepare
from msparallel.train.run import RunResult, reporting_rank, run_dir, store

CLUSTER_TIMEOUT_S = 1800
"""Workers of one run may reach MindSpore's cluster this far apart (a node that must first tokenize its corpus)."""
POLL_S = 0.25
GRACE_S = 5.0
"""After one worker has failed, how long the others may take to say that they failed earlier."""
RUN_AGAIN = "Run again to go on from the last checkpoint."
"""For a person; a supervisor does it."""


def msrun_command(
    plan: Plan,
    *,
    node_rank: int = 0,
    master_addr: str = "127.0.0.1",
    master_port: int = 8118,
    log_dir: str | Path | None = None,
    follow: bool = True,
) -> list[str]:
    """Argument list that starts this node's workers.

    Args:
        node_rank: of this machine, 0 .. plan.nodes - 1; node 0 also runs msrun's scheduler.
        master_addr, master_port: where the scheduler listens.
        log_dir: of the workers' logs; left out: output_dir/NAME/logs.
        follow: msrun itself shows the log of the rank that knows the loss (or of this node's first).

    Raises:
        UserError: the plan has no such node.
    """
    if not 0 <= node_rank < plan.nodes:
        raise UserError(
            f"--node-rank {node_rank}: {plan.recipe.name} has {plan.nodes} "
            f"node{'s' * (plan.nodes > 1)}, 0 to {plan.nodes - 1}."
        )
    options = {
        "worker_num": plan.world_size,
        "local_worker_num": plan.devices_per_node,
        "node_rank": node_rank,
        "master_addr": master_addr,
        "master_port": master_port,
        "cluster_time_out": CLUSTER_TIMEOUT_S,
        "log_dir": log_dir or logs_dir(plan),
        "join": True,
        "tail_worker_log": _shown_rank(plan, node_rank) if follow else -2,  # -2 is nobody; -1 would be all
    }
    if plan.hardware.target != "CPU":
        options["bind_core"] = True  # to the cores near each device, by npu-smi; it only warns where it cannot
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["msrun", *words, "python", "-m", "msparallel.launch.worker", plan.recipe.path, *plan.recipe.overrides]


def local_ranks(plan: Plan, node_rank: int) -> range:
    """Ranks of a node."""
    return range(node_rank * plan.devices_per_node, (node_rank + 1) * plan.devices_per_node)


def _shown_rank(plan: Plan, node_rank: int) -> int:
    local = local_ranks(plan, node_rank)
    return reporting_rank(plan) if reporting_rank(plan) in local else local[0]


def logs_dir(plan: Plan) -> Path:
    """Folder of the workers' logs."""
    return run_dir(plan) / "logs"


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class RankFailed(RunError):
    """One rank ended the run.

    Attributes:
        rank: which.
        killed: a signal ended it; otherwise it said why it failed.
    """

    def __init__(self, text: str, *, rank: int, killed: bool):
        super().__init__(text)
        self.rank, self.killed = rank, killed


class PortTaken(RunError):
    """Another process listens where the scheduler should."""


def check_port(address: str, port: int) -> None:
    """Raise PortTaken where the scheduler could not listen on this machine's `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise PortTaken(
                f"--master-port {port}: the scheduler cannot listen on {address}:{port} ({error.strerror}). "
                f"Leave --master-port out to have a free one chosen, or try --master-port {free_port()}."
            ) from None


def launch(
    plan: Plan,
    *,
    node_rank: int = 0,
    master_addr: str = "127.0.0.1",
    master_port: int | None = None,
    show: bool = True,
) -> RunResult:
    """Run this node's workers to their end; what is wrong with data or checkpoint is found before they start.

    Args:
        show: copy the log of one rank to stderr as it grows.

    Raises:
        RunError: a worker failed, was killed, or the port is taken; the text is the first failing rank's.
        UserError: the first failing rank's input was wrong.
    """
    if done := finished(plan, checkpoint := store(plan).newest()):
        return done
    prepare(plan, checkpoint)
    if master_port is None:
        master_port = free_port()
    elif node_rank == 0:
        check_port(master_addr, master_port)
    logs = logs_dir(plan)
    local, shown = local_ranks(plan, node_rank), _shown_rank(plan, node_rank)
    clear_logs(logs, local)
    command = msrun_command(
        plan, node_rank=node_rank, master_addr=master_addr, master_port=master_port, log_dir=logs, follow=False
    )
    msrun_log = logs / f"msrun_{node_rank}.log"
    with msrun_log.open("wb") as output:
        process = subprocess.Popen(
            [own_msrun(), *command[1:]],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=worker_environment(plan.devices_per_node if plan.hardware.target == "CPU" else 0),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    follower = _Follower(logs / f"worker_{shown}.log")
    terminated = sigterm_as_interrupt()
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            if show:
                follower.show()
            if any(state.failed for state in read_states(logs, local)):
                _wait(process, GRACE_S)
                break
    finally:
        # A checkpoint in the making leaves the last whole one, so nobody needs to be asked politely.
        _kill(process)
        signal.signal(signal.SIGTERM, terminated)
    if show:
        follower.show()
    states = read_states(logs, local)
    if failure := first_failure(without_our_own(states, msrun_log)):
        raise _failed(plan, failure, logs, msrun_log)
    if process.returncode or not all(state.done for state in states):
        text = _last_lines(logs / f"worker_{shown}.log") or _last_lines(msrun_log)
        raise RunError(
            f"msrun ended with code {process.returncode} before its workers were done.\n{text}\n  Logs: {logs}"
        )
    if reporting_rank(plan) not in local:
        return RunResult(
            world_size=plan.world_size, losses=[], eval_losses=[], tokens_per_s=0.0, checkpoint="", resumed_from=None
        )
    return RunResult(**json.loads((logs / "result.json").read_text(encoding="utf-8")))


def without_our_own(states: list[WorkerState], msrun_log: Path) -> list[WorkerState]:
    """msrun and `launch` kill the others once one has ended: of the ranks that are gone without a word only the one
    that msrun found dead was killed by somebody else, where it found one or a rank has said why it failed."""
    killed_before = [state for state in states if state.state == "killed" and _signal_in(msrun_log, state.pid)]
    if not killed_before and not any(state.state == "failed" for state in states):
        return states
    return [state for state in states if state.state != "killed" or state in killed_before]


def _failed(plan: Plan, failure: WorkerState, logs: Path, msrun_log: Path) -> UserError:
    """The first failing rank's own words."""
    log = logs / f"worker_{failure.rank}.log"
    if failure.text and failure.exit_code == UserError.exit_code:
        return UserError(failure.text)
    if failure.text:
        text = f"Rank {failure.rank} of {plan.world_size} failed first:\n{failure.text}\n  Log: {log}"
        return RankFailed(text, rank=failure.rank, killed=False)
    killed = _signal_in(msrun_log, failure.pid)
    how = f"was killed by {killed}" if killed else "ended without a word"
    hint = " The kernel does that when memory runs out: see `dmesg`." if killed == "SIGKILL" else ""
    text = (
        f"Rank {failure.rank} of {plan.world_size} {how}.{hint} The other workers were stopped. {RUN_AGAIN}\n"
        f"{_last_lines(log)}\n  Log: {log}"
    )
    return RankFailed(text, rank=failure.rank, killed=True)


def _signal_in(msrun_log: Path, pid: int) -> str:
    """Name of the signal that ended a worker, as msrun saw it."""
    text = msrun_log.read_text(errors="replace") if msrun_log.exists() else ""
    found = re.search(rf"process {pid} exit with exception\. Error code: -(\d+)", text)
    return signal.Signals(int(found[1])).name if found else ""


def _last_lines(log: Path, count: int = 5) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"  | {line.rsplit(chr(13), 1)[-1]}" for line in lines[-count:])


class _Follower:
    """Copies what a growing file gains to stderr, without MindSpore's own notices; the file keeps them."""

    _NOTICE = re.compile(rb"^\[(?:INFO|DEBUG)\] [A-Z_]+\(.*\n", re.MULTILINE)

    def __init__(self, path: Path):
        self._path, self._position = path, 0

    def show(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        if new.rpartition(b"\n")[2].startswith(b"["):  # perhaps the first half of a notice
            new = new[: new.rfind(b"\n") + 1]
        self._position += len(new)
        sys.stderr.write(self._NOTICE.sub(b"", new).decode(errors="replace"))
        sys.stderr.flush()


def clear_logs(logs: Path, ranks: range) -> None:
    """Take away what an earlier launch of these ranks left: old failures must not be read as new ones.

    Other machines may keep theirs in the same folder.
    """
    names = [name for rank in ranks for name in (f"rank_{rank}.json", f"rank_{rank}.beat", f"worker_{rank}.log")]
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for name in names:
            (logs / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"{logs}\n  The logs cannot be written: {error}. Set train.output_dir to another place."
        ) from error


def worker_environment(sharing: int) -> dict[str, str]:
    """This Python first on the path, since msrun calls `python`, and this package importable.

    Args:
        sharing: workers that the cores are shared out among; 0 on devices, where msrun binds them.
    """
    package = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
    }
    if sharing:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // sharing)))
    return environment


def own_msrun() -> str:
    """The msrun that belongs to this Python."""
    beside = Path(sys.executable).parent / "msrun"
    return str(beside) if beside.exists() else "msrun"


def _kill(process: subprocess.Popen) -> None:
    """End msrun, its scheduler and its workers, each of which has a process group of its own."""
    if process.poll() is None:
        workers = _children(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        for pid in workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def _wait(process: subprocess.Popen, seconds: float) -> None:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return
