"""Each policy by small examples whose outcome can be worked out by hand; placement; what an eviction costs."""

from __future__ import annotations

import pytest

from msparallel.schedule.queue.job import Cluster, Job
from msparallel.schedule.queue.measure import measure
from msparallel.schedule.queue.nodes import Nodes, best_fit
from msparallel.schedule.queue.policies import POLICIES
from msparallel.schedule.queue.replay import Replay, replay
from msparallel.schedule.queue.shares import QueueRule

pytestmark = pytest.mark.pure
ONE, TWO = Cluster(nodes=1, devices_per_node=8), Cluster(nodes=2, devices_per_node=8)


def job(name: str, submit_s: float, devices: int, duration_s: float, *, nodes: int = 1, **rest) -> Job:
    return Job(name=name, submit_s=submit_s, nodes=nodes, devices_per_node=devices // nodes, duration_s=duration_s,
               **{"line": ord(name[0]), **rest})  # fmt: skip


def starts(found: Replay) -> dict[str, float]:
    return {end.job.name: end.first_start_s for end in found.jobs}


def ends(found: Replay) -> dict[str, float]:
    return {end.job.name: end.end_s for end in found.jobs}


def run(jobs: list[Job], name: str, cluster: Cluster = ONE, **rest) -> Replay:
    return replay(jobs, cluster, POLICIES[name], **rest)


def test_fifo_blocks_behind_the_first_in_line():
    jobs = [job("a", 0, 6, 100), job("b", 1, 8, 10), job("c", 2, 2, 10)]
    assert starts(run(jobs, "fifo")) == {"a": 0, "b": 100, "c": 110}


def test_backfill_lets_pass_who_is_out_of_the_way():
    """c ends before b's turn. d would not, and b needs every device."""
    jobs = [job("a", 0, 6, 100), job("b", 1, 8, 10), job("c", 2, 2, 98), job("d", 2, 2, 99)]
    assert starts(run(jobs, "backfill")) == {"a": 0, "b": 100, "c": 2, "d": 110}


def test_backfill_lets_pass_who_leaves_room_beside_the_reservation():
    """b needs six of eight: d holds the other two for as long as it likes, e finds none left."""
    jobs = [job("a", 0, 6, 100), job("b", 1, 6, 10), job("d", 2, 1, 500), job("e", 2, 1, 500), job("f", 2, 1, 500)]
    assert starts(run(jobs, "backfill")) == {"a": 0, "b": 100, "d": 2, "e": 2, "f": 110}


def test_backfill_believes_estimates():
    """c takes 50 s, but says 200: it does not pass. a says 500 and ends at 100: b starts then all the same."""
    jobs = [job("a", 0, 6, 100, estimate_s=150), job("b", 1, 8, 10), job("c", 2, 2, 50, estimate_s=200),
            job("d", 2, 2, 50, estimate_s=140)]  # fmt: skip
    assert starts(run(jobs, "backfill")) == {"a": 0, "d": 2, "b": 100, "c": 110}


def test_priority_goes_first_and_waits_for_nobody_to_be_evicted():
    jobs = [job("a", 0, 8, 100), job("b", 1, 8, 10), job("c", 2, 8, 10, priority=5)]
    assert starts(run(jobs, "priority")) == {"a": 0, "c": 100, "b": 110}


def test_preemption_costs_the_work_since_the_last_checkpoint_and_the_restart():
    """a has 95 s done at its eviction, 90 of them in a checkpoint; it goes on at 105 with 5 s of restart, 110 s to
    go."""
    jobs = [job("a", 0, 8, 200, checkpoint_interval_s=30, restart_s=5), job("c", 95, 8, 10, priority=1)]
    found = run(jobs, "preempt")
    assert starts(found) == {"a": 0, "c": 95} and ends(found) == {"a": 220, "c": 105}
    assert found.lost["training"] == 8 * 5 and found.restart["training"] == 8 * 5
    assert found.useful["training"] == 8 * 210 and found.jobs[0].evictions == 1


