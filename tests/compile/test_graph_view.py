"""The view of a compiled graph: reading, writing calls out, order, live memory; on graphs written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Lines, micro_batches, tensor

from msparallel.compile.dryrun import Job, Variant, read_rank
from msparallel.compile.expand import Constant, Output, UnreadableGraph, expand
from msparallel.compile.graph import ConstantTensor, TensorType
from msparallel.compile.order import cell_path, live_bytes, run_order
from msparallel.compile.request import RESULT_FILE, GraphResult, Request, Result, write_json
from msparallel.errors import RunError
from msparallel.mesh import Mesh

pytestmark = pytest.mark.pure
MATRIX_BYTES = 4 * 4 * 4


def names(execution, order=None) -> list[str]:
    return [execution.operators[index].op for index in (range(len(execution.operators)) if order is None else order)]


def test_a_called_function_counts_once_for_every_call(tmp_path):
    execution = expand(micro_batches(tmp_path, calls=3))
    assert names(execution).count("AllReduce") == names(execution).count("MatMul") == 3
    assert names(execution).count("Add") == 2
    assert [parameter.name for parameter in execution.parameters] == ["x", "w"]


def test_a_call_waits_for_an_argument_that_it_reads_late(tmp_path):
    """The second micro-batch's weight depends on the first one's result, so nothing of it may run before."""
    execution = expand(micro_batches(tmp_path, calls=3))
    order = names(execution, run_order(execution))
    assert [op for op in order if op != "Add"] == ["MatMul", "AllReduce", "ReLU"] * 3


def test_live_memory_by_hand(tmp_path):
    # One micro-batch: a matrix and, while the next operator runs, its result.
    assert live_bytes(expand(micro_batches(tmp_path, calls=1))).bytes == 2 * MATRIX_BYTES
    # Later ones beside the sum so far (or the results that wait to be added).
    assert live_bytes(expand(micro_batches(tmp_path, calls=2))).bytes == 3 * MATRIX_BYTES


def test_views_and_updates_in_place_take_no_memory(tmp_path):
    lines = Lines()
    lines.function(0, "step")
    x, w = lines.parameter(0, "x", 8, 2), lines.parameter(0, "w", 4, 4, weight=True)
    made = lines.node(0, "Cast", [x], tensor(8, 2))
    other = lines.node(0, "Reshape", [made, {"constant": [4, 4]}], tensor(4, 4))
    lines.returns(0, lines.node(0, "AssignAdd", [w, other], tensor(4, 4)))
    peak = live_bytes(expand(lines.read(tmp_path)))
    assert peak.bytes == 8 * 2 * 4
    assert [(held.op, held.type) for held in peak.tensors] == [("Cast", TensorType("Float32", (8, 2)))]


@pytest.mark.parametrize(("read_late", "halves"), [(False, 2), (True, 3)])
def test_an_output_of_several_lives_as_long_as_it_is_read(tmp_path, read_late, halves):
    lines = Lines()
    lines.function(0, "step")
    x = lines.parameter(0, "x", 4, 4)
    both = lines.node(0, "Split", [x], {"tuple": [tensor(2, 4), tensor(2, 4)]})
    first = lines.node(0, "TupleGetItem", [both, {"constant": 0}], tensor(2, 4))
    a = lines.node(0, "Exp", [first], tensor(2, 4))
    last = a
    if read_late:
        second = lines.node(0, "TupleGetItem", [both, {"constant": 1}], tensor(2, 4))
        last = lines.node(0, "Mul", [a, second], tensor(2, 4))
    lines.returns(0, lines.node(0, "Exp", [last], tensor(2, 4)))
    execution = expand(lines.read(tmp_path))
    assert execution.operators[1].inputs == (Output(0, 0),)
    assert live_bytes(execution).bytes == halves * 2 * 4 * 4


def test_flow_is_resolved_and_its_order_kept(tmp_path):
    """A closure that a forward function hands on is called later; UpdateState orders a store behind a load."""
    lines = Lines()
    lines.function(0, "step")
    x, w = lines.parameter(0, "x", 4, 4), lines.parameter(0, "w", 4, 4, weight=True)
    pair = lines.node(0, "call", [{"graph": 1}, x], {"tuple": [tensor(4, 4), {"other": "closure"}]})
    back = lines.node(0, "TupleGetItem", [pair, {"constant": 1}], {"other": "closure"})
    gradient = lines.node(0, "call", [back, w], tensor(4, 4))
    loaded = lines.node(0, "Load", [w, {"constant": None}], tensor(4, 4))
    used = lines.node(0, "Neg", [loaded], tensor(4, 4))
    state = lines.node(0, "UpdateState", [{"constant": None}, used], {"other": "monad"})
    stored = lines.node(0, "Assign", [w, gradient, state], tensor(4, 4))
    lines.returns(0, lines.node(0, "Depend", [gradient, stored], tensor(4, 4)))
    lines.function(1, "forward")
    x = lines.parameter(1, "x", 4, 4)
    y = lines.node(1, "Exp", [x], tensor(4, 4))
    partial = lines.node(1, "Partial", [{"graph": 2}, y], {"other": "closure"})
    lines.returns(1, lines.node(1, "MakeTuple", [y, partial], {"tuple": [tensor(4, 4), {"other": "closure"}]}))
    lines.function(2, "backward")
    y, g = lines.parameter(2, "y", 4, 4), lines.parameter(2, "g", 4, 4)
    lines.returns(2, lines.node(2, "Mul", [y, g], tensor(4, 4)))
    execution = expand(lines.read(tmp_path))
    assert names(execution) == ["Exp", "Mul", "Load", "Neg", "Assign"]
    assert execution.operators[1].inputs[0] == Output(0)
    assert execution.operators[4].after == (3,) and execution.operators[4].inputs[1] == Output(1)
    order = names(execution, run_order(execution))
    assert order.index("Neg") < order.index("Assign")


def test_of_two_branches_the_one_that_updates_is_taken(tmp_path):
    lines = Lines()
    lines.function(0, "step")
    x = lines.parameter(0, "x", 4, 4)
    finite = lines.node(0, "IsFinite", [x], tensor(dtype="Bool"))
    way = lines.node(0, "Switch", [finite, {"graph": 1}, {"graph": 2}], {"other": "closure"})
    lines.returns(0, lines.node(0, "call", [way], tensor(4, 4)))
    lines.function(1, "update")
    made = lines.node(1, "Exp", [x], tensor(4, 4))  # a value of the function around it
    lines.returns(1, lines.node(1, "Neg", [made], tensor(4, 4)))
    lines.function(2, "skip")
    lines.returns(2, x)
    execution = expand(lines.read(tmp_path))
    assert names(execution) == ["IsFinite", "Exp", "Neg"]
    assert execution.skipped_branches == ("skip",)
    order = names(execution, run_order(execution))
    assert order[0] == "IsFinite"  # the branch waits for its condition


def test_a_function_that_calls_itself_is_refused(tmp_path):
    lines = Lines()
    lines.function(0, "step")
    x = lines.parameter(0, "x", 1)
    lines.returns(0, lines.node(0, "call", [{"graph": 1}, x], tensor(1)))
    lines.function(1, "loop")
    x = lines.parameter(1, "x", 1)
    lines.returns(1, lines.node(1, "call", [{"graph": 1}, x], tensor(1)))
    with pytest.raises(UnreadableGraph, match="loop calls itself.*Loop over a Python number"):
        expand(lines.read(tmp_path))


def test_what_is_only_known_when_it_runs_is_refused(tmp_path):
    """A call, and an item, by the value of a tensor: the operator is named, and what works."""
    calls, items = Lines(), Lines()
    calls.function(0, "step")
    chosen = calls.node(0, "SwitchLayer", [calls.parameter(0, "which", 1)], {"other": "closure"}, "Default/net-Net")
    calls.returns(0, calls.node(0, "call", [chosen], tensor(1), "Default/net-Net"))
    with pytest.raises(UnreadableGraph, match=r"Default/net-Net/call-op3 calls.*Choose a cell by a Python value"):
        expand(calls.read(tmp_path))
    items.function(0, "step")
    x, place = items.parameter(0, "x", 1), items.parameter(0, "place", 1)
    both = items.node(0, "MakeTuple", [x, x], {"tuple": [tensor(1), tensor(1)]})
    items.returns(0, items.node(0, "TupleGetItem", [both, place], tensor(1)))
    with pytest.raises(UnreadableGraph, match="TupleGetItem-op4 takes an item.*Index tuples with a Python number"):
        expand(items.read(tmp_path))


def test_a_file_that_was_cut_off_is_not_a_graph(tmp_path):
    lines = Lines()
    lines.function(0, "step")
    lines.parameter(0, "x", 1)
    with pytest.raises(ValueError, match="ends before"):
        lines.read(tmp_path)


def test_constants(tmp_path):
    lines = Lines()
    lines.function(0, "step")
    content = np.arange(6, dtype=np.float32).tobytes() + np.float32(7).tobytes()
    whole, alike = {"tensor": ["Float32", [2, 3], 0, 24]}, {"tensor": ["Float32", [100, 10], 24, 4]}
    lines.returns(0, lines.node(0, "Add", [whole, alike], tensor(2, 3)))
    graph = lines.read(tmp_path, content)
    first, second = graph.functions[0].nodes[0].inputs
    assert isinstance(first, ConstantTensor) and graph.array(first).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert graph.array(second).shape == (100, 10) and set(graph.array(second).ravel()) == {7.0}


def test_a_tuple_keeps_the_conditions_of_each_item(tmp_path):
    lines = Lines()
    lines.function(0, "step")
    x = lines.parameter(0, "x", 4)
    first = lines.node(0, "Exp", [x], tensor(4))
    second = lines.node(0, "Depend", [x, first], tensor(4))
    both = lines.node(0, "MakeTuple", [x, second], {"tuple": [tensor(4), tensor(4)]})
    a = lines.node(0, "TupleGetItem", [both, {"constant": 0}], tensor(4))
    b = lines.node(0, "TupleGetItem", [both, {"constant": 1}], tensor(4))
    early, late = lines.node(0, "Neg", [a], tensor(4)), lines.node(0, "Sin", [b], tensor(4))
    lines.returns(0, lines.node(0, "AddN", [lines.node(0, "MakeTuple", [early, late], {"tuple": []})], tensor(4)))
    by_op = {operator.op: operator for operator in expand(lines.read(tmp_path)).operators}
    assert by_op["Neg"].after == () and by_op["Sin"].after == (0,)
    assert by_op["AddN"].inputs == ((Output(1), Output(2)),)
    assert not isinstance(by_op["Neg"].inputs[0], Constant)


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("Default/network-Net/layers-CellList/3-Layer/mlp-FeedForward", "network.layers.3.mlp"),
        ("Gradients/Default/network-Net/Grad_MatMul", "gradient of network.Grad_MatMul"),
        ("recompute_Default/network-Net/layers-CellList/0-Layer", "recomputed network.layers.0"),
        ("Default", ""),
    ],
)
def test_scopes_read_like_parameter_names(scope, path):
    assert cell_path(scope) == path


def test_a_graph_that_cannot_be_read_is_told_with_its_rank(tmp_path):
    """No traceback: where, what, the rule, and what works."""
    lines = Lines()
    lines.function(0, "step")
    lines.returns(0, lines.node(0, "call", [{"graph": 0}], tensor(1)))
    lines.read(tmp_path)
    result = Result(
        graphs=[GraphResult(folder=str(tmp_path), executions=1)],
        roles={},
        build_s=0.0,
        compile_s=0.0,
        peak_memory_bytes=1,
    )
    write_json(tmp_path / RESULT_FILE, result.to_json())
    for name in ("layouts.json", "strategies.json"):
        write_json(tmp_path / name, {})
    request = Request(source="my.yaml", overrides=[], world_size=2, rank=1, folder=str(tmp_path))
    variant = Variant(request=request, stage_layers=(2,), memory_bytes=1)
    one = {"mesh": Mesh(dp=2), "devices_per_node": 2, "stage_layers": (2,)}
    job = Job(source="my.yaml", overrides=(), variants=(variant,), **one)
    with pytest.raises(RunError, match=r"my\.yaml\n.*rank 1.*step calls itself.*Python number instead\."):
        read_rank(job, request, variant)
