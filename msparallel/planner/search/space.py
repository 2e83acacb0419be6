"""Which strategies a search looks at: all that the recipe's rules allow.

In: a Workload whose model, sequence and software stay, and a Space: devices, batch, what may be chosen. Out: every mesh
of the space, and the legal settings of those that `rules.py` does not refuse.

>>> space = Space(devices=16, devices_per_node=8, global_batch_size=64)
>>> sum(1 for _ in meshes(space)), sum(len(levels) for levels in strategies(work, space, Mesh(dp=2, tp=8)))
(35, 24)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from msparallel.mesh import Mesh
from msparallel.planner.cut import token_numbers
from msparallel.planner.workload import ShardLevel, Workload
from msparallel.recipe.rules.devices import MAX_DEVICES
from msparallel.recipe.rules.finding import divisors

Recompute = Literal["none", "selective", "full"]
Algo = Literal["all_gather", "ulysses"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
SHARDS: tuple[ShardLevel, ...] = ("none", "level1", "level2", "level3")


@dataclass(frozen=True, kw_only=True)
class Space:
    """Attributes:
    devices, devices_per_node: that take part.
    global_batch_size: sequences of a step, kept.
    engine: whether MindSpore's engine may cut the model here; without it there are replicas only.
    recompute, optimizer_shard, sequence_parallel: what may be chosen.
    vocab_parallel: whether the vocabulary is cut over tp wherever that comes out.
    most_micro_batch, most_virtual_stages, most_context_parallel: micro-batch sizes, groups of layers a stage and cp go
        up to these.
    """

    devices: int
    devices_per_node: int
    global_batch_size: int
    engine: bool = True
    recompute: tuple[Recompute, ...] = RECOMPUTE
    optimizer_shard: tuple[ShardLevel, ...] = SHARDS
    sequence_parallel: tuple[bool, ...] = (False, True)
    vocab_parallel: bool = True
    most_micro_batch: int = 16
    most_virtual_stages: int = 8
    most_context_parallel: int = MAX_DEVICES


def meshes(space: Space) -> Iterator[Mesh]:
    """Every way to write the space's devices as pp x dp x cp x tp."""
    for tp in divisors(space.devices):
        for pp in divisors(space.devices // tp):
            for cp in divisors(space.devices // tp // pp, space.most_context_parallel):
                yield Mesh(pp=pp, dp=space.devices // tp // pp // cp, cp=cp, tp=tp)


def combinations(work: Workload, space: Space, mesh: Mesh) -> int:
    """Settings of one mesh before any rule is asked."""
    experts = len(divisors(work.shape.num_experts)) if work.shape.num_experts else 1
    splits = space.most_virtual_stages + 1 if mesh.pp > 1 else 1  # with one group a stage: equal, and by cost
    shards = len(space.optimizer_shard)
    tokens = len(space.sequence_parallel) if mesh.tp > 1 else 1
    algos = 2 if mesh.cp > 1 else 1
    sizes = len(divisors(space.global_batch_size, space.most_micro_batch))
    return experts * splits * shards * tokens * algos * sizes * len(space.recompute)


def strategies(work: Workload, space: Space, mesh: Mesh) -> Iterator[list[tuple[Workload, list[int]]]]:
    """Every legal strategy of a legal mesh: lists of (a Workload whose batch is still to be set, sizes of its
    micro-batch, smallest first). In a list only recompute differs, least first."""
    batches = micro_batches(space, mesh)
    for base in layouts(work, space, mesh):
        for shard in shard_levels(space, mesh):
            for tokens_cut in (False, True):
                sizes = [b for b in batches if tokens_cut in sequence_parallel(work, space, mesh, b)]
                if sizes:
                    chosen = _changed(base, optimizer_shard=shard, sequence_parallel=tokens_cut)
                    yield [(_changed(chosen, recompute=recompute), sizes) for recompute in space.recompute]


def layouts(work: Workload, space: Space, mesh: Mesh) -> Iterator[Workload]:
    """Splits into stages, expert groups and ways of context parallel that are legal on a legal mesh: where a model's
    parts lie, without the settings that trade memory for time."""
    base = replace(
        work,
        mesh=mesh,
        devices_per_node=space.devices_per_node,
        vocab_parallel=cuts_vocabulary(work, space, mesh),
        recomputed_layers=None,
        optimizer_shard_size=0,
        schedule="1f1b",
        overlap_gradients=work.overlap_gradients and space.engine and mesh.dp * mesh.cp > 1,
    )
    for stage_layers in splits(work, space, mesh.pp):
        for experts in expert_degrees(work, space, mesh):
            for algo in _algos(work, mesh):
                yield _changed(base, stage_layers=stage_layers, expert_parallel=experts, context_parallel_algo=algo)


def with_batch(work: Workload, space: Space, size: int) -> Workload:
    """The space's batch in micro-batches of a size."""
    return _changed(work, micro_batch_size=size, micro_batch_num=space.global_batch_size // work.mesh.dp // size)


def _changed(work: Workload, **values: Any) -> Workload:
    """As `dataclasses.replace`, in a tenth of its time: nothing of a Workload is worked out when it is made."""
    other = object.__new__(Workload)
    other.__dict__.update(work.__dict__, **values)
    return other


def splits(work: Workload, space: Space, stages: int) -> list[tuple[int, ...]]:
    """Layers of each group: equal shares where they come out, shares by cost, equal shares of interleaved groups."""
    layers = work.shape.num_layers
    if stages == 1:
        return [(layers,)]
    found = [(layers // stages,) * stages] if layers % stages == 0 else []
    balanced = balanced_split(work, stages)
    found += [balanced] if balanced not in found else []
    for virtual in range(2, space.most_virtual_stages + 1):
        groups = stages * virtual
        if layers % groups == 0:
            found.append((layers // groups,) * groups)
    return found


def balanced_split(work: Workload, stages: int) -> tuple[int, ...]:
    """Layers by cost: the last stage has fewer, as many as make up for the LM head; what does not divide goes to the
    later ones of the others, since the first holds the embedding and most micro-batches.

    >>> balanced_split(llama2_70b, 7)
    (11, 11, 11, 12, 12, 12, 11)
    """
    layers, head = work.shape.num_layers, head_in_layers(work)
    last = min(max(1, round((layers + head) / stages - head)), layers - stages + 1)
    share, rest = divmod(layers - last, stages - 1)
    first = stages - 1 - rest  # the later of the others take one more
    return (*(share + (stage >= first) for stage in range(stages - 1)), last)


def head_in_layers(work: Workload) -> float:
    """Products of the LM head as a number of layers, attention's own products left out."""
    return work.shape.padded_vocab_size * work.shape.hidden_size / token_numbers(work.shape)


def expert_degrees(work: Workload, space: Space, mesh: Mesh) -> list[int]:
    """Numbers of ranks that may share the experts out."""
    experts, inner, ranks = work.shape.num_experts, mesh.cp * mesh.tp, mesh.dp * mesh.cp * mesh.tp
    if not experts or not space.engine:
        return [1]
    legal = [n for n in divisors(math.gcd(experts, ranks)) if inner % n == 0 or n % inner == 0]
    return [n for n in legal if inner % n or work.seq_length % (inner // n) == 0]


def _algos(work: Workload, mesh: Mesh) -> list[Algo]:
    if mesh.cp == 1:
        return ["all_gather"]
    pieces = mesh.tp * mesh.cp
    whole = work.shape.num_heads % pieces == 0 and work.shape.num_kv_heads % pieces == 0
    return ["all_gather", "ulysses"] if whole else ["all_gather"]


def shard_levels(space: Space, mesh: Mesh) -> list[ShardLevel]:
    """Levels of the optimizer shard."""
    if not space.engine or mesh.dp * mesh.cp == 1:
        return [level for level in space.optimizer_shard if level == "none"] or ["none"]
    return [level for level in space.optimizer_shard if level != "level3" or mesh.pp == 1]


def micro_batches(space: Space, mesh: Mesh) -> list[int]:
    """Sizes of a micro-batch, smallest first."""
    sequences = space.global_batch_size // mesh.dp
    return [b for b in divisors(sequences, space.most_micro_batch) if mesh.pp == 1 or sequences // b >= mesh.pp]


def sequence_parallel(work: Workload, space: Space, mesh: Mesh, micro_batch: int) -> list[bool]:
    """Whether tokens may be cut over tp between its products."""
    tokens = work.seq_length * (1 if work.shape.num_experts else micro_batch)
    legal = mesh.tp > 1 and tokens % (mesh.cp * mesh.tp) == 0
    return [on for on in space.sequence_parallel if not on or legal] or [False]


def cuts_vocabulary(work: Workload, space: Space, mesh: Mesh) -> bool:
    """Whether the vocabulary is cut: where the space asks for it and its rows come out."""
    return space.vocab_parallel and work.shape.padded_vocab_size % mesh.tp == 0
