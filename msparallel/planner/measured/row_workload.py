"""What a row of a table of measurements says about the run: a Workload.

In: a row's cells, its model's family. Out: a Workload, with the Stack that the row's source and flags name. Raises
CannotUse with the column and the rule where a number is missing, contradicts another or has no formula.
"""

from __future__ import annotations

import re
from typing import Literal

from msparallel.errors import short
from msparallel.hardware import Dtype
from msparallel.mesh import Mesh
from msparallel.model.shape import ModelShape
from msparallel.planner.measured.cells import CannotUse, Cells, whole_numbers
from msparallel.planner.measured.families import Family
from msparallel.planner.stack import MINDFORMERS, MINDFORMERS_HALF, Stack, megatron, torchtitan
from msparallel.planner.workload import ShardLevel, Workload

MOST_DEVICES, MOST_LAYERS = 131_072, 10_000
"""What no run has: a slip of the pen."""


def workload_of_row(row: Cells, family: Family) -> Workload:
    source, flags = row.text("source").lower(), row.flags
    written = row.text("dtype")
    dtypes: dict[str, Dtype] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "bf16+fp8": "bfloat16"}
    if written not in dtypes:
        raise CannotUse(f"column dtype: {short(written, 40)!r} is none of {', '.join(dtypes)}")
    dtype = dtypes[written]
    mesh = _mesh(row)
    fused = _overlaps_tensor(row)
    stack = _stack(source, flags, dtype, notes=row.text("notes", ""), fused=fused, tp=mesh.tp)
    shape = _shape(row, family, stack)
    experts_on = row.count("ep", 1)
    if shape.num_heads % mesh.tp:
        raise CannotUse(f"column tp: {shape.num_heads} heads cannot be cut over {mesh.tp} devices")
    sharing = mesh.dp * mesh.cp * mesh.tp
    if shape.num_experts % experts_on or sharing % experts_on or (experts_on > 1 and not shape.num_experts):
        raise CannotUse(f"column ep: {experts_on} for {shape.num_experts} experts on {sharing} devices of a stage")
    groups = _stage_layers(row, mesh.pp)
    size, number = _batch(row, mesh.dp, len(groups), stack)
    recompute, recomputed = _recompute(row, mesh.pp, groups)
    zero = row.text("zero")
    levels: dict[str, ShardLevel] = {"0": "none", "1": "level1", "2": "level2", "3": "level3"}
    level = re.match(r"(\d+)(?:\(.*)?$", zero)
    if level is None or level[1] not in levels:
        raise CannotUse(f"column zero: {short(zero, 40)!r} is none of 0, 1, 2, 3")
    seq, flash = row.count("seq_len"), "flash_attn=False" not in row.text("notes", "")
    if "mindspeed" in source:
        flash = "use-flash-attn" in flags
    if "arxiv" in source:
        flash = False
    masks, tables = _attention_tables(row, family, mesh, seq, size, flash=flash)
    shard_size = re.search(r"weight_shard_size=(\d+)", zero)
    return Workload(
        shape=shape,
        mesh=mesh,
        devices_per_node=16 if row.text("profile", "") == "atlas-900-a3" else 8,
        stage_layers=groups,
        micro_batch_size=size,
        micro_batch_num=number,
        seq_length=seq,
        dtype=dtype,
        stack=stack,
        expert_parallel=experts_on,
        sequence_parallel=mesh.tp > 1 and (row.yes("sequence_parallel") or stack.framework == "fsdp"),
        vocab_parallel=True,
        # SimuMax's runs exchange heads for tokens (its summary of B200 runs).
        context_parallel_algo="ulysses" if "ulysses" in row.text("model").lower() or "simumax" in source else "ring",
        attention="flash" if flash else "plain",
        recompute=recompute,
        recomputed_layers=recomputed,
        optimizer_shard=levels[level[1]],
        optimizer_shard_size=int(shard_size[1]) if shard_size else 0,
        overlap_gradients="overlap-grad-reduce" in flags or stack.framework == "fsdp",
        overlap_tensor=fused,
        layer_table_bytes=masks,
        table_bytes=tables,
    )


