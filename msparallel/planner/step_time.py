"""Seconds of a training step on paper, and where they go.

In: a Workload and a hardware profile. Out: a StepTime, whose parts add up to the step.

>>> time = step_time(workload_of(plan), plan.hardware)
>>> round(time.step_s, 2), round(time.bubble_s / time.step_s, 2)
(9.43, 0.06)

The stage that takes longest for a micro-batch sets the pace. With m micro-batches, v groups of layers a stage, and a
stage's seconds for a micro-batch t_i = forward + recomputation + backward, messages included,

    1F1B, GPipe       m max(t_i) + (sum(t_i) - max(t_i))
    interleaved       m max(t_i) + (sum(t_i) - max(t_i)) / v

(for equal stages Narayanan et al., arXiv:2104.04473, section 2.2: a bubble of (p - 1) / (v m)). The second term is the
bubble. Behind it come what is left of the gradients' reduction, the update, and the gathering of updated weights:
they are the slowest stage's, since the global norm makes all stages wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from msparallel.hardware import Hardware
from msparallel.hardware.speed import Speed
from msparallel.model.shape import ModelShape
from msparallel.planner.cut import ITEM_BYTES, Cut, LayerNumbers, cut_of, layer_numbers, token_numbers
from msparallel.planner.ends import end_passes
from msparallel.planner.layer_time import Pass, layer_passes, speed_of
from msparallel.planner.workload import Workload


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step on the stage that ends it; the parts add up to `step_s`.

    Attributes:
        compute_parts_s: what the forward and backward passes run: products, attention, memory (operators that only
            move it).
        peak_parts_s: what products and attention would take at the peak.
        recompute_s: what is computed again.
        exposed_s: axis -> messages that computation waits for: tp, cp, ep, pp, dp.
        bubble_s: waiting for other stages, uneven ones too.
        optimizer_s: the update of the weights.
        flops: of the model in a step, all devices together, recomputation left out.
    """

    compute_parts_s: dict[str, float]
    peak_parts_s: dict[str, float]
    recompute_s: float
    exposed_s: dict[str, float]
    bubble_s: float
    optimizer_s: float
    flops: float

    @property
    def compute_s(self) -> float:
        return sum(self.compute_parts_s.values())

    @property
    def step_s(self) -> float:
        return self.compute_s + self.recompute_s + sum(self.exposed_s.values()) + self.bubble_s + self.optimizer_s


class Pace(NamedTuple):
    """A micro-batch in the pipeline.

    Attributes:
        forward, backward, again: of the slowest stage.
        others_s: of all other stages together.
        hop_s: from a stage to the next one, over the slowest border.
    """

    forward: Pass
    backward: Pass
    again: Pass
    others_s: float
    hop_s: float

    @property
    def seconds(self) -> float:
        return self.forward.seconds + self.again.seconds + self.backward.seconds


class Ending(NamedTuple):
    """What the slowest stage does with its gradients.

    Attributes:
        each_s: reduction and gathering that every micro-batch needs.
        reduce_s: reduction after the last one.
        gather_s: of updated weights.
        optimizer_s: the update.
    """

    each_s: float
    reduce_s: float
    gather_s: float
    optimizer_s: float


def step_time(work: Workload, hardware: Hardware) -> StepTime:
    """Of a training step."""
    speed, cut, mesh = speed_of(hardware, work.devices_per_node), cut_of(work), work.mesh
    count, groups = work.micro_batch_num, work.virtual_stages
    pace = pipeline_pace(speed, cut, mesh.pp, mesh.dp, work.stage_layers, work.recompute, work.recomputed_layers)
    ending = step_ending(
        speed, cut, mesh.pp, mesh.dp, work.stage_layers, work.optimizer_shard, work.optimizer_shard_size
    )
    forward, backward, again = pace.forward, pace.backward, pace.again
    each_s, reduce_s = ending.each_s, ending.reduce_s
    if work.overlap_gradients:
        each_s = max(each_s - pace.seconds, 0.0)
        reduce_s = max(reduce_s - backward.seconds, 0.0)
    hops = 2 * (mesh.pp - 1)
    if cut.stack.framework != "mindspore" and groups == 1 and mesh.pp > 1:  # others wait for what they send
        hops += 2 * (count - 1)
    peak = speed.peak(cut.dtype)
    return StepTime(
        compute_parts_s={
            "products": count * (forward.products_s + backward.products_s),
            "attention": count * (forward.attention_s + backward.attention_s),
            "memory": count * (forward.memory_s + backward.memory_s),
        },
        peak_parts_s={
            "products": count * (forward.flops + backward.flops) / peak,
            "attention": count * (forward.attention_flops + backward.attention_flops) / peak,
        },
        recompute_s=count * again.compute_s,
        exposed_s={
            "tp": count * (forward.tp_s + backward.tp_s + again.tp_s),
            "cp": count * (forward.cp_s + backward.cp_s + again.cp_s),
            "ep": count * (forward.ep_s + backward.ep_s + again.ep_s),
            "pp": hops * pace.hop_s,
            "dp": count * each_s + reduce_s + ending.gather_s,
        },
        bubble_s=pace.others_s / groups,
        optimizer_s=ending.optimizer_s,
        flops=model_flops(work.shape, work.seq_length) * work.global_batch_size,
    )


