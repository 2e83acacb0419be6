"""What one layer of a model takes on one rank for one micro-batch, operator by operator, on paper.

In: a Workload and a hardware profile. Out: `Pass`es: forward, backward and computed again, each with seconds of matrix
products, attention, operators that only move memory, and of messages that computation waits for, by axis. The speeds
are `hardware/speed.py`'s, those that `simulate` gives the operators of compiled graphs.

>>> layer = layer_time(workload_of(resolve(load_recipe("llama2_13b_dp4_tp4_pp2"))), load_hardware("atlas_800t_a2"))
>>> round(layer.forward.products_s * 1e3, 1), round(layer.forward.tp_s * 1e3, 1)
(2.9, 1.1)

A rank has T = b s / cp tokens of a micro-batch, Z = T / tp of them where sequence parallel cuts them, and 1 / tp of
every matrix; e bytes a number. Forward:

- products: [T, h] x [h, (a + 2 k) d / tp], [T, a d / tp] x [a d / tp, h], and the feed-forward matrices likewise;
  backward each of them twice, for the gradients of what it reads and of its weights.
- attention: 4 T s a d / tp operations, half of them where the kernel skips what the mask hides; backward 2.5 times as
  many (Dao et al., FlashAttention, 2022).
- bytes: norms read and write Z h, residuals read two and write one, rotary positions and transposes read and write
  heads, the activation reads what it multiplies. Backward a gradient more is read for each input.
- each micro-batch of several adds its gradients to their sum: the sum is read and written.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from msparallel.hardware import Dtype, Hardware
from msparallel.hardware.speed import Product, Speed
from msparallel.planner.cut import (
    ITEM_BYTES,
    Cut,
    cut_of,
    expert_rows,
    expert_share,
    layer_numbers,
    part,
    sent_rows,
)
from msparallel.planner.workload import Workload

ATTENTION_BACKWARD = 2.5
"""Five products for two: Dao et al., FlashAttention, 2022."""
SCORES_FORWARD, SCORES_BACKWARD = 4, 6
"""Bytes that attention without a fused kernel moves for each score in 16 bits, beside what its products read and write:
one kernel scales, masks and normalises; its gradient reads the result as well."""
DROPOUT = 5
"""Bytes of dropout for each score, forward and again backward: read, written, and a byte that says which stayed."""
FORWARD_KERNELS = 3 / 8
"""Of a layer's operators, those of the forward pass; a gradient is two operators for one, or more."""


