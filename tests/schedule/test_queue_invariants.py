"""What holds for any jobs, any cluster and every policy."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.schedule.queue.job import KINDS, Cluster, Job
from msparallel.schedule.queue.policies import POLICIES
from msparallel.schedule.queue.replay import Replay, replay
from msparallel.schedule.queue.reservation import reservation
from msparallel.schedule.queue.shares import QueueRule, deserved
from msparallel.schedule.queue.state import Decision, Piece, State

pytestmark = pytest.mark.pure
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
FEW, MANY = settings(max_examples=120, **QUIET), settings(max_examples=2000, **QUIET)


@st.composite
def job(draw, cluster: Cluster, line: int) -> Job:
    """Whole seconds, so that sums are exact."""
    duration = draw(st.integers(1, 40))
    gang = draw(st.booleans())
    return Job(
        name=f"j{line}", line=line, submit_s=draw(st.integers(0, 60)), duration_s=duration, gang=gang,
        nodes=draw(st.integers(1, cluster.nodes if gang else cluster.nodes + 2)),
        devices_per_node=draw(st.integers(1, cluster.devices_per_node)),
        kind=draw(st.sampled_from(KINDS)), priority=draw(st.integers(0, 3)), queue=draw(st.sampled_from("abc")),
        checkpoint_interval_s=draw(st.none() | st.integers(1, 10)), restart_s=draw(st.integers(0, 5)),
        estimate_s=draw(st.none() | st.integers(duration, 3 * duration)),
    )  # fmt: skip


@st.composite
def workload(draw) -> tuple[list[Job], Cluster]:
    cluster = Cluster(nodes=draw(st.integers(1, 4)), devices_per_node=draw(st.integers(1, 8)))
    return [draw(job(cluster, line)) for line in range(draw(st.integers(1, 14)))], cluster


WORK = workload()
RULE = st.builds(QueueRule, weight=st.integers(1, 5), reclaimable=st.booleans())
RULES = st.dictionaries(st.sampled_from("abc"), RULE)
NAMES = st.sampled_from(list(POLICIES))


def check_devices(state: State, decision: Decision | None) -> None:
    """No node is promised twice; what is counted as free is free."""
    runs = [*state.firm.running, *state.spare.running]
    for run in runs:
        assert len(set(run.nodes)) == run.piece.shape[0]
    for node in range(state.cluster.nodes):
        held = sum(run.piece.shape[1] for run in runs if node in run.nodes)
        assert held + state.nodes.free[node] == state.cluster.devices_per_node
        assert state.nodes.free[node] >= 0


def goes_well(jobs: list[Job], cluster: Cluster, name: str, rules: dict[str, QueueRule]) -> None:
    found = replay(jobs, cluster, POLICIES[name], queues=rules, watch=check_devices)
    first = min(job.submit_s for job in jobs)
    assert sorted(end.job.name for end in found.jobs) == sorted(job.name for job in jobs)
    for end in found.jobs:
        assert end.submit_s == end.job.submit_s - first <= end.first_start_s
        assert end.end_s >= end.first_start_s + end.job.duration_s
        if end.job.gang and not end.evictions:
            assert end.end_s == end.first_start_s + end.job.duration_s
    check_account(found, jobs)
    shuffled = list(jobs)
    random.Random(0).shuffle(shuffled)
    assert replay(shuffled, cluster, POLICIES[name], queues=rules) == found


def check_account(found: Replay, jobs: list[Job]) -> None:
    """Every device-second of the window is accounted for, once."""
    parts = [*found.useful.values(), *found.lost.values(), *found.restart.values(), *found.idle.values()]
    assert min(parts) >= 0
    capacity = found.cluster.devices * found.end_s
    assert sum(parts) == capacity
    for kind in KINDS:
        assert found.useful[kind] == sum(job.devices * job.duration_s for job in jobs if job.kind == kind)
    if not sum(end.evictions for end in found.jobs):
        assert not any(found.lost.values()) and not any(found.restart.values())
    ends = [moment for moment, _ in found.usage[1:]] + [found.end_s]
    held = sum(sum(devices) * (end - start) for (start, devices), end in zip(found.usage, ends, strict=True))
    assert held == capacity - sum(found.idle.values())
    assert max(sum(devices) for _, devices in found.usage) <= found.cluster.devices
    assert found.usage[-1] == (found.end_s, (0,) * len(KINDS))


@FEW
@given(WORK, NAMES, RULES)
def test_any_workload(work, name, rules):
    goes_well(*work, name, rules)


@pytest.mark.slow
@MANY
@given(WORK, NAMES, RULES)
def test_any_workload_for_long(work, name, rules):
    goes_well(*work, name, rules)


@FEW
@given(WORK)
def test_fifo_starts_in_order_and_nobody_waits_who_could_be_first(work):
    started: list[Piece] = []

    def watch(state: State, decision: Decision | None) -> None:
        if decision is not None:
            started.append(decision.piece)
            assert not decision.evict
        elif state.firm.waiting:
            assert state.nodes.find(state.firm.waiting[0].shape) is None

    found = replay(*work, POLICIES["fifo"], watch=watch)
    assert [piece.key for piece in started] == sorted(piece.key for piece in started)
    moments = [end.first_start_s for end in found.jobs]  # jobs are in the order of submission
    assert moments == sorted(moments)


def check_reservations(work: tuple[list[Job], Cluster], name: str) -> None:
    """Whoever is first in line starts no later than it was ever told, as long as nobody more urgent comes."""
    promised: dict[Piece, float] = {}

    def watch(state: State, decision: Decision | None) -> None:
        if decision is not None:
            if decision.piece in promised:
                assert state.now <= promised[decision.piece]
            for piece in [piece for piece in promised if decision.piece.key < piece.key and not decision.piece.spare]:
                del promised[piece]  # a more urgent job has come, and starts before it
            return
        first = state.firm.waiting[0] if state.firm.waiting else None
        for piece in [piece for piece in promised if piece is not first]:
            del promised[piece]  # it runs, or somebody more urgent is first now
        if first is not None:
            held = reservation(state, first)
            assert held.at_s > state.now
            promised[first] = min(held.at_s, promised.get(first, held.at_s))
            assert held.at_s <= promised[first]

    replay(*work, POLICIES[name], watch=watch)


@FEW
@given(WORK, st.sampled_from(["backfill", "priority", "standby"]))
def test_backfilling_never_delays_the_first_in_line(work, name):
    check_reservations(work, name)


@pytest.mark.slow
@MANY
@given(WORK, st.sampled_from(["backfill", "priority", "standby"]))
def test_backfilling_never_delays_the_first_in_line_for_long(work, name):
    check_reservations(work, name)


@FEW
@given(WORK)
def test_backfill_leaves_nobody_waiting_who_could_start_and_end_before_the_first_in_line(work):
    def watch(state: State, decision: Decision | None) -> None:
        if decision is None and len(state.firm.waiting) > 1:
            held = reservation(state, state.firm.waiting[0])
            for piece in state.firm.waiting[1:]:
                fits = state.nodes.find(piece.shape) is not None
                assert not (fits and state.limit_s(piece) <= held.at_s)

    replay(*work, POLICIES["backfill"], watch=watch)


@FEW
@given(WORK)
def test_preempt_takes_only_lower_priorities_no_more_than_needed_and_leaves_no_inversion_at_the_head(work):
    def watch(state: State, decision: Decision | None) -> None:
        if decision is not None:
            piece = decision.piece
            assert all(run.piece.job.priority < piece.job.priority for run in decision.evict)
            for spared in decision.evict:  # without this one there is no room
                freed = [run for run in decision.evict if run is not spared]
                assert roomy(state, piece, freed) < piece.shape[0]
        elif state.firm.waiting:
            first = state.firm.waiting[0]
            lower = [run for run in state.firm.running if run.piece.job.priority < first.job.priority]
            assert roomy(state, first, lower) < first.shape[0]

    replay(*work, POLICIES["preempt"], watch=watch)


def roomy(state: State, piece: Piece, freed: list) -> int:
    """Nodes with room for the piece's share if these runs were gone."""
    return sum(room(state, node, freed) >= piece.shape[1] for node in range(state.cluster.nodes))


