"""A step by events: order, overlap, waiting, pipelines, what cannot go on."""

from __future__ import annotations

import pytest
from handmade import micro_batches
from handmade_steps import FLOATS, FixedCost, StepLines
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.compile.expand import Execution, expand, leaves
from msparallel.compile.graph import TensorType
from msparallel.hardware import load_hardware
from msparallel.mesh import Mesh
from msparallel.simulate.cluster import Deadlock
from msparallel.simulate.cost import Cost, DeviceCost
from msparallel.simulate.timeline import Timeline, simulate_step

pytestmark = pytest.mark.pure


def walk(
    *steps: StepLines | Execution, mesh: Mesh | None = None, cost: Cost | None = None, **seconds: float
) -> Timeline:
    """Rank by rank one graph each; seconds by primitive."""
    executions = [step.execution() if isinstance(step, StepLines) else step for step in steps]
    programs = {rank: [(execution, 1)] for rank, execution in enumerate(executions)}
    return simulate_step(programs, mesh=mesh or Mesh(dp=len(steps)), cost=cost or FixedCost(**seconds))


def when(timeline: Timeline, op: str, rank: int = 0) -> list[tuple[float, float]]:
    return [(span.start_s, span.end_s) for span in timeline.spans if span.op == op and span.rank == rank]


# Streams


def test_operators_of_a_stream_run_one_after_the_other():
    step = StepLines()
    step.op("Exp"), step.op("Exp"), step.op("Neg", 0)
    timeline = walk(step, Exp=2, Neg=3)
    assert timeline.step_time_s == 7 and timeline.ranks[0].busy_s == 7 and timeline.ranks[0].bubble == 0
    # MindSpore's order: what reads the first comes before the second.
    assert when(timeline, "Exp") == [(0, 2), (5, 7)] and when(timeline, "Neg") == [(2, 5)]


def test_a_collective_runs_beside_what_does_not_wait_for_it():
    def step() -> StepLines:
        lines = StepLines()
        made = lines.op("Exp")
        lines.op("Neg", lines.all_reduce(made, [0, 1]), after=[lines.op("Sin", made)])
        return lines

    timeline = walk(step(), step(), Exp=1, Sin=5, AllReduce=4, Neg=1)
    assert when(timeline, "AllReduce") == [(1, 5)] and when(timeline, "Sin") == [(1, 6)]
    assert timeline.step_time_s == 7 and timeline.exposed_s == {}
    longer = walk(step(), step(), Exp=1, Sin=5, AllReduce=8, Neg=1)
    assert longer.step_time_s == 10 and longer.exposed_s == {("dp",): 3}
    assert longer.ranks[0].bubble_s == 0 and longer.links[0].busy_s == 8


def test_a_view_holds_no_stream():
    """The compute stream does not stand still for a reshape of what a collective gives."""
    lines = StepLines()
    made = lines.op("Exp")
    view = lines.op("Reshape", lines.all_reduce(made, [0]))
    lines.op("Neg", view, after=[lines.op("Sin", made)])
    timeline = walk(lines, Exp=1, AllReduce=6, Sin=5, Neg=1)
    assert when(timeline, "Sin") == [(1, 6)] and when(timeline, "Neg") == [(7, 8)]
    assert not when(timeline, "Reshape")


def test_a_call_waits_for_its_arguments_as_a_whole(tmp_path):
    """Its product could begin beside the all-reduce before it, but a call waits for arguments that it reads late."""
    timeline = walk(expand(micro_batches(tmp_path, calls=3)), mesh=Mesh(dp=2), MatMul=2, AllReduce=5, ReLU=1)
    assert when(timeline, "MatMul") == [(0, 2), (8, 10), (16, 18)]
    assert timeline.step_time_s == 24 and timeline.ranks[0].busy_s == 9


def test_a_nested_call_waits_for_the_one_around_it():
    lines = StepLines()
    first = lines.op("Exp")
    lines.waits = {(0,): (first,), (0, 1): ()}
    lines.op("Sin", calls=(0, 1))
    lines.op("Neg", calls=(0,))
    assert when(walk(lines, Exp=2, Sin=1, Neg=1), "Sin") == [(2, 3)]


# Waiting


