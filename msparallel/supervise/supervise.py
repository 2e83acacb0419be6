"""A run kept alive: attempt after attempt, until it is done or there is a reason to give up.

In: a Plan, a Layout with its spares, how to reach the hosts. Out: a Supervised: every attempt, what was done about its
end, and the result or why it was given up. On the way: incidents in output_dir/NAME/incidents.

>>> supervise(plan, layout, asking, say=print).gave_up is None
True
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from msparallel.cluster.hosts import Host
from msparallel.errors import UserError, printable, short
from msparallel.launch.hosts import Layout
from msparallel.launch.msrun import free_port
from msparallel.launch.preflight_ask import Asking
from msparallel.plan import Plan
from msparallel.supervise.advice import fewer_nodes, to_free
from msparallel.supervise.attempt import Outcome, attempt
from msparallel.supervise.decide import Decision, Past, decide
from msparallel.supervise.fault import ROWS, Fault
from msparallel.supervise.incident import Incident, keep, write
from msparallel.supervise.watch import Place
from msparallel.train.run import run_dir, sole_run, store

HOLDER = "supervise"
"""Name of the supervisor's lock beside those of the nodes."""
_PORTS = range(20000, 32000)
"""Below those that Linux gives to outgoing connections (from 32768), away from HCCL's 16666 and 60000."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A row of `supervise --json`.

    Attributes:
        started, ended: Unix seconds.
        from_step: of the checkpoint it went on from, 0 where it began at the start.
        to_step: last step that was done.
        end: done, or the kind of fault.
        rank, node: to blame; None where there is no single one.
        host: of the node.
        action: what was decided; done after a clean end.
        reason: of the decision.
        text: the fault in words.
        cause: rule of the fault handbook that explains it, empty where none does.
        incident: folder with its logs, None where there is none.
    """

    attempt: int
    started: float
    ended: float
    from_step: int
    to_step: int
    end: str
    rank: int | None = None
    node: int | None = None
    host: str = ""
    action: str = "done"
    reason: str = ""
    text: str = ""
    cause: str = ""
    incident: str | None = None


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Attributes:
    result: fields of `run --json`, None where it was given up.
    gave_up: why, None where it was not.
    exit_code: 0 done, 1 given up, 2 given up for wrong input.
    """

    attempts: tuple[Attempt, ...]
    result: dict[str, Any] | None
    gave_up: str | None
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """One JSON document."""
        return {
            "attempts": [asdict(one) for one in self.attempts],
            "result": self.result,
            "gave_up": self.gave_up,
        }


def supervise(
    plan: Plan,
    layout: Layout,
    asking: Asking,
    *,
    port_given: bool = False,
    say: Callable[[str], object] = lambda text: None,
    show: Callable[[Place], object] = lambda place: None,
) -> Supervised:
    """Run the job to its end.

    Args:
        port_given: layout.master_port was named by the user and must not be replaced.
        say: takes lines for the person at the terminal.
        show: told about once a second where the rank is that knows the loss.

    Raises:
        RunError: another supervisor has this run, or output_dir cannot be written.
        UserError: no checkpoint that is there is whole.
    """
    with sole_run(plan, HOLDER, "supervising"):
        return _Supervisor(plan, layout, asking, port_given, say, show).run()


@dataclass(kw_only=True)
class _Hosts:
    """Who is which node now, and who is left."""

    nodes: list[Host]
    spares: list[Host]
    excluded: list[Host] = field(default_factory=list)

    def replace(self, node: int) -> Host:
        """Put the next spare in a node's place."""
        self.excluded.append(self.nodes[node])
        self.nodes[node] = self.spares.pop(0)
        return self.nodes[node]


