"""Who takes part in a message, what it crosses, how large it is."""

from __future__ import annotations

import pytest
from handmade import Lines, micro_batches, tensor

from msparallel.compile.collectives import collective_uses, group_axes, links
from msparallel.compile.expand import expand
from msparallel.mesh import Mesh

pytestmark = pytest.mark.pure
GRID = Mesh(pp=2, dp=2, tp=4)


@pytest.mark.parametrize(
    ("ranks", "axes"),
    [((0, 1, 2, 3), ("tp",)), ((0, 4), ("dp",)), ((0, 8), ("pp",)), (tuple(range(8)), ("dp", "tp")), ((5,), ())],
)
def test_axes_of_a_group(ranks, axes):
    assert group_axes(ranks, GRID) == axes


@pytest.mark.parametrize(
    ("ranks", "devices_per_node", "crossed"),
    [
        ((0, 7), 8, "inside a server"),
        ((0, 8), 8, "between servers"),
        ((4, 8), 4, "between servers"),
        ((3,), 8, "none"),
    ],
)
def test_links_of_a_group(ranks, devices_per_node, crossed):
    assert links(ranks, devices_per_node) == crossed


def test_messages_are_counted_for_every_call_and_every_execution(tmp_path):
    execution = expand(micro_batches(tmp_path, calls=3))
    (use,) = collective_uses([(execution, 2)], rank=0, mesh=Mesh(tp=2), devices_per_node=8)
    assert (use.op, use.ranks, use.bytes, use.count, use.purpose) == ("AllReduce", (0, 1), 64, 6, "forward")
    assert use.total_bytes == 6 * 64


def test_sizes_and_purposes(tmp_path):
    lines = Lines()
    lines.function(0, "step")
    batch, weight = lines.parameter(0, "inputs0", 2, 4), lines.parameter(0, "w", 2, 4, weight=True)
    group = {"attributes": {"group_rank_ids": [0, 4]}}
    rows = lines.node(0, "AllGather", [batch], tensor(4, 4), **group)
    cast = lines.node(0, "Cast", [weight], tensor(2, 4, dtype="BFloat16"))
    whole = lines.node(0, "AllGather", [cast], tensor(4, 4, dtype="BFloat16"), **group)
    y = lines.node(0, "MatMul", [rows, whole], tensor(4, 4))
    mark = "Gradients/Default/Grad__MirrorOperator"
    g = lines.node(0, "AllReduce", [y], tensor(4, 4), mark, **group)
    back = lines.node(0, "ReduceScatter", [g], tensor(2, 4), "Gradients/Default/net-Net/Grad_AllGather", **group)
    again = lines.node(0, "AllReduce", [back], tensor(2, 4), "recompute_Default/net-Net", **group)
    norm = lines.node(0, "AllReduce", [lines.node(0, "ReduceSum", [again], tensor(1))], tensor(1), **group)
    ends = {"dest_rank": 1, "dst_global_rank": 8, "sr_tag": 0}
    sent = lines.node(0, "Send", [lines.node(0, "Mul", [y, norm], tensor(4, 4))], tensor(4, 4), attributes=ends)
    lines.returns(0, sent)
    uses = collective_uses([(expand(lines.read(tmp_path)), 1)], rank=0, mesh=GRID, devices_per_node=8)
    assert {(use.op, use.purpose): use.bytes for use in uses} == {
        ("AllGather", "input"): 64,
        ("AllGather", "weight"): 32,
        ("AllReduce", "gradient"): 64,
        ("ReduceScatter", "backward"): 64,
        ("AllReduce", "recompute"): 32,
        ("AllReduce", "scalar"): 4,
        ("Send", "pipeline"): 64,
    }
    send = next(use for use in uses if use.op == "Send")
    assert send.ranks == (0, 8) and send.axes == ("pp",) and send.links == "between servers"