def test_waiting_for_a_late_member_is_no_communication():
    def step(seconds: str) -> StepLines:
        lines = StepLines()
        lines.op("Neg", lines.all_reduce(lines.op(seconds), [0, 1]))
        return lines

    timeline = walk(step("Exp"), step("Sin"), Exp=1, Sin=5, AllReduce=2, Neg=1)
    early, late = timeline.ranks
    assert timeline.step_time_s == 8
    assert (early.busy_s, early.exposed_s, early.bubble_s) == (2, {("dp",): 2}, 4)
    assert (late.busy_s, late.exposed_s, late.bubble_s) == (6, {("dp",): 2}, 0)
    assert early.bubble == 4 / 8


def test_what_a_message_waited_for_in_its_stream_is_looked_through():
    """Over dp 3 s, then over tp 2 s; what computes waits for the second only, and so for both."""
    mesh = Mesh(dp=2, tp=2)

    def step(rank: int) -> StepLines:
        lines = StepLines()
        made = lines.op("Exp")
        lines.op("AllGather", made, group_rank_ids=mesh.group_of(rank, "dp"))
        lines.op("Neg", lines.all_reduce(made, mesh.group_of(rank, "tp")))
        return lines

    timeline = walk(*map(step, range(4)), mesh=mesh, Exp=1, AllGather=3, AllReduce=2, Neg=1)
    assert timeline.step_time_s == 7 and timeline.exposed_s == {("dp",): 3, ("tp",): 2}


def test_members_that_are_not_simulated_come_with_those_that_are():
    lines = StepLines()
    made = lines.op("Exp")
    lines.op("Neg", lines.all_reduce(made, [0, 1, 2, 3]), after=[lines.send(made, 2)])
    timeline = simulate_step(
        {0: [(lines.execution(), 1)]}, mesh=Mesh(pp=2, dp=2), cost=FixedCost(Exp=1, AllReduce=2, Send=3)
    )
    assert timeline.step_time_s == 4 and [times.rank for times in timeline.ranks] == [0]


def test_time_after_the_last_operator_is_counted():
    lines = StepLines()
    lines.all_reduce(lines.op("Exp"), [0, 1])
    timeline = walk(lines, lines, Exp=1, AllReduce=4)
    assert timeline.ranks[0].exposed_s == {("dp",): 4} and timeline.ranks[0].bubble_s == 0


def test_bytes_by_link():
    lines = StepLines()
    lines.op("AllReduce", lines.op("Exp"), group_rank_ids=list(range(16)), type=TensorType("Float32", (2**20,)))
    timeline = walk(lines, mesh=Mesh(dp=16), cost=DeviceCost(load_hardware("atlas_900_a2"), 8))
    assert {link.name: link.bytes for link in timeline.links} == {"HCCS": 7 * 2**20, "RoCE": 2**19}
    assert timeline.busiest_link.name == "HCCS" and timeline.busiest_link.rank == 0


# Graphs of a step


def test_graphs_of_a_step_run_one_after_the_other_as_often_as_they_do():
    accumulate, update = StepLines(), StepLines()
    accumulate.op("Exp")
    update.op("Neg", update.all_reduce(update.op("Sin"), [0, 1]))
    graphs = [(accumulate.execution(), 3), (update.execution(), 1)]
    timeline = simulate_step({0: graphs, 1: graphs}, mesh=Mesh(dp=2), cost=FixedCost(Exp=2, Sin=1, AllReduce=4, Neg=1))
    assert when(timeline, "Exp") == [(0, 2), (2, 4), (4, 6)] and timeline.step_time_s == 12
    mine = [span for span in timeline.spans if span.rank == 0]
    assert [(span.op, span.run, span.micro) for span in mine] == [
        *[("Exp", 0, 0), ("Exp", 1, 1), ("Exp", 2, 2)],
        *[("Sin", 3, None), ("AllReduce", 3, None), ("Neg", 3, None)],
    ]


