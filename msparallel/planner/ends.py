"""Seconds of what stands before the first layer and behind the last one: embedding, final norm, head and loss.

In: a Speed, a Cut. Out: Ends, a forward and a backward `Pass` of one rank and micro-batch for each.

>>> work = workload_of(resolve(load_recipe("llama2_13b_dp4_tp4_pp2")))
>>> ends = end_passes(speed_of(load_hardware("atlas_800t_a2"), 8), cut_of(work))
>>> round(ends.head[0].products_s * 1e3, 1)
1.3
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from msparallel.hardware.speed import Product, Speed
from msparallel.planner.cut import ITEM_BYTES, Cut
from msparallel.planner.layer_time import Pass

LOGIT_FORWARD, LOGIT_BACKWARD = 14, 12
"""Bytes for each logit with few kernels: the product's result is read for the maximum, shifted, raised and kept in
float32, summed; backward it is scaled, the label's taken off, and cast. Times a stack's `memory_passes`."""


class Ends(NamedTuple):
    """What the first stage has beside its layers, and the last one: forward and backward."""

    embedding: tuple[Pass, Pass]
    head: tuple[Pass, Pass]


@lru_cache(maxsize=65536)
def end_passes(speed: Speed, cut: Cut) -> Ends:
    """Embedding, final norm, logits and loss."""
    shape, item, h = cut.shape, ITEM_BYTES[cut.dtype], cut.shape.hidden_size
    launch_s = speed.hardware.launch.kernel_us * 1e-6
    passes = cut.stack.memory_passes
    stream, rows = cut.stream_tokens * h, shape.padded_vocab_size
    local = rows / cut.tp if cut.vocab_parallel else float(rows)
    table_bytes = 2 * cut.stack.gradient_bytes * local * h * cut.accumulates
    wide = max(cut.stack.weight_bytes, item)

    looked_up_s = speed.moved((wide + item) * stream) + 2 * launch_s
    sum_s = 0.0
    if cut.vocab_parallel:
        op = "ReduceScatter" if cut.sequence_parallel else "AllReduce"
        sum_s = speed.seconds(op, cut.tp, 1, wide * cut.tokens * h)
    embedding = Pass(memory_s=looked_up_s, tp_s=sum_s)
    embedding_back = Pass(
        memory_s=speed.moved((wide + item) * stream + table_bytes) + 2 * launch_s,
        tp_s=sum_s if cut.sequence_parallel else 0.0,
    )

    m, n = (cut.tokens, -(-rows // cut.tp)) if cut.vocab_parallel else (-(-cut.tokens // cut.tp), rows)
    logits = float(m) * n
    forward_s = speed.product(Product(1, m, h, n, cut.dtype)) + launch_s
    backward_s = (
        speed.product(Product(1, m, n, h, cut.dtype)) + speed.product(Product(1, h, m, n, cut.dtype)) + 2 * launch_s
    )
    gathered_s, loss_s = 0.0, 0.0
    if cut.vocab_parallel:
        loss_s = speed.seconds("AllReduce", cut.tp, 1, 4 * cut.tokens)
        op = "AllGather" if cut.sequence_parallel else "AllReduce"
        gathered_s = speed.seconds(op, cut.tp, 1, item * cut.tokens * h)
    head = Pass(
        products_s=forward_s,
        memory_s=speed.moved(2 * item * stream + LOGIT_FORWARD * passes * logits) + 8 * launch_s,
        tp_s=(gathered_s if cut.sequence_parallel else 0.0) + 3 * loss_s,
        flops=2 * logits * h,
    )
    head_back = Pass(
        products_s=backward_s,
        memory_s=speed.moved(3 * item * stream + LOGIT_BACKWARD * passes * logits + table_bytes) + 8 * launch_s,
        tp_s=gathered_s + 2 * loss_s,
        flops=4 * logits * h,
    )
    return Ends((embedding, embedding_back), (head, head_back))
