"""Rules of the pre-flight, each broken by one fact; and what a node sends, checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.cli.launch_text import table_text
from msparallel.cluster.hosts import parse_hosts
from msparallel.devices.npu_smi import EXAMPLE, parse_info
from msparallel.errors import UserError
from msparallel.launch import preflight_devices
from msparallel.launch.hosts import lay_out
from msparallel.launch.preflight_ask import Answer
from msparallel.launch.preflight_devices import devices_here, memory_available_bytes, told_of
from msparallel.launch.preflight_facts import Facts, Request, facts_from, request_from
from msparallel.launch.preflight_needs import Needs, needs_of
from msparallel.launch.preflight_rules import GIB, Job, check
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
SHA = "a" * 64
FACTS = Facts(
    msparallel="0.1.0", source="0123456789ab", python="3.11.7", mindspore="2.9.0", host_name="a", recipe_sha256=SHA,
    output_dir="/job/output", marker=True, free_bytes=100 * GIB, corpus="c0", addresses=("192.0.2.1",), has_master=True,
    devices="8 x 910B2", memory_bytes=64 * GIB, cores=192, cann="/usr/local/Ascend", time=1.0,
)  # fmt: skip
REQUEST = Request(recipe="r", overrides=("a.b=1",), node_rank=0, nodes=2, master_addr="a", master_port=1, token="ab1")


def job(needs_cann: bool = True) -> Job:
    plan = resolve(load_recipe("gpt_tiny_dp2_cpu", ["cluster.nodes=2", "cluster.devices_per_node=1"]))
    layout = lay_out(plan, parse_hosts("a 192.0.2.1\nb 192.0.2.2\n", "hosts.txt"), "hosts.txt")
    return Job(layout=layout, recipe="my.yaml", recipe_sha256=SHA, msparallel="0.1.0", source="0123456789ab",
               needs=Needs(checkpoint_bytes=10 * GIB, checkpoints=3, memory_bytes=8 * GIB),
               needs_cann=needs_cann)  # fmt: skip


def answers(first: dict | None = None, second: dict | None = None, clock_s: float = 0.0) -> list[Answer]:
    hosts = job().layout.nodes
    facts = [
        replace(FACTS, **(first or {})),
        replace(FACTS, **{"host_name": "b", "has_master": False, **(second or {})}),
    ]
    return [Answer(host=hosts[0], node_rank=0, facts=facts[0]),
            Answer(host=hosts[1], node_rank=1, facts=facts[1], clock_s=clock_s)]  # fmt: skip


def test_nodes_that_are_alike_are_ready():
    checked = check(answers(), job())
    assert checked.problems == [] and checked.warnings == []


CASES = [
    ({}, {"msparallel": "0.2.0"}, "b", "msparallel", "0.1.0 (0123456789ab)"),
    ({}, {"source": "ba9876543210"}, "b", "msparallel", "digest of its files"),
    ({}, {"mindspore": "2.10.0"}, "b", "mindspore", "node 0's 2.9.0"),
    ({"mindspore": ""}, {}, "a", "mindspore", "not installed"),
    ({}, {"python": "3.10.2"}, "b", "python", "node 0's 3.11.7"),
    ({}, {"recipe_sha256": "b" * 64}, "b", "recipe", "another content"),
    ({}, {"recipe_sha256": "", "recipe_problem": "no such file"}, "b", "recipe", "no such file"),
    ({"recipe_problem": "needs 8 devices"}, {}, "a", "recipe", "needs 8 devices"),
    ({}, {"corpus": "c1"}, "b", "corpus", "different text"),
    ({}, {"corpus_problem": "No such file: /data/x"}, "b", "corpus", "/data/x"),
    ({}, {"marker": False}, "b", "output_dir", "is not seen"),
    ({}, {"output_problem": "it cannot be written: Read-only file system"}, "b", "output_dir", "Read-only"),
    ({"held": ("node rank 0 (pid 7)",)}, {}, "a", "run", "goes on in train.output_dir: node rank 0 (pid 7)"),
    ({"free_bytes": 9 * GIB}, {}, "a", "disk", "10.0 GiB"),
    ({"addresses": ("127.0.1.1",)}, {}, "a", "master", "/etc/hosts"),
    ({"addresses": ("2001:db8::1",)}, {"addresses": ("2001:db8::1",)}, "a", "master", "MS_WORKER_IP"),
    ({"has_master": False}, {}, "a", "master", "no address of this node"),
    (
        {"master_problem": "the scheduler cannot listen"},
        {"master_problem": "refused"},
        "a",
        "port",
        "--master-port 8119",
    ),
    ({}, {"has_master": True}, "b", "master", "second scheduler"),
    ({}, {"addresses": ("192.0.2.9",)}, "b", "master", "means 192.0.2.9 here and 192.0.2.1 on node 0"),
    ({}, {"master_problem": "no answer"}, "b", "connect", "firewalls"),
    ({}, {"devices_problem": "NPU 0 is CRITICAL"}, "b", "devices", "NPU 0 is CRITICAL"),
    ({}, {"memory_bytes": 7 * GIB}, "b", "memory", "8.0 GiB"),
    ({}, {"host_name": "a"}, "b", "host_name", "a has this host name too"),
]


@pytest.mark.parametrize("first, second, node, rule, said", CASES)
def test_each_rule(first, second, node, rule, said):
    found = answers(first, second)
    (problem,) = check(found, job()).problems
    assert (problem.key, problem.rule) == (node, f"preflight_{rule}") and said in problem.message
    assert (problem.file, problem.line) == ("hosts.txt", 1 if node == "a" else 2)
    marked = [line for line in table_text(job().layout, found, check(found, job()), 200).splitlines() if " !" in line]
    assert len(marked) == 1 and marked[0].startswith(f"  {node} ") and marked[0].count("!") == 1


@pytest.mark.parametrize("field", ["devices_problem", "output_problem", "master_problem"])
def test_what_a_node_says_ends_with_one_full_stop(field):
    for words in ("it hangs", "it hangs."):
        (problem,) = check(answers({field: words}), job()).problems
        assert "it hangs." in problem.message and ".." not in problem.message


def test_a_master_without_an_address_breaks_nothing():
    """Found by fuzzing: a node that has the master's address and names none."""
    assert check(answers({}, {"has_master": True, "addresses": ()}), job()).problems == []