def test_micro_batches_of_calls_follow_from_what_they_read():
    lines = StepLines()
    rows = [lines.op("StridedSlice", micro=number) for number in range(2)]
    lines.waits = {(number,): (row,) for number, row in enumerate(rows)} | {(2,): (), (3,): ()}
    forward = [lines.op("MatMul", row, calls=(number,)) for number, row in enumerate(rows)]
    back = [lines.op("MatMul", forward[1], calls=(2,)), lines.op("MatMul", forward[0], calls=(3,))]
    lines.op("Neg", *back)
    spans = walk(lines, StridedSlice=1, MatMul=1, Neg=1).spans
    assert [(span.index, span.micro) for span in sorted(spans, key=lambda span: span.index)] == [
        *[(0, 0), (1, 1), (2, 0), (3, 1), (4, 1), (5, 0), (6, None)]
    ]


def test_a_rank_without_operators_takes_no_time():
    assert walk(StepLines().execution()).step_time_s == 0


# Pipelines by hand. Closed forms: Narayanan et al., "Efficient large-scale language model training on GPU clusters"
# (2021), section 2.2: both orders take (m + p - 1)(tf + tb).

F, B = 2.0, 3.0


def gpipe(stage: int, stages: int, count: int) -> StepLines:
    """All micro-batches forward, then all backward."""
    lines = StepLines()
    last: list[int] = []
    for number in range(count):
        arrived = [lines.receive(stage - 1, after=last, sr_tag=number)] if stage else []
        last = [lines.op("Forward", *arrived, after=last, micro=number)]
        if stage < stages - 1:
            lines.send(last[0], stage + 1, sr_tag=number)
    for number in range(count):
        arrived = [lines.receive(stage + 1, after=last, sr_tag=number)] if stage < stages - 1 else []
        last = [lines.op("Backward", *arrived, after=last, micro=number)]
        if stage:
            lines.send(last[0], stage - 1, sr_tag=number)
    return lines


def two_stages_1f1b(count: int, receive_first: bool = True) -> list[StepLines]:
    """As MindSpore orders it: stage 0 takes a gradient before it hands on the next micro-batch."""
    first, second = StepLines(), StepLines()
    made = first.op("Forward", micro=0)
    sent = first.send(made, 1)
    back = made
    for number in range(count):
        if number + 1 < count:
            made = first.op("Forward", after=[back], micro=number + 1)
            if not receive_first:
                sent = first.send(made, 1, after=[sent])
        arrived = first.receive(1, after=[sent, made])
        if receive_first and number + 1 < count:
            sent = first.send(made, 1, after=[arrived])
        back = first.op("Backward", arrived, after=[made], micro=number)
    before: list[int] = []
    for number in range(count):
        made = second.op("Forward", second.receive(0, after=before), micro=number)
        back = second.op("Backward", made, micro=number)
        before = [second.send(back, 0)]
    return [first, second]


@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 4), (4, 4), (4, 8), (3, 7)])
def test_gpipe_takes_the_closed_form(stages, count):
    steps = [gpipe(stage, stages, count) for stage in range(stages)]
    timeline = walk(*steps, mesh=Mesh(pp=stages), Forward=F, Backward=B)
    assert timeline.step_time_s == pytest.approx((count + stages - 1) * (F + B), rel=0.01)
    assert all(times.bubble == pytest.approx((stages - 1) / (count + stages - 1), rel=0.01) for times in timeline.ranks)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_1f1b_of_two_stages_takes_the_closed_form(count):
    timeline = walk(*two_stages_1f1b(count), mesh=Mesh(pp=2), Forward=F, Backward=B)
    assert timeline.step_time_s == pytest.approx((count + 1) * (F + B), rel=0.01)
    assert [times.bubble for times in timeline.ranks] == pytest.approx([1 / (count + 1)] * 2, rel=0.01)


def test_a_transfer_makes_a_pipeline_longer_by_what_it_exposes():
    """Forward and back over one border while the other stage has nothing else to do: once each way a micro-batch."""
    quick = walk(*two_stages_1f1b(4), mesh=Mesh(pp=2), Forward=F, Backward=B)
    slow = walk(*two_stages_1f1b(4), mesh=Mesh(pp=2), Forward=F, Backward=B, Send=1.0, Receive=1.0)
    assert slow.step_time_s > quick.step_time_s and set(slow.exposed_s) == {("pp",)}
    last = slow.ranks[1]
    assert last.exposed_s["pp",] == 4 + 4 and last.busy_s == quick.ranks[1].busy_s