def _overlaps_tensor(row: Cells) -> bool:
    """MindSpeed fuses messages into products (mc2, coc), and so does torchtitan (async TP). MindFormers'
    fine_grain_interleave, whose halves of a micro-batch send by turns, is not counted: halves make thinner products,
    and over its published runs one takes what the other gains."""
    fused = {"use-mc2", "use-ascend-coc", "use-ascend-mc2"} & set(row.flags)
    notes = row.text("notes", "").lower().replace(" ", "")
    return bool(fused) or "asynctp" in notes


def _stack(source: str, flags: dict[str, str], dtype: Dtype, *, notes: str, fused: bool, tp: int) -> Stack:
    if "torchtitan" in source:
        return torchtitan(keeps_gathered=not fused, cut_vocabulary=tp > 1)
    if "mindformers" in source or "mindspore-ai" in source:
        return MINDFORMERS_HALF if re.search(r"param_init=b?float16", notes) else MINDFORMERS
    if "simumax" in source:
        return megatron(dtype, transformer_engine=True)
    # From 26.0 on nothing of MindSpeed-LLM reads o2-gradient; its branches 2.0 to 2.3 do.
    reads_o2_gradient = re.search(r"branch (1|2)\.", source) is not None
    return megatron(
        dtype,
        mindspeed="mindspeed" in source,
        reuse_fp32_param="reuse-fp32-param" in flags,
        half_optimizer="o2-optimizer" in flags,
        half_gradients="o2-gradient" in flags and reads_o2_gradient,
    )


def _mesh(row: Cells) -> Mesh:
    """Degrees of the run; a cluster has at most 131,072 devices."""
    mesh = Mesh(pp=row.count("pp"), dp=row.count("dp"), cp=row.count("cp", 1), tp=row.count("tp"))
    devices = row.count("device_count", mesh.size)
    if devices != mesh.size:
        raise CannotUse(f"column device_count: {devices}, but the degrees are for {mesh}")
    if devices > MOST_DEVICES:
        raise CannotUse(f"columns dp, tp, pp, cp: {devices} devices are more than {MOST_DEVICES}")
    return mesh


