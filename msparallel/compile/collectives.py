"""The collectives of one rank's step: who takes part, over which links, how much and how often.

In: Executions with how often a step runs each, the mesh, devices per node. Out: one `CollectiveUse` for each kind of
message, largest traffic first.

>>> uses = collective_uses([(execution, 1)], rank=5, mesh=plan.mesh, devices_per_node=8)
>>> uses[0].op, uses[0].axes, uses[0].count, uses[0].links
('AllGather', ('tp',), 640, 'inside a server')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msparallel.compile.expand import Execution, Operator, Output, Source, UnreadableGraph, leaves
from msparallel.compile.graph import ConstantTensor, Parameter, TensorType, tensors
from msparallel.compile.order import RECOMPUTED, is_collective
from msparallel.mesh import AXES, Mesh

Links = Literal["none", "inside a server", "between servers"]
Purpose = Literal["forward", "backward", "recompute", "gradient", "weight", "pipeline", "scalar", "input"]
SCALAR_BYTES = 8
PARAMETER_MARKS = ("_Mirror", "MicroStepAllGather", "MiniStepAllGather", "_VirtualAssignAdd", "-AddOverRanks")
"""MindSpore's operators beside a parameter, whose gradient is its sum over replicas; and the trainer's own cell that
adds gradients where every rank holds the whole model."""


@dataclass(frozen=True, kw_only=True)
class CollectiveUse:
    """Messages of one kind within one step.

    Attributes:
        op: MindSpore's primitive.
        ranks: who takes part; of Send and Receive both ends, the sender first.
        axes: axes of the mesh on which they differ.
        bytes: of one message on this rank: what AllReduce, Broadcast, Send and Receive carry, what AllGather gives,
            what ReduceScatter and AlltoAll take.
        count: messages a step.
        links: what the group crosses.
        purpose: activations of the forward, backward and recomputed pass; parameters' gradients; weights that are
            gathered; a pipeline's border; a scalar such as loss and global norm; the rows of the batch.
    """

    op: str
    ranks: tuple[int, ...]
    axes: tuple[str, ...]
    bytes: int
    count: int
    links: Links
    purpose: Purpose

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.count


def collective_uses(
    executions: Iterable[tuple[Execution, int]], *, rank: int, mesh: Mesh, devices_per_node: int
) -> list[CollectiveUse]:
    """Every collective of a step on one rank, alike ones counted together."""
    counts: Counter[tuple[str, tuple[int, ...], int, Purpose]] = Counter()
    for execution, times in executions:
        for operator in execution.operators:
            if is_collective(operator.op):
                ranks = participants(operator, rank)
                counts[operator.op, ranks, message_bytes(execution, operator), purpose(execution, operator)] += times
    uses = [
        CollectiveUse(
            op=op,
            ranks=ranks,
            axes=group_axes(ranks, mesh),
            bytes=size,
            count=count,
            links=links(ranks, devices_per_node),
            purpose=why,
        )
        for (op, ranks, size, why), count in counts.items()
    ]
    return sorted(uses, key=lambda use: (-use.total_bytes, use.op, use.ranks))


def participants(operator: Operator, rank: int) -> tuple[int, ...]:
    """Global ranks that take part, as the graph states them. Raises UnreadableGraph where it states none."""
    attributes = operator.node.attributes
    # Where micro-batches share a graph, dest_rank and src_rank count within the pair's group.
    if operator.op == "Send":
        return rank, attributes.get("dst_global_rank", attributes["dest_rank"])
    if operator.op == "Receive":
        return attributes.get("src_global_rank", attributes["src_rank"]), rank
    if not attributes.get("group_rank_ids"):
        raise UnreadableGraph(f"{operator.node.name} is in a group whose ranks nobody named: {attributes.get('group')}")
    return tuple(attributes["group_rank_ids"])


def message_bytes(execution: Execution, operator: Operator) -> int:
    """Bytes of one message, as `CollectiveUse.bytes` counts them."""
    if operator.op in ("AllReduce", "AllGather", "Receive", "Broadcast"):
        return sum(tensor.bytes for tensor in tensors(operator.type))
    return sum(tensor.bytes for tensor in _input_types(execution, operator))


def _input_types(execution: Execution, operator: Operator) -> Iterable[TensorType]:
    """Types of the tensors that an operator takes."""
    for leaf in leaves(operator.inputs):
        if isinstance(leaf, Output):
            whole = execution.operators[leaf.index].type
            yield from tensors(whole if leaf.item is None else whole[leaf.item])
        elif isinstance(leaf, (Parameter, ConstantTensor)):
            yield from tensors(leaf.type)


def purpose(execution: Execution, operator: Operator) -> Purpose:
    """What a collective is for, from where its values come and the scopes that MindSpore's passes leave."""
    if operator.op in ("Send", "Receive"):
        return "pipeline"
    lengths = [length for tensor in tensors(operator.type) for length in tensor.shape]
    if min(lengths, default=0) >= 0 and sum(tensor.bytes for tensor in tensors(operator.type)) <= SCALAR_BYTES:
        return "scalar"
    scope = operator.node.scope
    if any(mark in scope for mark in PARAMETER_MARKS):
        return "gradient"
    origin = _origin(execution, operator)
    if isinstance(origin, Parameter):
        return "weight" if origin.weight else "input"
    if scope.startswith("Gradients"):
        return "backward"
    return "recompute" if scope.startswith(RECOMPUTED) else "forward"


def _origin(execution: Execution, operator: Operator) -> Source:
    """What a value was before casts and other shapes."""
    source = operator.inputs[0]
    while isinstance(source, Output) and execution.operators[source.index].op in ("Cast", "Load", "Reshape"):
        source = execution.operators[source.index].inputs[0]
    return source


def group_axes(ranks: tuple[int, ...], mesh: Mesh) -> tuple[str, ...]:
    """Axes on which the ranks differ."""
    places = [mesh.coordinates(rank) for rank in ranks]
    return tuple(axis for axis in AXES if len({place[axis] for place in places}) > 1)


def links(ranks: tuple[int, ...], devices_per_node: int) -> Links:
    """What messages among ranks cross, where rank = node x devices_per_node + device."""
    if len(ranks) < 2:
        return "none"
    return "inside a server" if len({rank // devices_per_node for rank in ranks}) == 1 else "between servers"