class _Supervisor:
    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        asking: Asking,
        port_given: bool,
        say: Callable[[str], object],
        show: Callable[[Place], object],
    ):
        self._plan, self._layout, self._asking, self._port_given = plan, layout, asking, port_given
        self._say, self._show = say, show
        self._hosts = _Hosts(nodes=list(layout.nodes), spares=list(layout.spares))
        self._port = layout.master_port
        self._attempts: list[Attempt] = []
        self._past: list[Past] = []

    def run(self) -> Supervised:
        self._remark_on_checkpoints()
        while True:
            from_step = self._whole_checkpoint()
            number, started = len(self._attempts) + 1, time.time()
            self._tell_start(number, from_step)
            outcome = attempt(
                self._plan, self._now(), self._asking, port=self._port, show=self._show, told=self._say
            )
            if outcome.fault is None:
                self._attempts.append(
                    Attempt(
                        attempt=number,
                        started=round(started, 3),
                        ended=round(time.time(), 3),
                        from_step=from_step,
                        to_step=self._steps(),
                        end="done",
                    )
                )
                return Supervised(attempts=tuple(self._attempts), result=outcome.result, gave_up=None)
            decision = self._after(outcome, outcome.fault, number, started, from_step)
            if not decision.goes_on:
                code = UserError.exit_code if outcome.fault.kind == "bad_input" else 1
                return Supervised(
                    attempts=tuple(self._attempts), result=None, gave_up=decision.reason, exit_code=code
                )
            self._prepare_next(decision, outcome.fault)

    def _steps(self) -> int:
        assert self._plan.recipe.train is not None, "only recipes with a train section are supervised"
        return self._plan.recipe.train.steps

    def _now(self) -> Layout:
        first = self._hosts.nodes[0]
        address = self._layout.master_addr
        if first != self._layout.nodes[0]:
            address = first.address or first.name
        return replace(
            self._layout,
            nodes=tuple(self._hosts.nodes),
            spares=tuple(self._hosts.spares),
            master_addr=address,
            master_port=self._port,
        )

    def _whole_checkpoint(self) -> int:
        """Step of the newest whole checkpoint; newer ones that are damaged are set aside, and told of."""
        checkpoints = store(self._plan)
        for path, what in checkpoints.set_damaged_aside():
            self._say(f"A checkpoint is damaged: {what} It is kept as {path}; the one before it is used.")
        newest = checkpoints.newest()
        return newest.step if newest else 0

    def _remark_on_checkpoints(self) -> None:
        train = self._plan.recipe.train
        assert train is not None, "only recipes with a train section are supervised"
        if train.checkpoint_interval is None:
            self._say(
                "train.checkpoint_interval is not set: the only checkpoint is the last, and after a fault the run "
                f"starts over. Try: train.checkpoint_interval={max(1, train.steps // 10)}"
            )

    def _after(
        self, outcome: Outcome, fault: Fault, number: int, started: float, from_step: int
    ) -> Decision:
        """Keep what is left of a failed attempt, decide, and write both down."""
        incident = self._keep(outcome, fault)
        checkpoint, damage = self._checkpoint_after()
        fault = replace(fault, step=fault.step if fault.step is not None else from_step)
        decision = decide(
            fault,
            self._plan.recipe.supervise,
            past=self._past,
            checkpoint=checkpoint,
            spares=len(self._hosts.spares),
            port_given=self._port_given,
            now=time.monotonic(),
        )
        if damage:
            decision = Decision(action="give_up", reason=damage)
        if not decision.goes_on:
            decision = replace(decision, reason="\n".join([decision.reason, *self._advice(fault)]))
        record = Attempt(
            attempt=number,
            started=round(started, 3),
            ended=round(time.time(), 3),
            from_step=from_step,
            to_step=outcome.step if outcome.step is not None else from_step,
            end=fault.kind,
            rank=fault.rank,
            node=fault.node,
            host=fault.host,
            action=decision.action,
            reason=decision.reason,
            text=fault.text,
            cause=str(incident.cause.get("rule", "")) if incident.cause else "",
            incident=str(incident.folder) if incident.folder else None,
        )
        write(incident, outcome, asdict(record))
        self._attempts.append(record)
        self._past.append(
            Past(fault=fault, checkpoint=checkpoint, action=decision.action, ended=time.monotonic())
        )
        self._tell_end(record, incident, decision)
        return decision

    def _keep(self, outcome: Outcome, fault: Fault) -> Incident:
        """The incident; none for a node that still cannot be reached, which was told the first time."""
        before = self._past[-1] if self._past else None
        if before and before.action == "wait" and (before.fault.kind, before.fault.host) == (fault.kind, fault.host):
            return Incident(folder=None, cause=None)
        return keep(run_dir(self._plan), outcome)

    def _checkpoint_after(self) -> tuple[int, str]:
        """Step of the newest whole checkpoint, or why there is none to go on from."""
        try:
            return self._whole_checkpoint(), ""
        except UserError as error:
            return 0, str(error)

    def _prepare_next(self, decision: Decision, fault: Fault) -> None:
        if decision.action == "exclude":
            assert fault.node is not None, "only a node's fault excludes one"
            gone = self._hosts.nodes[fault.node].name
            self._say(f"{self._hosts.replace(fault.node).name} takes the place of {gone} as node {fault.node}.")
        if not self._port_given:
            self._port = self._next_port(decision)
        time.sleep(self._plan.recipe.supervise.restart_delay_s)

    def _next_port(self, decision: Decision) -> int:
        if self._plan.nodes == 1:
            return free_port()
        return random.choice(_PORTS) if decision.action == "other_port" else self._port

    def _advice(self, fault: Fault) -> list[str]:
        """What a person can do, where the supervisor cannot."""
        if fault.kind == "disk_full":
            found = to_free(run_dir(self._plan))
            return ["Could go:"] * bool(found) + [f"  {size / 2**20:10,.1f} MiB  {path}" for path, size in found]
        if ROWS[fault.kind].action == "replace" and self._plan.nodes > 1:
            newest = store(self._plan).newest()
            words = fewer_nodes(self._asking.recipe, self._asking.overrides, newest)
            if words:
                return [f"On fewer nodes it goes on with: {' '.join(words)}"]
            if newest is not None and newest.ranks:
                return ["The checkpoint's slices fit only this plan: it takes as many devices to go on."]
        return []

    def _tell_start(self, number: int, from_step: int) -> None:
        where = f"from step {from_step}" if from_step else "from the start"
        names = ", ".join(host.name for host in self._hosts.nodes[:8])
        more = f" and {len(self._hosts.nodes) - 8} more" if len(self._hosts.nodes) > 8 else ""
        self._say(f"Attempt {number}: {where} of {self._steps()} steps, on {names}{more}, port {self._port}.")

    def _tell_end(self, record: Attempt, incident: Incident, decision: Decision) -> None:
        self._say(f"Attempt {record.attempt} {ended_text(record)}")
        self._say("\n".join(f"  {line}" for line in _first_lines(record.text)))
        if incident.cause is not None:
            self._say(f"  The logs say: {record.cause}: {short(incident.cause.get('root_cause', ''), 300)}")
        if incident.problem:
            self._say(f"  {short(incident.problem, 300)}")
        if record.incident:
            self._say(f"  Kept in {record.incident}.")
        self._say(f"  {decision.action.replace('_', ' ').capitalize()}: {decision.reason}")


def ended_text(record: Attempt) -> str:
    """How an attempt ended, in one line."""
    if record.end == "done":
        return f"ended well at step {record.to_step}."
    who = [f"rank {record.rank}"] * (record.rank is not None) + [record.host] * bool(record.host)
    where = f" ({', '.join(who)})" if who else ""
    return f"ended at step {record.to_step}: {ROWS[record.end].title}{where}."


def _first_lines(text: str, most: int = 6) -> Sequence[str]:
    lines = [printable(short(line, 400)) for line in text.splitlines() if line.strip()]
    return lines[:most]