def test_every_problem_is_told_at_once():
    first, second = {}, {}
    for one, other, _, rule, _ in CASES:
        if rule in ("mindspore", "python", "corpus", "memory", "devices", "host_name"):
            first |= one
            second |= other
    second = {**second, "corpus_problem": "", "mindspore": "2.10.0"}
    first = {**first, "mindspore": "2.9.0"}
    rules = {problem.rule.removeprefix("preflight_") for problem in check(answers(first, second), job()).problems}
    assert rules == {"mindspore", "python", "corpus", "memory", "devices", "host_name"}


def test_a_processor_needs_no_cann_and_a_node_without_an_answer_breaks_one_rule():
    assert check(answers({"cann": ""}, {"cann": ""}), job(needs_cann=False)).warnings == []
    found = [answers()[0], Answer(host=job().layout.nodes[1], node_rank=1, failure="Connection refused")]
    (problem,) = check(found, job()).problems
    assert problem.rule == "preflight_reach" and "Connection refused" in problem.message
    found = [Answer(host=job().layout.nodes[0], node_rank=0, failure="x"), answers()[1]]
    assert [problem.key for problem in check(found, job()).problems] == ["a"]


def test_a_container_with_devices_and_without_npu_smi(monkeypatch):
    plan = resolve(load_recipe("llama2_7b_dp2_tp2_pp2"))
    monkeypatch.setattr(preflight_devices, "find_tool", lambda names: None)
    monkeypatch.setattr(preflight_devices, "ascend_devices", lambda: 8)
    assert devices_here(plan) == ("8, no npu-smi", "")
    monkeypatch.setattr(preflight_devices, "ascend_devices", lambda: 4)
    assert devices_here(plan)[0] == "none" and "npu-smi is not on PATH" in devices_here(plan)[1]


def test_what_is_odd_is_no_reason_to_stop():
    (warning,) = check(answers({}, {"cann": ""}), job()).warnings
    assert (warning.key, warning.rule) == ("b", "preflight_cann") and "set_env.sh" in warning.message
    checked = check(answers({"free_bytes": 20 * GIB}, clock_s=-42.0), job())
    assert checked.problems == []
    assert [(one.key, one.rule) for one in checked.warnings] == [("a", "preflight_disk"), ("b", "preflight_clock")]
    assert "30.0 GiB" in checked.warnings[0].message and checked.warnings[1].value == "-42 s"


def test_devices_of_a_table():
    table = parse_info(EXAMPLE, "x")
    assert told_of(table, 1) == ("1 x 910B2", "NPU 0: python3.11 (pid 4711, 28,170 MiB) holds it")
    assert told_of(table, 2)[1] == "2 devices are needed and 1 can be seen"
    idle = parse_info(EXAMPLE.replace("| 0       0                 | 4711          | python3.11               | 28170",
                                      "| No running processes found in NPU 0 "), "x")  # fmt: skip
    assert told_of(idle, 1) == ("1 x 910B2", "")
    sick = parse_info(EXAMPLE.replace("| OK            |", "| Critical      |"), "x")
    assert told_of(sick, 1)[1].startswith("NPU 0 is Critical; NPU 0: python3.11")
    cut = parse_info("\n".join(EXAMPLE.splitlines()[:5]), "x")
    assert told_of(cut, 1) == ("1 x 910B2, processes not told", "")
    assert "ASCEND_RT_VISIBLE_DEVICES is '0, 1'" in told_of(table, 1, "0, 1")[1]
    assert told_of(table, 1, "5")[1] == "1 devices are needed and 0 can be seen"