def _shape(row: Cells, family: Family, stack: Stack) -> ModelShape:
    flags, heads, hidden = row.flags, row.count("heads"), row.count("hidden")
    facts = dict(family.facts)
    known = facts.get("num_experts")
    experts = row.count("num_experts", known) if known or row.has("num_experts") else 0
    if experts:
        facts["experts_per_token"] = top = row.count("top_k", facts.get("experts_per_token"))
        if top > experts:
            raise CannotUse(f"column top_k: {top} of {experts} experts")
        facts.setdefault("expert_ffn_size", row.count("ffn"))
        facts["num_experts"] = experts
    if stack.name == "mindspeed":
        facts["tie_embeddings"] = "untie-embeddings-and-output-weights" not in flags
    vocab = row.count("vocab", family.vocab_size or None)
    head_dim = hidden // heads
    if "kv-channels" in flags:
        (head_dim, *more) = whole_numbers(flags["kv-channels"], "flag kv-channels")
        if more or not 1 <= head_dim <= hidden:
            raise CannotUse(f"flag kv-channels: {short(flags['kv-channels'], 40)} is no width of a head")
    elif hidden % heads:
        raise CannotUse(f"column heads: {hidden} (hidden) is no multiple of {heads}")
    kv_heads = row.count("kv_heads", heads)
    if heads % kv_heads:
        raise CannotUse(f"column kv_heads: {heads} (heads) is no multiple of {kv_heads}")
    gelu = facts.get("activation") == "gelu"
    return ModelShape(
        num_layers=row.count("layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=row.count("ffn", 4 * hidden if gelu else None),
        vocab_size=vocab,
        max_positions=row.count("seq_len"),
        **facts,
    )


def _stage_layers(row: Cells, stages: int) -> tuple[int, ...]:
    """Layers of each group. `vpp` is the number of groups a stage has; layers that do nothing are left out."""
    layers, virtual, flags = row.count("layers"), row.count("vpp", 1 if stages == 1 else None), row.flags
    groups = stages * virtual
    if not groups <= layers <= MOST_LAYERS:
        raise CannotUse(f"column layers: {layers} layers in {groups} groups; at least one each, at most {MOST_LAYERS}")
    offsets = re.search(r"offset=\[([-\d, ]+)\]", row.text("notes", ""))
    if "num-layer-list" in flags:
        listed = whole_numbers(flags["num-layer-list"], "flag num-layer-list")
        if len(listed) != groups or sum(listed) != layers or min(listed) < 1:
            raise CannotUse(f"flag num-layer-list: {listed} for {layers} layers in {groups} groups")
    elif offsets and stages > 1:
        listed = [layers // groups + more for more in whole_numbers(offsets[1], "offset")]
        if len(listed) != groups or sum(listed) != layers or min(listed) < 1:
            raise CannotUse(f"offset {offsets[1]}: not for {layers} layers in {groups} groups")
    elif layers % groups:
        if "torchtitan" not in row.text("source").lower():
            raise CannotUse(f"column layers: {layers} layers in {groups} groups are not equal and not listed")
        listed = [layers // groups + (group < layers % groups) for group in range(groups)]
    else:
        listed = [layers // groups] * groups
    ends = [sum(listed[: group + 1]) for group in range(groups)]
    if "noop-layers" in flags:
        for layer in set(whole_numbers(flags["noop-layers"], "flag noop-layers")):
            if not 0 <= layer < layers:
                raise CannotUse(f"flag noop-layers: layer {layer} of {layers}")
            listed[next(group for group, end in enumerate(ends) if layer < end)] -= 1
    return tuple(listed)


def _batch(row: Cells, replicas: int, groups: int, stack: Stack) -> tuple[int, int]:
    """Sequences of a micro-batch, micro-batches of a step."""
    size, whole = row.count("micro_batch"), row.count("global_batch")
    if whole % (replicas * size):
        raise CannotUse(f"column global_batch: {whole} is no multiple of dp {replicas} x micro_batch {size}")
    number = whole // (replicas * size)
    if stack.framework == "fsdp" and groups > 1:
        # Its tables have the sequences of a replica; its pipeline takes them in as many parts as there are stages.
        local = size * number
        if local % groups:
            raise CannotUse(f"column micro_batch: {local} sequences of a replica are no multiple of {groups} stages")
        return local // groups, groups
    return size, number


def _recompute(
    row: Cells, stages: int, groups: tuple[int, ...]
) -> tuple[Literal["none", "selective", "full"], tuple[int, ...] | None]:
    """What is computed again, and how many layers of each stage; None: all of them.

    `full/block/N` is Megatron's: the first N layers of each group of layers, or of each stage with
    enable-recompute-layers-per-pp-rank; `full/uniform/N` keeps what every Nth layer reads. `activation_function`
    (MindSpeed) computes the feed-forward activation again: counted as nothing.
    """
    written = row.text("recompute")
    layers = [sum(groups[stage::stages]) for stage in range(stages)]
    block, listed = re.match(r"full/block/(\d+)", written), re.search(r"\[([\d, ]+)\]", written)
    if written.startswith("none") or written == "activation_function":
        return "none", None
    if block:
        each = int(block[1]) * (1 if "enable-recompute-layers-per-pp-rank" in row.flags else len(groups) // stages)
        return "full", tuple(min(each, n) for n in layers)
    if listed and "e.g." not in written:
        numbers = whole_numbers(listed[1], "column recompute")
        if len(numbers) != stages:
            raise CannotUse(f"column recompute: {len(numbers)} numbers for {stages} stages")
        capped = tuple(min(number, n) for number, n in zip(numbers, layers, strict=True))
        return ("selective" if written.startswith("select") else "full"), capped
    if re.match(r"full/uniform/1\b|full( AC|\+select True)?$", written):
        return "full", None
    if written == "selective":
        return "selective", None
    raise CannotUse(f"column recompute: {short(written, 60)!r} has no formula")


def _attention_tables(
    row: Cells, family: Family, mesh: Mesh, seq: int, batch: int, *, flash: bool
) -> tuple[int, int]:
    """Bytes that stay from step to step: for each layer, and once.

    MindSpeed-LLM's layers of its old model, and all layers with a bias on scores, keep a mask of a byte for each pair
    of positions. The bias stands in 16 bits for each head: as it is, with the future masked, and so for each sequence.
    """
    legacy = "legacy" in row.text("model").lower()
    if "mindspeed" not in row.text("source").lower() or not flash or not (legacy or family.alibi):
        return 0, 0
    heads = row.count("heads") // mesh.tp
    bias = (2 + batch) * heads * seq * seq * 2 if family.alibi else 0
    return seq * seq, bias
