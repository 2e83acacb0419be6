"""Which strategies a search looks at, and which of them the recipe's rules allow.

In: a Workload whose model, sequence and software stay, and a Space: devices, batch, what may be chosen. Out: every mesh
of the space; a Refusal for one that no setting makes legal; the legal settings of the others. What `recipe/rules/` says
of a whole recipe is said here of numbers alone, because a search asks it thousands of times; a test writes what is
found as recipes and asks the rules.

>>> space = Space(devices=16, devices_per_node=8, global_batch_size=64)
>>> sum(1 for _ in meshes(16)), refusal(work, space, Mesh(tp=16)).reason
(35, '8 key and value heads cannot be split over 16 devices, at most over 8')
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from msparallel.hardware import Hardware
from msparallel.mesh import Mesh
from msparallel.planner.workload import ShardLevel, Workload
from msparallel.recipe.rules.finding import divisors
from msparallel.recipe.rules.mode import infeasible_group

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
    most_micro_batch, most_virtual_stages: micro-batch sizes and groups of layers a stage go up to these.
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


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why no setting makes a mesh legal.

    Attributes:
        rule: of `recipe/rules/`.
        key, value: the setting of the recipe that breaks it.
        change: what would be legal, in words; empty where nothing is.
    """

    rule: str
    key: str
    value: int
    reason: str
    change: str = ""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a model's parts lie: everything but the settings that trade memory for time.

    Attributes:
        stage_layers: layers of each group, in the order a sample passes them.
    """

    mesh: Mesh
    stage_layers: tuple[int, ...]
    expert_parallel: int
    context_parallel_algo: Algo


def engine_cuts(hardware: Hardware, devices: int) -> bool:
    """Whether MindSpore's engine may cut a model over so many devices (rules `operator_modes_need_ascend` and
    `device_number_suits_mindspore`)."""
    return hardware.target != "CPU" and (devices in (2, 4) or (devices > 1 and devices % 8 == 0))


def meshes(devices: int) -> Iterator[Mesh]:
    """Every way to write a number of devices as pp x dp x cp x tp."""
    for tp in divisors(devices):
        for pp in divisors(devices // tp):
            for cp in divisors(devices // tp // pp):
                yield Mesh(pp=pp, dp=devices // tp // pp // cp, cp=cp, tp=tp)


def combinations(work: Workload, space: Space, mesh: Mesh) -> int:
    """Settings of one mesh before any rule is asked."""
    experts = len(divisors(work.shape.num_experts)) if work.shape.num_experts else 1
    splits = space.most_virtual_stages + 1 if mesh.pp > 1 else 1  # with one group a stage: equal, and by cost
    shards = len(space.optimizer_shard)
    tokens = len(space.sequence_parallel) if mesh.tp > 1 else 1
    algos = 2 if mesh.cp > 1 else 1
    sizes = len(divisors(space.global_batch_size, space.most_micro_batch))
    return experts * splits * shards * tokens * algos * sizes * len(space.recompute)


def refusal(work: Workload, space: Space, mesh: Mesh) -> Refusal | None:
    """The first rule that every setting of a mesh breaks."""
    shape = work.shape
    heads, kv, ffn = shape.num_heads, shape.num_kv_heads, shape.ffn_size
    if not space.engine and mesh.dp != mesh.size:
        return Refusal(rule="replica_modes_are_data_parallel", key="devices", value=mesh.size,
                       reason=f"MindSpore's engine cuts no model over {mesh.size} devices here; only replicas run",
                       change="Ascend devices, 2, 4 or a multiple of 8")  # fmt: skip
    common = math.gcd(heads, kv) if shape.num_experts else math.gcd(heads, kv, ffn)
    if heads % mesh.tp:
        return _uncut("heads_over_model_parallel", "model_parallel", mesh.tp, f"{heads} attention heads", common)
    if kv % mesh.tp:
        return _uncut("kv_heads_over_model_parallel", "model_parallel", mesh.tp, f"{kv} key and value heads", common)
    if common % mesh.tp:
        return _uncut("ffn_over_model_parallel", "model_parallel", mesh.tp, f"{ffn} feed-forward columns", common)
    if work.seq_length % mesh.cp:
        seq = work.seq_length
        return _uncut("sequence_over_context_parallel", "context_parallel", mesh.cp, f"{seq} tokens", seq)
    if mesh.pp > shape.num_layers:
        return Refusal(rule="layers_over_stages", key="pipeline_stages", value=mesh.pp,
                       reason=f"{shape.num_layers} layers are fewer than {mesh.pp} stages",
                       change=f"pipeline_stages of at most {shape.num_layers}")  # fmt: skip
    if mesh.pp > 1 and shape.tie_embeddings:
        return Refusal(rule="tied_embeddings_without_pipeline", key="pipeline_stages", value=mesh.pp,
                       reason="token embedding and LM head are one matrix and would lie on two stages",
                       change="pipeline_stages 1, or model.tie_embeddings=false")  # fmt: skip
    total, unit = space.global_batch_size, mesh.dp * (mesh.pp if mesh.pp > 1 else 1)
    if total % mesh.dp:
        nearest = max(unit, round(total / mesh.dp) * mesh.dp)
        return Refusal(rule="batch_comes_out", key="data_parallel", value=mesh.dp,
                       reason=f"a global batch of {total} cannot be dealt out to {mesh.dp} replicas",
                       change=f"--global-batch {nearest}")  # fmt: skip
    if mesh.pp > 1 and total // mesh.dp < mesh.pp:
        return Refusal(rule="micro_batches_fill_pipeline", key="pipeline_stages", value=mesh.pp,
                       reason=f"{total} / data_parallel {mesh.dp} = {total // mesh.dp} micro-batches cannot fill "
                       f"{mesh.pp} stages",
                       change=f"--global-batch {unit}")  # fmt: skip
    found = _infeasible(mesh) if space.engine else None
    if found:
        return Refusal(rule="groups_fit_servers", key="data_parallel", value=mesh.dp,
                       reason=f"MindSpore cannot form the groups over {' x '.join(found)}: of a server's 8 devices it "
                       "groups 1, 2, 4 or all")  # fmt: skip
    return None


def _uncut(rule: str, key: str, degree: int, what: str, common: int) -> Refusal:
    """What a degree does not divide; the degrees that this model allows divide `common`."""
    largest = max(divisors(common, degree))
    return Refusal(rule=rule, key=key, value=degree,
                   reason=f"{what} cannot be split over {degree} devices, at most over {largest}",
                   change=f"{key} {largest}")  # fmt: skip


def _infeasible(mesh: Mesh) -> tuple[str, ...]:
    if mesh.size % 8 or all(degree & (degree - 1) == 0 for degree in mesh.shape):
        return ()  # as the rule: powers of two always fit
    return _infeasible_axes(mesh.pp, mesh.dp, mesh.cp, mesh.tp)


@lru_cache(maxsize=4096)
def _infeasible_axes(pp: int, dp: int, cp: int, tp: int) -> tuple[str, ...]:
    found = infeasible_group(Mesh(pp=pp, dp=dp, cp=cp, tp=tp))
    return found[0] if found else ()


def strategies(work: Workload, space: Space, mesh: Mesh) -> Iterator[list[tuple[Workload, list[int]]]]:
    """Every legal strategy of a legal mesh: lists of (a Workload whose batch is still to be set, sizes of its
    micro-batch, smallest first). In a list only recompute differs, least first."""
    batches = micro_batches(space, mesh)
    for layout in layouts(work, space, mesh):
        base = _laid_out(work, space, layout)
        for shard in shard_levels(space, mesh):
            for tokens_cut in (False, True):
                sizes = [b for b in batches if tokens_cut in sequence_parallel(work, space, mesh, b)]
                if sizes:
                    chosen = _changed(base, optimizer_shard=shard, sequence_parallel=tokens_cut)
                    yield [(_changed(chosen, recompute=recompute), sizes) for recompute in space.recompute]


def _laid_out(work: Workload, space: Space, layout: Layout) -> Workload:
    mesh = layout.mesh
    return replace(
        work,
        mesh=mesh,
        devices_per_node=space.devices_per_node,
        stage_layers=layout.stage_layers,
        expert_parallel=layout.expert_parallel,
        context_parallel_algo=layout.context_parallel_algo,
        vocab_parallel=cuts_vocabulary(work, space, mesh),
        recomputed_layers=None,
        optimizer_shard_size=0,
        schedule="1f1b",
        overlap_gradients=work.overlap_gradients and space.engine and mesh.dp * mesh.cp > 1,
    )


def with_batch(work: Workload, space: Space, size: int) -> Workload:
    """The space's batch in micro-batches of a size."""
    return _changed(work, micro_batch_size=size, micro_batch_num=space.global_batch_size // work.mesh.dp // size)


def _changed(work: Workload, **values: Any) -> Workload:
    """As `dataclasses.replace`, in a tenth of its time: nothing of a Workload is worked out when it is made."""
    other = object.__new__(Workload)
    other.__dict__.update(work.__dict__, **values)
    return other


def layouts(work: Workload, space: Space, mesh: Mesh) -> Iterator[Layout]:
    """Splits into stages, expert groups and ways of context parallel that are legal on a legal mesh."""
    for stage_layers in splits(work, space, mesh.pp):
        for experts in expert_degrees(work, space, mesh):
            for algo in _algos(work, mesh):
                yield Layout(mesh=mesh, stage_layers=stage_layers, expert_parallel=experts,
                             context_parallel_algo=algo)  # fmt: skip


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
    shape = work.shape
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    matrices = 3 if shape.activation == "swiglu" else 2
    width = shape.experts_per_token * shape.expert_ffn_size if shape.num_experts else shape.ffn_size
    return shape.padded_vocab_size / (2 * q + 2 * kv + matrices * width)


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