def test_visible_devices_are_the_ones_that_are_looked_at(shared):
    text = (shared / "data/samples/npu_smi/info_26.0.rc2_a3_partial_with_process_container_pid.txt").read_text()
    table = parse_info(text, "x")
    assert "NPU 0 chip 0: python3.1 (pid 632268, 197 MiB) holds it" in told_of(table, 2)[1]
    assert told_of(table, 2, "1,2")[1] == ""


def test_memory_of_the_host_or_of_its_container(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:    2048 kB\n")
    assert memory_available_bytes(tmp_path, tmp_path) == 2 * 2**20
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_available_bytes(tmp_path, tmp_path) == 2 * 2**20
    (tmp_path / "memory.max").write_text("1500000\n")
    assert memory_available_bytes(tmp_path, tmp_path) == 500_000
    assert memory_available_bytes(tmp_path / "none", tmp_path) is None


def test_what_a_checkpoint_takes():
    """The 7B: one copy of weights (2 bytes) and optimizer state (two moments and a master copy, 4 each) per rank of a
    stage that holds it; every rank writes its slices."""
    plan = resolve(load_recipe("llama2_7b_dp2_tp2_pp2"))
    needs = needs_of(plan)
    copies = 2 * 6_738_415_616
    assert needs.memory_bytes == 0 and needs.checkpoints == 3
    assert needs.checkpoint_bytes == pytest.approx(copies * needs_bytes(plan), rel=0.01)
    tiny = needs_of(resolve(load_recipe("gpt_tiny_dp2_cpu")))
    assert tiny.memory_bytes == 2 * 16 * tiny.checkpoint_bytes // 12


def needs_bytes(plan) -> float:
    from msparallel.planner.state import stage_states
    from msparallel.planner.workload import workload_of

    states = stage_states(workload_of(plan))
    per_rank = sum(state.weights_bytes + state.optimizer_bytes for state in states)
    return per_rank / sum(state.parameters for state in states)


def test_facts_and_requests_come_back_as_they_went():
    assert facts_from(json.loads(json.dumps(FACTS.to_json()))) == FACTS
    assert request_from(REQUEST.to_json()) == REQUEST


@pytest.mark.parametrize("name, value", [
    ("format", 2), ("format", None), ("python", 3), ("marker", 1), ("free_bytes", "9"), ("free_bytes", True),
    ("addresses", ["a", 1]), ("addresses", "a"), ("time", "now"), ("cores", 1.5), ("more", 1),
])  # fmt: skip
def test_facts_of_another_shape_are_refused(name, value):
    with pytest.raises(ValueError):
        facts_from({**FACTS.to_json(), name: value})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
CHANGES = st.dictionaries(st.sampled_from(sorted(FACTS.to_json())) | st.text(max_size=4), JSON, max_size=3)
REQUESTS = st.dictionaries(
    st.sampled_from(sorted(json.loads(REQUEST.to_json()))) | st.text(max_size=4), JSON, max_size=3
)


def fuzz(changes, wrong, text):
    try:
        facts = facts_from({**FACTS.to_json(), **changes})
    except ValueError:
        pass
    else:
        found = answers()
        found[1] = replace(found[1], facts=facts)
        checked = check(found, job())
        assert all(str(problem) for problem in checked.problems)
        assert table_text(job().layout, found, checked, 100).count("\n") >= 3
    for candidate in (json.dumps({**json.loads(REQUEST.to_json()), **wrong}), text):
        try:
            assert isinstance(request_from(candidate), Request)
        except UserError as error:
            assert "request" in str(error) or "token" in str(error)


@given(CHANGES, REQUESTS, st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_answer_and_request_is_taken_or_refused(changes, wrong, text):
    fuzz(changes, wrong, text)


@pytest.mark.slow
@given(CHANGES, REQUESTS, st.text(max_size=40))
@settings(max_examples=2000, deadline=None)
def test_any_answer_and_request_is_taken_or_refused_2000(changes, wrong, text):
    fuzz(changes, wrong, text)


@pytest.mark.parametrize(("moment", "clock_s"), [(100.0, 0.0), (103.5, 0.0), (110.0, 0.0), (97.0, -3.0), (170.0, 60.0)])
def test_a_clock_is_off_only_where_no_delay_explains_it(moment, clock_s):
    """Asked at 100, read at 110: a time between may have been written at any moment between."""
    from msparallel.launch.preflight_ask import _beyond

    assert _beyond(moment, 100.0, 110.0) == clock_s