def room(state: State, node: int, freed: list) -> int:
    """Free devices of a node if these runs were gone."""
    return state.nodes.free[node] + sum(run.piece.shape[1] for run in freed if node in run.nodes)


@FEW
@given(WORK)
def test_priority_lets_nobody_start_over_a_more_urgent_job_that_has_room(work):
    def watch(state: State, decision: Decision | None) -> None:
        if decision is not None:
            before = [piece for piece in state.firm.waiting if piece.job.priority > decision.piece.job.priority]
            assert not before or state.nodes.find(before[0].shape) is None

    replay(*work, POLICIES["priority"], watch=watch)


@FEW
@given(WORK)
def test_standing_by_costs_the_others_nothing(work):
    """Their moments are those of a cluster without inference; what gives way is inference alone."""
    jobs, cluster = work

    def watch(state: State, decision: Decision | None) -> None:
        if decision is not None:
            assert all(run.piece.spare for run in decision.evict)
            assert not (decision.evict and decision.piece.spare)
            for spared in decision.evict:  # without this one some node is short
                freed = [run for run in decision.evict if run is not spared]
                assert min(room(state, node, freed) for node in decision.nodes) < decision.piece.shape[1]
        else:
            for piece in state.spare.waiting:
                assert state.nodes.find(piece.shape) is None

    found = replay(jobs, cluster, POLICIES["standby"], watch=watch)
    firm = [job for job in jobs if job.kind != "inference"]
    alone = replay(firm, cluster, POLICIES["priority"])

    def moments(result: Replay) -> dict[str, tuple[float, float]]:
        return {end.job.name: (end.wait_s, end.end_s - end.submit_s) for end in result.jobs if end.job in firm}

    assert moments(found) == moments(alone)
    assert not any(end.evictions for end in found.jobs if end.job in firm)