class Pass(NamedTuple):
    """Seconds of a rank for one layer and micro-batch in one direction; they follow one another.

    Attributes:
        products_s, attention_s, memory_s: matrix products, fused attention, operators that only move memory.
        tp_s, cp_s, ep_s: messages over an axis that computation waits for.
        flops, attention_flops: of the products, of attention.
    """

    products_s: float = 0.0
    attention_s: float = 0.0
    memory_s: float = 0.0
    tp_s: float = 0.0
    cp_s: float = 0.0
    ep_s: float = 0.0
    flops: float = 0.0
    attention_flops: float = 0.0

    @property
    def seconds(self) -> float:
        return self.products_s + self.attention_s + self.memory_s + self.tp_s + self.cp_s + self.ep_s

    @property
    def compute_s(self) -> float:
        return self.products_s + self.attention_s + self.memory_s

    def plus(self, other: Pass, times: float = 1.0) -> Pass:
        """Both after one another, the other one `times`."""
        return Pass(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


class LayerTime(NamedTuple):
    """A layer's passes; `again` is what recomputation adds before the backward pass."""

    forward: Pass
    backward: Pass
    again: Pass


def layer_time(work: Workload, hardware: Hardware) -> LayerTime:
    """Of any layer: all are alike."""
    return layer_passes(speed_of(hardware, work.devices_per_node), cut_of(work), work.recompute)


@lru_cache(maxsize=64)
def speed_of(hardware: Hardware, devices_per_node: int) -> Speed:
    return Speed(hardware, devices_per_node)


@lru_cache(maxsize=65536)
def layer_passes(speed: Speed, cut: Cut, recompute: str) -> LayerTime:
    """`recompute`: none, selective (the attention core) or full."""
    layer = _Layer(speed, cut)
    forward, backward = layer.one_way(backward=False), layer.one_way(backward=True)
    if recompute == "full":
        again = forward._replace(tp_s=layer.again_tp_s())
    elif recompute == "selective":
        again = layer.attention_again()
    else:
        again = Pass()
    return LayerTime(forward, backward, again)


class _Layer:
    def __init__(self, speed: Speed, cut: Cut) -> None:
        self.speed, self.cut = speed, cut
        self.item = ITEM_BYTES[cut.dtype]
        self.launch_s = speed.hardware.launch.kernel_us * 1e-6
        self.launches_s = cut.stack.kernels * self.launch_s

    def one_way(self, *, backward: bool) -> Pass:
        """Forward, or backward without what is computed again."""
        products_s, flops = self.products(self.matrices(), backward=backward)
        attention_s, attention_memory_s, attention_flops = self.attention(backward=backward)
        experts = self.experts(backward=backward)
        kernels = 1 - FORWARD_KERNELS if backward else FORWARD_KERNELS
        return Pass(
            products_s=products_s + experts.products_s,
            attention_s=attention_s,
            memory_s=self.moved(self.bytes(backward=backward))
            + attention_memory_s
            + experts.memory_s
            + kernels * self.launches_s,
            tp_s=self.tp_message_s(4 if self.cut.sequence_parallel else 2, products_s),
            cp_s=self.cp_s(attention_s, backward=backward),
            ep_s=experts.ep_s,
            flops=flops + experts.flops,
            attention_flops=attention_flops,
        )

    # Products

    def matrices(self) -> list[tuple[int, int, int]]:
        """[m, k] x [k, n] of the forward pass; experts apart."""
        cut, shape = self.cut, self.cut.shape
        t, h, tokens = cut.tp, shape.hidden_size, cut.tokens
        heads, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        into = [heads, keys, keys]
        found = []
        found += [(tokens, h, part(n, t)) for n in ([sum(into)] if cut.stack.fused_blocks else into)]
        found.append((tokens, part(heads, t), h))
        if not shape.num_experts:
            wide = [shape.ffn_size] * (2 if shape.activation == "swiglu" else 1)
            found += [(tokens, h, part(n, t)) for n in ([sum(wide)] if cut.stack.fused_blocks else wide)]
            found.append((tokens, part(shape.ffn_size, t), h))
        return found

    def products(
        self, matrices: list[tuple[int, int, int]], *, backward: bool, count: int = 1
    ) -> tuple[float, float]:
        """Seconds and operations of `count` of each; backward of both gradients instead."""
        if backward:
            matrices = [turned for m, k, n in matrices for turned in ((m, n, k), (k, m, n))]
        return (
            sum(self.product_s(count, *lengths) for lengths in matrices),
            sum(2.0 * count * m * k * n for m, k, n in matrices),
        )

    def product_s(self, count: int, m: int, k: int, n: int, dtype: Dtype | None = None) -> float:
        product = Product(count, m, k, n, dtype or self.cut.dtype)
        moved = self.moved(self.item * count * (m * k + k * n + m * n))
        return max(moved, self.speed.product(product)) + self.launch_s

    # Attention

    def attention(self, *, backward: bool) -> tuple[float, float, float]:
        """Seconds of the kernel, seconds of memory beside it, operations."""
        cut, shape = self.cut, self.cut.shape
        heads = part(shape.num_heads, cut.tp)
        scores = float(cut.tokens) * cut.seq * heads
        if cut.attention == "plain":
            rows, count = cut.tokens // cut.batch, cut.batch * heads
            pairs = 2 if backward else 1
            products_s = 2 * pairs * self.product_s(count, rows, shape.head_dim, cut.seq)
            bytes_ = SCORES_BACKWARD if backward else SCORES_FORWARD
            bytes_ = scores * self.item / 2 * (bytes_ + (DROPOUT if shape.position == "learned" else 0))
            return products_s, self.moved(bytes_), pairs * 4 * scores * shape.head_dim
        flops = 4 * scores * shape.head_dim * (ATTENTION_BACKWARD if backward else 1) * self.seen_share()
        return self.speed.attention(flops, cut.dtype, backward=backward) + self.launch_s, 0.0, flops

    def seen_share(self) -> float:
        """Of all pairs of query and key, those that the rank with most of them computes."""
        cut = self.cut
        if not cut.stack.skips_masked_keys:
            return 1.0
        if cut.context_parallel_algo == "all_gather":  # the last part of a sequence sees all that came before
            return (2 * cut.cp - 1) / (2 * cut.cp)
        return 0.5

    def attention_again(self) -> Pass:
        seconds, memory_s, flops = self.attention(backward=False)
        return Pass(attention_s=seconds, memory_s=memory_s, attention_flops=flops)

    # Memory

    def moved(self, bytes_: float) -> float:
        return self.speed.moved(bytes_)

    def passed(self, numbers: float) -> float:
        """Bytes of numbers that fused operators would read and write once."""
        return self.item * numbers * self.cut.stack.memory_passes

    def head_numbers(self) -> float:
        """Of queries, keys and values together on this rank."""
        shape = self.cut.shape
        return self.cut.tokens * part(shape.num_heads + 2 * shape.num_kv_heads, self.cut.tp) * shape.head_dim

    def bytes(self, *, backward: bool) -> float:
        """What operators beside products and attention move."""
        cut, shape = self.cut, self.cut.shape
        streams, gated, plain = (12, 5, 3) if backward else (10, 3, 2)
        stream = cut.stream_tokens * shape.hidden_size
        heads = (4 if shape.position == "rope" else 2) * self.head_numbers()
        wide = 0.0 if shape.num_experts else (gated if shape.activation == "swiglu" else plain) * self.ffn_numbers()
        return self.passed(streams * stream + heads + wide) + (self.sum_bytes() if backward else self.cast_bytes())

    def ffn_numbers(self) -> float:
        return self.cut.tokens * part(self.cut.shape.ffn_size, self.cut.tp)

    def cast_bytes(self) -> float:
        """Weights that are kept wider than products take them are cast for each micro-batch."""
        wide = self.cut.stack.weight_bytes
        return sum(layer_numbers(self.cut)) * (wide + self.item) if wide > self.item else 0.0

    def sum_bytes(self) -> float:
        """Gradients of a micro-batch are added to their sum, where there is one."""
        return sum(layer_numbers(self.cut)) * 2 * self.cut.stack.gradient_bytes * self.cut.accumulates

    # Messages

    def tp_message_s(self, count: int, products_s: float) -> float:
        """`count` messages of e T h bytes that computation waits for; what is fused hides behind the products."""
        cut = self.cut
        size = self.item * cut.tokens * cut.shape.hidden_size
        op = "AllGather" if cut.sequence_parallel else "AllReduce"
        whole = count * self.speed.seconds(op, cut.tp, 1, size)
        if not cut.overlap_tensor:
            return whole
        shown = self.speed.hardware.fused_exposed
        return max(whole - products_s, 0.0) + shown * min(whole, products_s)

    def again_tp_s(self) -> float:
        """Without the last sum of the layer, which nothing in the layer reads."""
        products_s, _ = self.products(self.matrices(), backward=False)
        return self.tp_message_s(3 if self.cut.sequence_parallel else 1, products_s)

    def cp_s(self, attention_s: float, *, backward: bool) -> float:
        """Messages of context parallel; backward a ring passes gradients on as well."""
        cut, shape = self.cut, self.cut.shape
        if cut.cp == 1:
            return 0.0
        heads = self.item * cut.tokens * part(shape.num_heads, cut.tp) * shape.head_dim
        keys = self.item * cut.tokens * part(shape.num_kv_heads, cut.tp) * shape.head_dim
        if cut.context_parallel_algo == "ulysses":
            return 2 * (
                self.speed.seconds("AlltoAll", cut.cp, cut.tp, heads)
                + self.speed.seconds("AlltoAll", cut.cp, cut.tp, keys)
            )
        if cut.context_parallel_algo == "all_gather":
            return 2 * self.speed.seconds("AllGather", cut.cp, cut.tp, keys * cut.cp)
        hop = self.speed.transfer(cut.cp, cut.tp, 2 * keys * (2 if backward else 1))
        return (cut.cp - 1) * max(hop - attention_s / cut.cp, 0.0)

    # Experts

    def experts(self, *, backward: bool) -> Pass:
        """Router, the way to the experts and back, and their products."""
        cut, shape = self.cut, self.cut.shape
        if not shape.num_experts:
            return Pass()
        held = expert_share(cut)
        choices = expert_rows(cut)
        rows = -(-choices // held.count)
        width = part(shape.expert_ffn_size, held.width_cut)
        wide = [2 * width] if cut.stack.fused_blocks else [width, width]
        matrices = [(rows, shape.hidden_size, n) for n in wide] + [(rows, width, shape.hidden_size)]
        products_s, flops = self.products(matrices, backward=backward, count=held.count)
        router, times = (cut.stream_tokens, shape.hidden_size, shape.num_experts), 2 if backward else 1
        products_s += times * self.product_s(1, *router, dtype="float32")
        tokens = float(choices) * shape.hidden_size
        act = float(choices) * width
        bytes_ = self.passed(6 * tokens + 5 * act if backward else 4 * tokens + 3 * act)
        ep_s = 0.0
        if held.exchange > 1:
            size = self.item * sent_rows(cut) * shape.hidden_size
            ep_s = 2 * self.speed.seconds("AlltoAll", held.exchange, cut.tp * cut.cp, size)
        return Pass(products_s, 0.0, self.moved(bytes_), 0.0, 0.0, ep_s, flops + 2.0 * times * math.prod(router))
