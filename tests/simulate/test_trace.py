"""The trace that viewers open, and memory over time."""

from __future__ import annotations

import json

import pytest
from handmade import micro_batches
from handmade_steps import FixedCost, StepLines

from msparallel.compile.expand import expand
from msparallel.compile.graph import TensorType
from msparallel.compile.order import live_bytes
from msparallel.mesh import Mesh
from msparallel.simulate.memory import memory_over_time
from msparallel.simulate.timeline import Timeline, simulate_step
from msparallel.simulate.trace import trace_events, write_trace

pytestmark = pytest.mark.pure
MESH = Mesh(pp=2, tp=2)


def pipeline() -> Timeline:
    """Two stages of two ranks: two micro-batches are handed on, and summed over tp."""
    steps = []
    for rank in range(4):
        lines = StepLines()
        group = MESH.group_of(rank, "tp")
        for number in range(2):
            if rank < 2:
                made = lines.op("MatMul", micro=number)
                lines.send(made, rank + 2, micro=number, sr_tag=number)
            else:
                made = lines.op("MatMul", lines.receive(rank - 2, micro=number, sr_tag=number), micro=number)
            lines.all_reduce(made, group)
        steps.append(lines.execution())
    cost = FixedCost(MatMul=2e-3, Send=1e-3, Receive=1e-3, AllReduce=5e-4)
    return simulate_step({rank: [(step, 1)] for rank, step in enumerate(steps)}, mesh=MESH, cost=cost)


def written(tmp_path, timeline: Timeline, memory=()) -> list[dict]:
    write_trace(tmp_path / "step.json", timeline, memory)
    return json.loads((tmp_path / "step.json").read_text())["traceEvents"]


def of(events: list[dict], phase: str) -> list[dict]:
    return [event for event in events if event["ph"] == phase]


def test_every_rank_is_a_process_named_by_its_place(tmp_path):
    events = written(tmp_path, pipeline())
    names = {e["pid"]: e["args"]["name"] for e in of(events, "M") if e["name"] == "process_name"}
    assert names == {0: "rank 0 (pp0 tp0)", 1: "rank 1 (pp0 tp1)", 2: "rank 2 (pp1 tp0)", 3: "rank 3 (pp1 tp1)"}
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(events, "M") if e["name"] == "thread_name"}
    assert len(rows) == 12 and [rows[3, row] for row in (1, 2, 3)] == ["compute", "collective", "pipeline"]


def test_every_span_is_an_event_with_what_it_does(tmp_path):
    timeline = pipeline()
    events = of(written(tmp_path, timeline), "X")
    assert len(events) == len(timeline.spans) == 4 * 2 * 3
    for event, span in zip(events, timeline.spans, strict=True):
        assert event["name"] == span.op and event["pid"] == span.rank and event["cat"] == span.stream
        assert event["ts"] == pytest.approx(span.start_s * 1e6)
        assert event["ts"] + event["dur"] == pytest.approx(span.end_s * 1e6)
    sums = [event["args"] for event in events if event["name"] == "AllReduce"]
    assert sums[-1] == {"cell": "net.layers.0", "bytes": 1024, "ranks": [2, 3], "axes": "tp"}
    products = [event["args"] for event in events if event["name"] == "MatMul" and event["pid"] == 0]
    assert [arguments["micro_batch"] for arguments in products] == [0, 1]


def test_arrows_lead_from_each_send_to_its_receive(tmp_path):
    events = written(tmp_path, pipeline())
    starts, ends = ({event["id"]: event for event in of(events, phase)} for phase in "sf")
    assert starts.keys() == ends.keys() and len(starts) == 4
    slices = [event for event in of(events, "X") if event["cat"] == "pipeline"]
    for identity, start in starts.items():
        end = ends[identity]
        assert (start["pid"], end["pid"]) in ((0, 2), (1, 3)) and start["ts"] <= end["ts"] and end["bp"] == "e"
        for arrow, op in ((start, "Send"), (end, "Receive")):
            # An arrow holds to the event of its row that is around its time.
            around = [e for e in slices if e["pid"] == arrow["pid"] and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]]
            assert [e["name"] for e in around] == [op] and around[0]["tid"] == arrow["tid"]


def test_a_transfer_to_a_rank_that_is_not_there_has_no_arrow():
    lines = StepLines()
    lines.send(lines.op("Exp"), 1)
    timeline = simulate_step({0: [(lines.execution(), 1)]}, mesh=Mesh(pp=2), cost=FixedCost(Exp=1, Send=1))
    assert not [event for event in trace_events(timeline) if event["ph"] in "sf"]


def test_memory_is_a_counter_with_a_name_at_its_peak(tmp_path):
    execution = expand(micro_batches(tmp_path, calls=2))
    cost = FixedCost(MatMul=1, AllReduce=2, ReLU=1, Add=1)
    timeline = simulate_step({0: [(execution, 1)]}, mesh=Mesh(dp=2), cost=cost)
    curve = memory_over_time([(execution, 1)], timeline, rank=0)
    events = written(tmp_path, timeline, [curve])
    counters = of(events, "C")
    assert [e["args"]["GiB"] * 2**30 for e in counters] == [bytes_ for _, bytes_ in curve.points]
    (peak,) = of(events, "i")
    assert peak["args"]["bytes"] == live_bytes(execution).bytes == curve.peak_bytes
    assert peak["ts"] == curve.peak_s * 1e6 and "Float32" in peak["args"]["largest"][0]


def test_memory_over_time_by_hand():
    """Two of 1024 bytes at once: a value and what is made of it. The sum's memory shows where the next begins."""
    lines = StepLines()
    made = lines.op("Exp")
    summed = lines.all_reduce(made, [0, 1], after=[lines.op("Cos")])
    lines.op("Neg", summed, made, type=TensorType("Float32", (1,)))
    graphs = [(lines.execution(), 1)]
    timeline = simulate_step({0: graphs}, mesh=Mesh(dp=2), cost=FixedCost(Exp=1, Cos=2, AllReduce=3, Neg=1))
    curve = memory_over_time(graphs, timeline, rank=0)
    assert curve.points == ((0.0, 1024), (1.0, 2048), (6.0, 2052), (7.0, 0))
    assert (curve.peak_bytes, curve.peak_s) == (2052, 6.0)


def test_memory_of_graphs_that_run_several_times():
    accumulate, update = StepLines(), StepLines()
    accumulate.op("Neg", accumulate.op("Exp"))
    update.op("Sin", type=TensorType("Float32", (1024,)))
    graphs = [(accumulate.execution(), 2), (update.execution(), 1)]
    timeline = simulate_step({0: graphs}, mesh=Mesh(), cost=FixedCost(Exp=1, Neg=1, Sin=1))
    curve = memory_over_time(graphs, timeline, rank=0)
    assert curve.points == ((0.0, 1024), (1.0, 2048), (2.0, 1024), (3.0, 2048), (4.0, 4096), (5.0, 0))
    assert curve.peak.tensors[0].op == "Sin"


def test_a_step_without_operators_has_a_trace(tmp_path):
    timeline = simulate_step({0: [(StepLines().execution(), 1)]}, mesh=Mesh(), cost=FixedCost())
    assert len(written(tmp_path, timeline)) == 8