def test_without_a_checkpoint_all_is_lost():
    found = run([job("a", 0, 8, 200), job("c", 95, 8, 10, priority=1)], "preempt")
    assert ends(found) == {"a": 305, "c": 105} and found.lost["training"] == 8 * 95


def test_an_eviction_during_the_restart_loses_no_work():
    """a restarts from 20 to 50 and is evicted at 30: what it saved stays saved, ten seconds of restart are gone."""
    jobs = [job("a", 0, 8, 100, checkpoint_interval_s=10, restart_s=30), job("b", 10, 8, 10, priority=1),
            job("c", 30, 8, 10, priority=1)]  # fmt: skip
    found = run(jobs, "preempt")
    assert ends(found) == {"b": 20, "c": 40, "a": 40 + 30 + 90}
    assert found.lost["training"] == 0 and found.restart["training"] == 8 * (10 + 30)


def test_victims_are_of_the_lowest_priority_then_the_cheapest():
    """Two nodes, each with a pair; d needs one node. Both b and c are priority 0: c has less to lose. a is spared for
    its priority."""
    jobs = [job("a", 0, 8, 500, priority=1), job("b", 0, 8, 500), job("d", 100, 8, 10, priority=2)]
    assert {end.job.name: end.evictions for end in run(jobs, "preempt", TWO).jobs} == {"a": 0, "b": 1, "d": 0}
    jobs = [job("b", 0, 8, 500), job("c", 0, 8, 500, checkpoint_interval_s=99), job("d", 100, 8, 10, priority=2)]
    assert {end.job.name: end.evictions for end in run(jobs, "preempt", TWO).jobs} == {"b": 0, "c": 1, "d": 0}


def test_nobody_is_evicted_for_an_equal_or_in_vain():
    equal = [job("a", 0, 8, 100, priority=1), job("b", 1, 8, 10, priority=1)]
    assert not measure(run(equal, "preempt")).evictions
    vain = [job("a", 0, 8, 100, priority=9), job("b", 0, 8, 100), job("c", 1, 16, 10, nodes=2, priority=5)]
    assert not measure(run(vain, "preempt", TWO)).evictions


def test_a_gang_is_evicted_whole():
    found = run([job("a", 0, 16, 100, nodes=2), job("b", 10, 4, 5, priority=1)], "preempt", TWO)
    assert found.lost["training"] == 16 * 10 and ends(found) == {"a": 115, "b": 15}


def test_inference_stands_by():
    """Replicas fill what a leaves, give way one by one, and come back."""
    jobs = [job("a", 0, 4, 100), job("i", 0, 4, 200, nodes=4, gang=False, kind="inference", checkpoint_interval_s=1),
            job("t", 50, 2, 50)]  # fmt: skip
    found = run(jobs, "standby")
    assert starts(found) == {"a": 0, "i": 0, "t": 50}
    assert found.jobs[1].evictions == 2 and found.lost["inference"] == 0
    assert ends(found)["i"] == 250 and ends(found)["t"] == 100
    assert found.usage[:2] == [(0, (4, 4, 0, 0)), (50, (6, 2, 0, 0))]


def test_training_that_blocks_does_not_hold_up_stand_by():
    jobs = [job("a", 0, 4, 100), job("b", 1, 8, 10), job("i", 2, 4, 500, kind="inference", checkpoint_interval_s=1)]
    found = run(jobs, "standby")
    assert starts(found) == {"a": 0, "b": 100, "i": 2} and found.jobs[2].evictions == 1


def test_stand_by_gives_way_no_further_than_needed():
    """i is the cheapest, but h has to go in any case, and its four devices suffice."""
    jobs = [job("a", 0, 3, 500), job("h", 0, 4, 500, kind="inference"), job("i", 0, 1, 500, kind="inference"),
            job("t", 50, 4, 10)]  # fmt: skip
    found = run(jobs, "standby")
    assert [(end.job.name, end.evictions) for end in found.jobs] == [("a", 0), ("h", 1), ("i", 0), ("t", 0)]