def test_stages_that_both_send_first_hang():
    with pytest.raises(Deadlock) as caught:
        walk(*two_stages_1f1b(4, receive_first=False), mesh=Mesh(pp=2), Forward=F, Backward=B)
    assert "rank 0 waits in Send" in str(caught.value) and "rank 1 in Send" in str(caught.value)
    assert [(wait.rank, wait.group, wait.missing) for wait in caught.value.waits] == [
        (0, (0, 1), (1,)),
        (1, (1, 0), (0,)),
    ]


# What cannot go on


def lonely(op: str) -> tuple[StepLines, StepLines]:
    lines, other = StepLines(), StepLines()
    made = lines.op("Exp")
    {"AllReduce": lambda: lines.all_reduce(made, [0, 1]), "Send": lambda: lines.send(made, 1),
     "Receive": lambda: lines.receive(1)}[op]()  # fmt: skip
    other.op("Exp")
    return lines, other


@pytest.mark.parametrize(("op", "group"), [("AllReduce", "[0, 1]"), ("Send", "[0, 1]"), ("Receive", "[1, 0]")])
def test_a_member_that_never_comes_is_told(op, group):
    with pytest.raises(Deadlock) as caught:
        walk(*lonely(op))
    (wait,) = caught.value.waits
    assert (wait.rank, wait.op, wait.missing, wait.where) == (0, op, (1,), "net.layers.0")
    text = (
        f"rank 0 waits in {op} of 1,024 bytes in group {group} (net.layers.0), but rank 1 has ended its step without it"
    )
    assert text in str(caught.value)


def test_collectives_in_different_orders_hang():
    def step(first: str, second: str) -> StepLines:
        lines = StepLines()
        one = lines.op(first, lines.op("Exp"), group_rank_ids=[0, 1, 2] if first == "AllReduce" else [0, 1])
        lines.op(second, one, group_rank_ids=[0, 1, 2] if second == "AllReduce" else [0, 1])
        return lines

    third = StepLines()
    third.all_reduce(third.op("Exp"), [0, 1, 2])
    with pytest.raises(Deadlock, match=r"rank 0 waits in AllReduce .*, rank 1 in AllGather"):
        walk(step("AllReduce", "AllGather"), step("AllGather", "AllReduce"), third)


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ({}, {"op": "AllGather"}, "Rank 0: AllReduce of 1,024 bytes in group [0, 1] (net.layers.0); rank 1: AllGather"),
        ({}, {"type": TensorType("Float32", (4,))}, "rank 1: AllReduce of 16 bytes"),
    ],
)
def test_members_that_come_with_different_messages_are_told(mine, theirs, told):
    def step(op: str = "AllReduce", type: TensorType = FLOATS) -> StepLines:
        lines = StepLines()
        lines.op(op, lines.op("Exp", type=type), type=type, group_rank_ids=[0, 1])
        return lines

    with pytest.raises(Deadlock) as caught:
        walk(step(**mine), step(**theirs))
    assert "meet with different messages" in str(caught.value) and told in str(caught.value)


def test_transfers_of_a_pair_meet_in_order():
    first, second = StepLines(), StepLines()
    first.send(first.op("Exp"), 1, sr_tag=0)
    second.receive(0, sr_tag=1)
    with pytest.raises(Deadlock, match="meet with different messages"):
        walk(first, second, mesh=Mesh(pp=2))


# Whatever the step


@st.composite
def steps(draw) -> list[Execution]:
    """Ranks that compute, and meet in groups and pairs in an order that all share."""
    count = draw(st.integers(1, 4))
    ranks = [StepLines() for _ in range(count)]
    met: list[list[int]] = [[] for _ in ranks]

    def value(rank: int) -> list[int]:
        done = len(ranks[rank].operators)
        return draw(st.lists(st.integers(0, done - 1), max_size=2, unique=True)) if done else []

    for _ in range(draw(st.integers(1, 25))):
        group = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
        shape = TensorType("Float32", (draw(st.sampled_from([8, 1024, 2**20])),))
        if len(group) == 1 and draw(st.booleans()):
            ranks[group[0]].op(draw(st.sampled_from(["Exp", "Add", "Reshape"])), *value(group[0]), type=shape)
        elif len(group) == 2 and draw(st.booleans()):
            sender, receiver = draw(st.permutations(group))
            sent = ranks[sender].op("Exp", *value(sender), type=shape)
            met[sender] = [ranks[sender].send(sent, receiver, type=shape, after=met[sender])]
            met[receiver] = [ranks[receiver].receive(sender, type=shape, after=met[receiver])]
        else:
            for rank in group:
                made = ranks[rank].op("Exp", *value(rank), type=shape)
                met[rank] = [ranks[rank].all_reduce(made, group, type=shape, after=met[rank])]
    return [lines.execution() for lines in ranks]