@FEW
@given(WORK, RULES)
def test_reclaim_takes_what_is_beyond_the_deserved_and_from_reclaimable_queues_alone(work, rules):
    def watch(state: State, decision: Decision | None) -> None:
        if decision is None or not decision.evict:
            return
        runs, queues = state.firm.running, "abc"
        held = {queue: sum(run.piece.devices for run in runs if run.piece.job.queue == queue) for queue in queues}
        waiting = {queue: sum(piece.devices for piece in state.firm.waiting if piece.job.queue == queue)
                   for queue in queues}  # fmt: skip
        weights = {queue: rules.get(queue, QueueRule()).weight for queue in queues}
        due = deserved(weights, {queue: held[queue] + waiting[queue] for queue in queues}, state.cluster.devices)
        owner = decision.piece.job.queue
        assert held[owner] < due[owner]
        for run in decision.evict:
            assert run.piece.job.queue != owner and rules.get(run.piece.job.queue, QueueRule()).reclaimable
            held[run.piece.job.queue] -= run.piece.devices
        assert all(held[run.piece.job.queue] >= due[run.piece.job.queue] - 1e-6 for run in decision.evict)

    replay(*work, POLICIES["reclaim"], queues=rules, watch=watch)


@FEW
@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 9), st.integers(0, 99))), st.integers(1, 99))
def test_deserved_is_all_there_is_or_all_that_is_asked_for(queues, devices):
    weights = {queue: weight for queue, (weight, _) in queues.items()}
    asked = {queue: count for queue, (_, count) in queues.items()}
    due = deserved(weights, asked, devices)
    assert sum(due.values()) == pytest.approx(min(devices, sum(asked.values())))
    for queue in queues:
        assert 0 <= due[queue] <= asked[queue] + 1e-9
        share = devices * weights[queue] / sum(weights.values())
        assert due[queue] >= min(asked[queue], share) - 1e-6