def test_stand_by_keeps_to_where_training_comes_last():
    jobs = [job("i", 0, 4, 500, kind="inference"), job("a", 1, 8, 100)]
    assert not measure(run(jobs, "standby", TWO)).evictions


def test_queues_get_their_shares_and_take_them_back():
    """y borrows all of the cluster while x is empty. x deserves half: two of y's four runs go, the cheapest, which are
    the last to start."""
    borrowed = [job(f"y{n}", n, 2, 1000, queue="y", line=n) for n in range(4)]
    back = [job("x", 100, 6, 10, queue="x", line=9)]
    found = run(borrowed + back, "reclaim", queues={"x": QueueRule(weight=3)})
    assert starts(found)["x"] == 100
    assert [end.evictions for end in found.jobs] == [0, 1, 1, 1, 0]
    halves = run(borrowed + [job("x", 100, 4, 10, queue="x", line=9)], "reclaim")
    assert [end.evictions for end in halves.jobs] == [0, 0, 1, 1, 0] and starts(halves)["x"] == 100
    kept = run(borrowed + back, "reclaim", queues={"x": QueueRule(weight=3), "y": QueueRule(reclaimable=False)})
    assert starts(kept)["x"] == 1002 and not measure(kept).evictions


def test_four_devices_do_not_straddle():
    """Two nodes with three free devices each hold no job of four; the idle time is told as scattered."""
    jobs = [job("a", 0, 5, 100), job("b", 0, 5, 100), job("c", 0, 4, 10)]
    found = run(jobs, "fifo", TWO)
    assert starts(found) == {"a": 0, "b": 0, "c": 100}
    assert found.idle == {"nobody waits": 10 * 12, "too few are free": 0, "free but scattered": 100 * 6}


def test_a_gang_needs_different_nodes():
    jobs = [job("a", 0, 5, 100), job("b", 0, 8, 10, nodes=2)]
    assert starts(run(jobs, "fifo", TWO)) == {"a": 0, "b": 100}


def test_best_fit_keeps_whole_nodes_whole():
    nodes = Nodes(3, 8)
    nodes.take((1,), 4)
    assert nodes.find((1, 2)) == (1,) and nodes.find((2, 2)) == (1, 0) and nodes.find((2, 8)) == (0, 2)
    assert nodes.find((3, 5)) is None and nodes.find((4, 1)) is None
    assert best_fit([8, 4, 8], (2, 2)) == (1, 0) and best_fit([8, 4, 8], (3, 5)) is None


def test_nodes_are_never_oversubscribed():
    nodes = Nodes(1, 8)
    nodes.take((0,), 8)
    with pytest.raises(ValueError, match="node 0"):
        nodes.take((0,), 1)
    nodes.give_back((0,), 8)
    with pytest.raises(ValueError, match="node 0"):
        nodes.give_back((0,), 1)


def test_jobs_that_end_and_come_at_one_moment_are_seen_together():
    """At 10 a ends, and b and the more urgent c come: c starts."""
    jobs = [job("a", 0, 8, 10), job("b", 10, 8, 10), job("c", 10, 8, 10, priority=1)]
    assert starts(run(jobs, "priority")) == {"a": 0, "c": 10, "b": 20}


@pytest.mark.parametrize("name", list(POLICIES))
def test_jobs_without_a_line_that_come_at_one_moment_are_told_apart(name):
    """Two jobs of one second once had one place in the line, and the wrong one left it."""
    jobs = [job("a", 0, 6, 100, line=0), job("b", 1, 8, 10, line=0), job("c", 1, 2, 10, line=0),
            job("d", 1, 2, 20, line=0, kind="inference")]  # fmt: skip
    found = run(jobs, name)
    assert sorted(ends(found)) == ["a", "b", "c", "d"] and min(ends(found).values()) > 0
    assert sum(found.useful.values()) == 600 + 80 + 20 + 40


def test_the_clock_begins_with_the_first_submission():
    found = run([job("a", 1_700_000_000, 8, 10), job("b", 1_700_000_005, 8, 10)], "fifo")
    assert starts(found) == {"a": 0, "b": 10} and found.end_s == 20
