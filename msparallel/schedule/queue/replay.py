"""Jobs, a cluster and a policy, replayed as discrete events.

In: Jobs. Out: Replay: when each job started and ended, how often it was evicted, where every device-second went, who
held how many devices when. Deterministic: the same input gives the same Replay. Time is simpy's; a decision comes after
everything that happens at its moment.

What a run does with its devices, in this order: restart (nothing where it is the first start of its piece), work that
counts, and, where it is evicted, work after the last checkpoint, which is lost. Writing a checkpoint takes no time
here, and neither does giving way.

>>> from msparallel.schedule.queue.job import Cluster, Job
>>> from msparallel.schedule.queue.policies import POLICIES
>>> jobs = [Job(name=name, submit_s=0, nodes=1, devices_per_node=8, duration_s=60) for name in "ab"]
>>> [done.first_start_s for done in replay(jobs, Cluster(nodes=1, devices_per_node=8), POLICIES["fifo"]).jobs]
[0.0, 60.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import simpy

from msparallel.schedule.queue.job import KINDS, Cluster, Job
from msparallel.schedule.queue.policies import Policy
from msparallel.schedule.queue.shares import QueueRule
from msparallel.schedule.queue.state import Decision, Piece, Run, State

IDLE = ("nobody waits", "too few are free", "free but scattered")
"""Why a device is idle, seen from the first in line: `free but scattered` where as many are free as it asks for, on
nodes where they do not make up its shape."""


@dataclass(kw_only=True)
class JobEnd:
    """Attributes:
    first_start_s, end_s: since the first submission; of a job of replicas the first of them, and the last.
    evictions: of all its replicas.
    """

    job: Job
    submit_s: float
    first_start_s: float = -1.0
    end_s: float = -1.0
    evictions: int = 0
    pieces_left: int = 0

    @property
    def wait_s(self) -> float:
        return self.first_start_s - self.submit_s


@dataclass(kw_only=True)
class Replay:
    """Attributes:
    jobs: in the order of submission.
    end_s: when the last job ends, since the first submission; that is the window.
    useful, lost, restart: device-seconds, by class.
    idle: device-seconds, by reason.
    usage: (moment, devices held by each of KINDS from then on).
    """

    policy: str
    cluster: Cluster
    jobs: list[JobEnd] = field(default_factory=list)
    end_s: float = 0.0
    useful: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    restart: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    idle: dict[str, float] = field(default_factory=lambda: dict.fromkeys(IDLE, 0.0))
    usage: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)


Watch = Callable[[State, Decision | None], None]
"""Called with each decision before it is carried out, and with None after the last one of a moment."""


def replay(
    jobs: Sequence[Job], cluster: Cluster, policy: Policy, *, queues: Mapping[str, QueueRule] | None = None,
    progress: Callable[[], None] = lambda: None, watch: Watch = lambda state, decision: None,
) -> Replay:  # fmt: skip
    """Names are unique and every job fits the cluster (`read_trace` sees to it). `progress` is called as jobs end."""
    run = _Replaying(jobs, cluster, policy, queues or {}, progress, watch)
    run.env.run()
    left = [end.job.name for end in run.result.jobs if end.pieces_left]
    assert not left, f"{policy.name}: {len(left)} jobs never ended, {left[0]} first"
    return run.result


class _Replaying:
    def __init__(
        self, jobs: Sequence[Job], cluster: Cluster, policy: Policy, queues: Mapping[str, QueueRule],
        progress: Callable[[], None], watch: Watch,
    ):  # fmt: skip
        self.env = simpy.Environment(initial_time=0.0)
        self.state = State(cluster, has_spare=any(map(policy.spare, jobs)))
        self.result = Replay(policy=policy.name, cluster=cluster)
        self._policy, self._decide = policy, policy.decide(queues)
        self._progress, self._watch = progress, watch
        self._ends: dict[str, JobEnd] = {}
        self._held = dict.fromkeys(KINDS, 0)
        self._idle_since, self._idle_why = 0.0, IDLE[0]
        self._woken = self.env.event()
        self.env.process(self._arrivals(sorted(jobs, key=lambda job: (job.submit_s, job.line, job.name))))
        self.env.process(self._scheduler())

    def _arrivals(self, jobs: list[Job]) -> Iterator[simpy.Event]:
        first = jobs[0].submit_s if jobs else 0.0
        for submit_s, together in groupby(jobs, key=lambda job: job.submit_s):
            if submit_s - first > self.env.now:
                yield self.env.timeout(submit_s - first - self.env.now)
            for job in together:
                pieces, spare = job.pieces, self._policy.spare(job)
                end = JobEnd(job=job, submit_s=self.env.now, pieces_left=len(pieces))
                self._ends[job.name] = end
                self.result.jobs.append(end)
                for number, shape in enumerate(pieces):
                    key = (*self._policy.order(job), job.submit_s, job.line, job.name, number)
                    piece = Piece(job, shape, key, spare)
                    self.state.lane(piece).wait(piece)
            self._wake()

    def _scheduler(self) -> Iterator[simpy.Event]:
        while True:
            yield self._woken  # behind everything of this moment that was known before it: ends, submissions
            self._woken = self.env.event()
            self.state.now = self.env.now
            self._count_idle()
            for decision in self._decide(self.state):
                self._watch(self.state, decision)
                for run in decision.evict:
                    self._evict(run)
                self._start(decision)
            self._idle_why = self._why_idle()
            self._note_usage()
            self._watch(self.state, None)

    def _wake(self) -> None:
        if not self._woken.triggered:
            self._woken.succeed()

    def _start(self, decision: Decision) -> None:
        run = self.state.start(decision)
        job = run.piece.job
        self._held[job.kind] += run.piece.devices
        if self._ends[job.name].first_start_s < 0:
            self._ends[job.name].first_start_s = self.env.now
        run.process = self.env.process(self._running(run))

    def _running(self, run: Run) -> Iterator[simpy.Event]:
        try:
            yield self.env.timeout(run.takes_s)
        except simpy.Interrupt:
            return
        self._count_idle()
        piece, kind = run.piece, run.piece.job.kind
        self.state.leave(run)
        self._held[kind] -= piece.devices
        self.result.restart[kind] += piece.devices * (run.works_from_s - run.started_s)
        self.result.useful[kind] += piece.devices * (piece.job.duration_s - piece.saved_s)
        end = self._ends[piece.job.name]
        end.pieces_left -= 1
        if not end.pieces_left:
            end.end_s = self.result.end_s = self.env.now
            self._progress()
        self._wake()

    def _evict(self, run: Run) -> None:
        now, piece, kind = self.env.now, run.piece, run.piece.job.kind
        kept = run.kept_s(now)
        run.process.interrupt()
        self.state.leave(run)
        self._held[kind] -= piece.devices
        self.result.restart[kind] += piece.devices * (min(now, run.works_from_s) - run.started_s)
        self.result.useful[kind] += piece.devices * (kept - piece.saved_s)
        self.result.lost[kind] += piece.devices * (run.progress_s(now) - kept)
        piece.saved_s = kept
        self._ends[piece.job.name].evictions += 1
        self.state.lane(piece).wait(piece)

    def _count_idle(self) -> None:
        """Free devices since the last change, before the next one."""
        now = self.env.now
        self.result.idle[self._idle_why] += self.state.nodes.total * (now - self._idle_since)
        self._idle_since = now

    def _why_idle(self) -> str:
        line = self.state.firm.waiting or self.state.spare.waiting
        if not line:
            return IDLE[0]
        pool = self.state.nodes if line[0].spare else self.state.firm_nodes
        return IDLE[1] if pool.total < line[0].devices else IDLE[2]

    def _note_usage(self) -> None:
        held = tuple(self._held.values())
        usage = self.result.usage
        if usage and usage[-1][0] == self.env.now:
            usage.pop()
        if not usage or usage[-1][1] != held:
            usage.append((self.env.now, held))