def ends_by_values_alone(executions: list[Execution], cost: Cost) -> float:
    """The longest way through values, conditions and messages, as if every rank had any number of streams."""
    timeline = simulate_step({r: [(e, 1)] for r, e in enumerate(executions)}, mesh=Mesh(dp=len(executions)), cost=cost)
    seconds = {(span.rank, span.index): span.end_s - span.start_s for span in timeline.spans}
    groups: dict[tuple, list[tuple[int, int]]] = {}
    for span in sorted(timeline.spans, key=lambda span: span.start_s):
        if span.ranks:
            groups.setdefault((span.ranks, span.start_s, span.stream), []).append((span.rank, span.index))
    members = {member: group for group in groups.values() for member in group}
    found: dict[tuple[int, int], float] = {}

    def begin(rank: int, index: int) -> float:
        operator = executions[rank].operators[index]
        before = {leaf.index for leaf in leaves(operator.inputs) if hasattr(leaf, "index")} | set(operator.after)
        return max((end(rank, other) for other in before), default=0.0)

    def end(rank: int, index: int) -> float:
        if (rank, index) not in found:
            start = max(begin(*member) for member in members.get((rank, index), [(rank, index)]))
            found[rank, index] = start + seconds.get((rank, index), 0.0)
        return found[rank, index]

    return max(
        (end(rank, index) for rank, e in enumerate(executions) for index in range(len(e.operators))), default=0.0
    )


def machine(faster: float):
    """A server of three devices a node, with links and memory so many times faster."""
    a2 = load_hardware("atlas_900_a2")
    links = [link.model_copy(update={"bandwidth_gb_s": link.bandwidth_gb_s * faster}) for link in a2.links]
    memory = a2.memory.model_copy(update={"bandwidth_gb_s": a2.memory.bandwidth_gb_s * faster})
    return DeviceCost(a2.model_copy(update={"links": links, "memory": memory}), devices_per_node=3)


@settings(max_examples=150, deadline=None)
@given(steps())
def test_a_timeline_keeps_its_laws(executions):
    timeline = walk(*executions, cost=machine(1))
    spans = timeline.spans
    assert timeline.step_time_s == pytest.approx(max((span.end_s for span in spans), default=0.0))
    # No stream does two things at once.
    for rank in range(len(executions)):
        for stream in ("compute", "collective", "pipeline"):
            row = sorted((s.start_s, s.end_s) for s in spans if s.rank == rank and s.stream == stream)
            assert all(a[1] <= b[0] + 1e-12 for a, b in zip(row, row[1:], strict=False))
    # Nothing begins before what it waits for has ended.
    ends = {(span.rank, span.index): span.end_s for span in spans}
    for span in spans:
        operator = executions[span.rank].operators[span.index]
        before = {leaf.index for leaf in leaves(operator.inputs) if hasattr(leaf, "index")} | set(operator.after)
        assert all(ends.get((span.rank, other), 0.0) <= span.start_s + 1e-12 for other in before)
    # The parts of every rank's step add up, and none is negative.
    for times in timeline.ranks:
        parts = [times.busy_s, times.bubble_s, *times.exposed_s.values()]
        assert sum(parts) == pytest.approx(timeline.step_time_s) and min(parts) >= -1e-12
        assert times.busy_s <= timeline.step_time_s + 1e-12
    assert ends_by_values_alone(executions, machine(1)) <= timeline.step_time_s + 1e-12


@settings(max_examples=100, deadline=None)
@given(steps(), st.sampled_from([1.5, 4.0, 1000.0]))
def test_more_bandwidth_is_never_slower(executions, faster):
    assert walk(*executions, cost=machine(faster)).step_time_s <= walk(*executions, cost=machine(1)).step_time_s + 1e-12
