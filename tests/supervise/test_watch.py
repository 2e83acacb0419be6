"""What agents' words add up to, without any process: hangs, silence, ill devices, disks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.recipe.schema import Supervise
from msparallel.supervise.watch import FIRST_WORD_S, SILENT_S, Watch

pytestmark = pytest.mark.pure
POLICY = Supervise(hang_timeout_s=60.0, long_timeout_s=600.0, max_temperature_c=90.0, min_free_disk_gib=2.0)


def rank(number: int, step: int = 0, phase: str = "step", state: str = "S", **more: Any) -> dict[str, Any]:
    return {"rank": number, "status": "running", "state": state, "phase": phase, "step": step, "step_s": 0.5, **more}


def ranks(*told: dict[str, Any]) -> dict[str, Any]:
    return {"event": "ranks", "ranks": list(told)}


def kinds(watch: Watch, now: float) -> list[str]:
    return [fault.kind for fault in watch.faults(now)]


def alive(watch: Watch, until: float, *told: dict[str, Any], nodes: int = 1) -> None:
    """Every node goes on saying the same."""
    for node in range(nodes):
        watch.hear(node, ranks(*told), until)


def test_a_run_that_steps_is_well():
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    for second in range(500):
        watch.hear(0, ranks(rank(0, second), rank(1, second)), float(second))
        assert watch.faults(float(second)) == []
    assert watch.step == 499


def test_no_new_step_is_a_hang_and_names_the_rank_that_is_behind():
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    watch.hear(0, ranks(rank(0, 8), rank(1, 7)), 1.0)
    alive(watch, 60.9, rank(0, 8), rank(1, 7))
    assert kinds(watch, 60.9) == []
    [fault] = watch.faults(61.1)
    assert (fault.kind, fault.rank, fault.step) == ("hang", 1, 8)
    assert "Rank 1 stands still since 60 s: step 7, phase step" in fault.text


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_rank_in_a_bad_state_is_named_before_one_that_is_behind(state):
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    told = (rank(0, 7), rank(1, 8, state=state))
    alive(watch, 1.0, *told)
    alive(watch, 61.5, *told)
    [fault] = watch.faults(61.5)
    assert (fault.kind, fault.rank) == ("hang", 1)


def test_of_equals_the_one_that_stopped_first_is_named():
    watch = Watch(POLICY, {0: "a", 1: "b"}, now=0.0)
    watch.hear(0, ranks(rank(0, 7)), 1.0)
    watch.hear(1, ranks(rank(1, 7)), 2.0)
    alive(watch, 62.5, rank(0, 7))
    watch.hear(1, ranks(rank(1, 7)), 62.5)
    [fault] = watch.faults(62.5)
    assert (fault.rank, fault.node, fault.host) == (0, 0, "a")


@pytest.mark.parametrize("phase", ["start", "compile", "evaluate", "checkpoint", "end"])
def test_what_takes_long_is_given_the_longer_time_and_the_others_wait_for_it(phase):
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    told = (rank(0, 7, phase), rank(1, 7))
    alive(watch, 1.0, *told)
    alive(watch, 600.5, *told)
    assert kinds(watch, 600.5) == []
    assert kinds(watch, 601.5) == ["hang"]


def test_a_stopped_process_has_no_excuse():
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    told = (rank(0, 0, "compile", state="T"), rank(1, 0, "compile"))
    alive(watch, 1.0, *told)
    alive(watch, 61.5, *told)
    [fault] = watch.faults(61.5)
    assert (fault.kind, fault.rank) == ("hang", 0) and "stopped (state T) for 60 s" in fault.text


def test_a_stop_that_ends_counts_from_anew():
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    watch.hear(0, ranks(rank(0, 1, state="T")), 1.0)
    watch.hear(0, ranks(rank(0, 2)), 50.0)
    watch.hear(0, ranks(rank(0, 3, state="T")), 51.0)
    alive(watch, 100.0, rank(0, 3, state="T"))
    assert kinds(watch, 100.0) == []


def test_slow_steps_are_given_ten_times_their_median():
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    for step in range(20):
        watch.hear(0, ranks(rank(0, step, step_s=30.0)), 30.0 * step)
    alive(watch, 800.0, rank(0, 19, step_s=30.0))
    assert watch.allowance_s() == 300.0 and kinds(watch, 800.0) == []
    alive(watch, 871.0, rank(0, 19, step_s=30.0))
    assert kinds(watch, 871.0) == ["hang"]


def test_the_first_step_which_compiles_is_no_measure():
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    watch.hear(0, ranks(rank(0, 0, "compile", step_s=None)), 1.0)
    watch.hear(0, ranks(rank(0, 1, step_s=500.0)), 501.0)
    assert watch.allowance_s() == 60.0


def test_a_node_that_says_nothing_is_lost_and_one_that_starts_has_longer():
    watch = Watch(POLICY, {0: "a", 1: "b"}, now=0.0)
    watch.hear(0, ranks(rank(0, 1)), 10.0)
    assert kinds(watch, 10.0 + SILENT_S) == []
    [fault] = watch.faults(10.5 + SILENT_S)
    assert (fault.kind, fault.node, fault.host) == ("node_lost", 0, "a") and "nothing for 16 s" in fault.text
    watch.hear(0, ranks(rank(0, 2)), FIRST_WORD_S)
    watch.hear(0, ranks(rank(0, 3)), FIRST_WORD_S + 1)
    [fault] = watch.faults(FIRST_WORD_S + 1)
    assert (fault.host, fault.kind) == ("b", "node_lost") and f"nothing for {FIRST_WORD_S + 1:.0f} s" in fault.text


def test_a_node_that_is_done_may_be_silent():
    watch = Watch(POLICY, {0: "a", 1: "b"}, now=0.0)
    for node in (0, 1):
        watch.hear(node, {"event": "done", "result": {}}, 5.0)
    assert kinds(watch, 10_000.0) == []


@pytest.mark.parametrize(
    "health, hot, kind",
    [
        ("OK", 89.0, None),
        ("OK", None, None),
        ("Warning", 40.0, None),
        ("UNKNOWN", 40.0, None),
        ("OK", 90.0, "device_hot"),
        ("Alarm", 40.0, "device_alarm"),
        ("CRITICAL", 95.0, "device_alarm"),
    ],
)
def test_devices(health, hot, kind):
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    devices = [{"device": "NPU 0", "health": "OK", "temperature_c": 40.0},
               {"device": "NPU 3", "health": health, "temperature_c": hot}]  # fmt: skip
    watch.hear(0, {"event": "devices", "devices": devices}, 1.0)
    found = watch.faults(1.0)
    assert [fault.kind for fault in found] == ([kind] if kind else [])
    assert all("NPU 3 of a" in fault.text for fault in found)


def test_temperature_is_not_judged_unless_asked():
    watch = Watch(Supervise(), {0: "a"}, now=0.0)
    watch.hear(0, {"event": "devices", "devices": [{"device": "x", "health": "OK", "temperature_c": 500.0}]}, 1.0)
    assert watch.faults(1.0) == []


def test_a_disk_with_little_room():
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    watch.hear(0, {"event": "disk", "path": "/data", "free_bytes": 2 * 2**30}, 1.0)
    assert watch.faults(1.0) == []
    watch.hear(0, {"event": "disk", "path": "/data", "free_bytes": 2 * 2**30 - 1}, 2.0)
    [fault] = watch.faults(2.0)
    assert fault.kind == "disk_full" and "min_free_disk_gib is 2" in fault.text


_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5)
_RANKS = st.lists(
    st.dictionaries(st.sampled_from(["rank", "status", "state", "phase", "step", "step_s", "loss"]), _VALUES) | _VALUES,
    max_size=3,
)
_EVENTS = st.dictionaries(
    st.sampled_from(["event", "ranks", "devices", "path", "free_bytes", "result"]),
    st.sampled_from(["ranks", "devices", "disk", "done", "started"]) | _RANKS | _VALUES,
)


def any_words_do_no_harm(events: list[dict[str, Any]]) -> None:
    watch = Watch(POLICY, {0: "a"}, now=0.0)
    for second, event in enumerate(events):
        watch.hear(0, event, float(second))
        for fault in watch.faults(second + 1000.0):
            assert fault.kind and fault.text
        watch.place(0)


@settings(max_examples=150, deadline=None)
@given(st.lists(_EVENTS, max_size=6))
def test_any_words_do_no_harm(events):
    any_words_do_no_harm(events)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(st.lists(_EVENTS, max_size=12))
def test_many_words_do_no_harm(events):
    any_words_do_no_harm(events)