@lru_cache(maxsize=65536)
def pipeline_pace(
    speed: Speed,
    cut: Cut,
    pp: int,
    dp: int,
    stage_layers: tuple[int, ...],
    recompute: str,
    recomputed_layers: tuple[int, ...] | None,
) -> Pace:
    """Stages of a pipeline; `stage_layers` and `recomputed_layers` as in Workload."""
    none, layer = Pass(), layer_passes(speed, cut, recompute)
    ends = end_passes(speed, cut)
    slowest, whole_s = None, 0.0
    for stage in range(pp):
        layers = sum(stage_layers[stage::pp])
        recomputed = layers if recomputed_layers is None else recomputed_layers[stage]
        forward, backward = none.plus(layer.forward, layers), none.plus(layer.backward, layers)
        if stage == 0:
            forward, backward = forward.plus(ends.embedding[0]), backward.plus(ends.embedding[1])
        if stage == pp - 1:
            forward, backward = forward.plus(ends.head[0]), backward.plus(ends.head[1])
        found = Pace(forward, backward, none.plus(layer.again, recomputed), 0.0, 0.0)
        whole_s += found.seconds
        if slowest is None or found.seconds > slowest.seconds:
            slowest = found
    assert slowest is not None
    size = ITEM_BYTES[cut.dtype] * cut.stream_tokens * cut.shape.hidden_size
    hop_s = speed.transfer(pp, dp * cut.cp * cut.tp, size) if pp > 1 else 0.0
    return slowest._replace(others_s=whole_s - slowest.seconds, hop_s=hop_s)


@lru_cache(maxsize=65536)
def step_ending(
    speed: Speed,
    cut: Cut,
    pp: int,
    dp: int,
    stage_layers: tuple[int, ...],
    level: str,
    shard_size: int,
) -> Ending:
    """Gradients and optimizer of the stage that takes longest with them."""
    return max(
        (
            _stage_ending(speed, cut, dp, _stage_numbers(cut, pp, stage_layers, stage), level, shard_size)
            for stage in range(pp)
        ),
        key=sum,
    )


def _stage_numbers(cut: Cut, pp: int, stage_layers: tuple[int, ...], stage: int) -> LayerNumbers:
    """The same of a rank of a stage, tables included."""
    shape, layers, layer = cut.shape, sum(stage_layers[stage::pp]), layer_numbers(cut)
    table = shape.padded_vocab_size * shape.hidden_size / (cut.tp if cut.vocab_parallel else 1)
    tables = (stage == 0) + (stage == pp - 1 and (not shape.tie_embeddings or pp > 1))
    return LayerNumbers(layers * layer.dense + tables * table, layers * layer.experts)


def _stage_ending(
    speed: Speed, cut: Cut, dp: int, numbers: LayerNumbers, level: str, shard_size: int
) -> Ending:
    stack, item = cut.stack, ITEM_BYTES[cut.dtype]
    copies = dp * cut.cp
    expert_copies = copies * (1 if stack.experts_cut_by_tp else cut.tp) // cut.ep
    each_s = reduce_s = gather_s = optimizer_s = 0.0
    update_bytes = 2 * stack.optimizer_bytes + 4 * stack.gradient_bytes + 2 * stack.weight_bytes
    for count, degree, stride in (
        (numbers.dense, copies, cut.tp),
        (numbers.experts, expert_copies, cut.ep * (cut.tp if stack.experts_cut_by_tp else 1)),
    ):
        if not count:
            continue
        size = stack.gradient_bytes * count
        if level == "none" or degree < 2:
            optimizer_s += speed.moved(update_bytes * count)
            reduce_s += speed.seconds("AllReduce", degree, stride, size)
            continue
        pieces = min(shard_size, degree) if shard_size > 1 and degree % shard_size == 0 else degree
        optimizer_s += speed.moved(update_bytes * count / pieces)
        scattered_s = speed.seconds("ReduceScatter", pieces, stride, size)
        scattered_s += speed.seconds("AllReduce", degree // pieces, stride * pieces, size / pieces)
        gathered_s = speed.seconds("AllGather", pieces, stride, item * count)
        if level == "level1":
            reduce_s, gather_s = reduce_s + scattered_s, gather_s + gathered_s
        elif level == "level2":
            each_s, gather_s = each_s + scattered_s, gather_s + gathered_s
        else:
            each_s += scattered_s + 2 * gathered_s
    return Ending(each_s, reduce_s, gather_s, optimizer_s)


@lru_cache(maxsize=4096)
def model_flops(shape: ModelShape, seq: int, *, whole_attention: bool = False) -> float:
    """Operations of the model for one sequence, forward and backward, recomputation left out, as Megatron-LM counts
    them (megatron/training/training.py): products, logits, and attention's half below the diagonal. Until 2024 its
    counter took attention whole, and so do tables of software that grew from it then.

    Args:
        whole_attention: count all pairs of query and key.
    """
    scores = (4 if whole_attention else 2) * seq * shape.num_heads * shape.head_dim
    layer = 2 * token_numbers(shape) + scores
    return 3.0 * seq * (shape.num_layers * layer + 2 * shape.hidden_size * shape.padded_vocab_size)
