"""Seconds of a layer against arithmetic on paper, and what must hold for every layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msparallel.hardware import load_hardware
from msparallel.hardware.speed import Product, Speed
from msparallel.mesh import Mesh
from msparallel.model.presets import PRESETS
from msparallel.planner.cut import cut_of, expert_share
from msparallel.planner.ends import LOGIT_FORWARD, end_passes
from msparallel.planner.layer_time import layer_time
from msparallel.planner.stack import MSPARALLEL, megatron
from msparallel.planner.step_time import model_flops
from msparallel.planner.workload import Workload

pytestmark = pytest.mark.pure
A2 = load_hardware("atlas_900_a2")
SPEED = Speed(A2, 8)
MEGATRON = megatron("bfloat16")
LLAMA, QWEN3_MOE = PRESETS["llama2_7b"], PRESETS["qwen3_30b_a3b"]
T, H, F, S = 4096, 4096, 11008, 4096  # Llama 2 7B: tokens, hidden, feed-forward, sequence
LAUNCH_S = A2.launch.kernel_us * 1e-6


def work(**changes) -> Workload:
    whole = Workload(
        shape=LLAMA,
        mesh=Mesh(),
        devices_per_node=8,
        stage_layers=(32,),
        micro_batch_size=1,
        micro_batch_num=8,
        seq_length=S,
        dtype="bfloat16",
        stack=MEGATRON,
        vocab_parallel=True,
    )
    return replace(whole, **changes)


def products_s(*lengths: tuple[int, int, int]) -> float:
    return sum(SPEED.product(Product(1, *one, "bfloat16")) + LAUNCH_S for one in lengths)


def test_products_of_a_llama_layer():
    """Queries, keys and values in one, output, gate and up in one, down; backward each twice."""
    layer = layer_time(work(), A2)
    forward = [(T, H, 3 * H), (T, H, H), (T, H, 2 * F), (T, F, H)]
    assert layer.forward.products_s == pytest.approx(products_s(*forward))
    backward = [turned for m, k, n in forward for turned in ((m, n, k), (k, m, n))]
    assert layer.backward.products_s == pytest.approx(products_s(*backward))
    assert layer.forward.flops == 2 * T * H * (4 * H + 3 * F)
    assert layer.backward.flops == 2 * layer.forward.flops


def test_matrices_that_are_not_fused_are_products_of_their_own():
    apart = layer_time(work(stack=MSPARALLEL), A2).forward
    lengths = [(T, H, H)] * 4 + [(T, H, F)] * 2 + [(T, F, H)]
    assert apart.products_s == pytest.approx(products_s(*lengths))


def test_grouped_heads_have_narrow_keys():
    shape = replace(LLAMA, num_kv_heads=8)
    layer = layer_time(work(shape=shape, mesh=Mesh(tp=8)), A2)
    assert layer.forward.flops == 2 * T * H * (2 * H + 2 * 8 * 128 + 3 * F) // 8


@pytest.mark.parametrize(("stack", "share"), [(MEGATRON, 0.5), (MSPARALLEL, 1.0)])
def test_attention_computes_what_its_kernel_does_not_skip(stack, share):
    layer = layer_time(work(stack=stack, context_parallel_algo="ring"), A2)
    flops = 4 * T * S * H * share
    assert layer.forward.attention_flops == flops and layer.backward.attention_flops == 2.5 * flops
    assert layer.forward.attention_s == pytest.approx(SPEED.attention(flops, "bfloat16") + LAUNCH_S)
    assert layer.backward.attention_s == pytest.approx(
        SPEED.attention(2.5 * flops, "bfloat16", backward=True) + LAUNCH_S
    )


def test_gathered_keys_leave_the_last_rank_most_to_do():
    """Of four ranks the last sees 7/8 of all pairs that its queries could have, 7/4 of the mean."""
    seen = {
        algo: layer_time(work(mesh=Mesh(cp=4), context_parallel_algo=algo), A2).forward.attention_flops
        for algo in ("ring", "ulysses", "all_gather")
    }
    assert seen["ring"] == seen["ulysses"] == pytest.approx(4 * T / 4 * S * H / 2)
    assert seen["all_gather"] == pytest.approx(7 / 4 * seen["ring"])


@pytest.mark.parametrize(
    ("sequence_parallel", "op", "count"), [(False, "AllReduce", 2), (True, "AllGather", 4)]
)
def test_messages_of_tensor_parallel(sequence_parallel, op, count):
    """docs/10_what_is_sent.md: 2 AllReduce of e T h, or as many bytes in twice as many messages."""
    layer = layer_time(work(mesh=Mesh(tp=4), sequence_parallel=sequence_parallel), A2)
    one = SPEED.seconds(op, 4, 1, 2 * T * H)
    assert layer.forward.tp_s == layer.backward.tp_s == pytest.approx(count * one)
    again = layer_time(work(mesh=Mesh(tp=4), sequence_parallel=sequence_parallel, recompute="full"), A2).again
    assert again.tp_s == pytest.approx((3 if sequence_parallel else 1) * one)


def test_fused_messages_show_a_share_of_themselves():
    """And whatever is longer than the products, behind which they go."""
    for tp in (4, 8):
        apart, fused = (
            layer_time(work(mesh=Mesh(tp=tp), sequence_parallel=True, overlap_tensor=on), A2).forward
            for on in (False, True)
        )
        hidden = min(apart.tp_s, apart.products_s)
        assert fused.tp_s == pytest.approx(apart.tp_s - (1 - A2.fused_exposed) * hidden)


def test_messages_of_context_parallel():
    """docs/10_what_is_sent.md: keys and values gathered; queries, keys, values and the result exchanged."""
    keys = 2 * T * 8 * 128
    shape = replace(LLAMA, num_kv_heads=8)
    gathered = layer_time(work(shape=shape, mesh=Mesh(cp=4), context_parallel_algo="all_gather"), A2)
    assert gathered.forward.cp_s == pytest.approx(2 * SPEED.seconds("AllGather", 4, 1, keys))
    exchanged = layer_time(work(shape=shape, mesh=Mesh(cp=4), context_parallel_algo="ulysses"), A2)
    wanted = 2 * (SPEED.seconds("AlltoAll", 4, 1, 2 * T * H / 4) + SPEED.seconds("AlltoAll", 4, 1, keys / 4))
    assert exchanged.forward.cp_s == exchanged.backward.cp_s == pytest.approx(wanted)


def test_a_ring_hides_behind_attention_once_sequences_are_long():
    short, long = (
        layer_time(work(mesh=Mesh(cp=4), seq_length=seq, context_parallel_algo="ring"), A2).forward
        for seq in (2048, 262144)
    )
    assert short.cp_s > 0 and long.cp_s == 0


def test_recomputation_is_the_forward_pass_or_its_attention():
    full, selective, none = (layer_time(work(recompute=kind), A2) for kind in ("full", "selective", "none"))
    assert full.again.compute_s == full.forward.compute_s
    assert selective.again.seconds == selective.forward.attention_s > 0
    assert none.again.seconds == 0


def test_experts_take_the_rows_that_tokens_choose():
    """Qwen3 30B-A3B over eight ranks: 16 of 128 experts on a rank, 8 choices a token, and back the same way."""
    mixture = work(shape=replace(QWEN3_MOE, expert_capacity_factor=0.0), mesh=Mesh(dp=8), expert_parallel=8)
    layer = layer_time(mixture, A2)
    h, width, rows = QWEN3_MOE.hidden_size, QWEN3_MOE.expert_ffn_size, 8 * T
    assert expert_share(cut_of(mixture)) == (16, 1, 8)
    dense = 2 * T * h * 128 * (2 * 32 + 2 * 4) + 2 * T * h * 128  # attention's matrices, the router
    assert layer.forward.flops == dense + 2 * rows * h * 3 * width
    assert layer.forward.ep_s == pytest.approx(2 * SPEED.seconds("AlltoAll", 8, 1, 2 * rows * h))


def test_where_experts_lie_follows_the_software():
    """msparallel: on ranks of tp first, with no exchange; Megatron cuts each expert over tp, and exchanges over dp."""
    ours, theirs = (
        cut_of(work(shape=QWEN3_MOE, mesh=Mesh(dp=4, tp=2), expert_parallel=2, stack=stack))
        for stack in (MSPARALLEL, MEGATRON)
    )
    assert expert_share(ours) == (64, 1, 1)
    assert expert_share(theirs) == (64, 2, 2)


def test_the_head_multiplies_by_the_whole_vocabulary_and_reads_logits_often():
    ends = end_passes(SPEED, cut_of(work(mesh=Mesh(tp=4))))
    forward, backward = ends.head
    assert forward.flops == 2 * T * H * 8000 and backward.flops == 2 * forward.flops
    assert forward.memory_s > SPEED.moved(LOGIT_FORWARD * T * 8000)


def test_operations_of_a_model_against_its_operators():
    """Without recomputation a step's products are what Megatron's counter says, attention's gradient being five."""
    layer, ends = layer_time(work(), A2), end_passes(SPEED, cut_of(work()))
    products = 32 * (layer.forward.flops + layer.backward.flops) + ends.head[0].flops + ends.head[1].flops
    attention = 32 * layer.forward.attention_flops
    assert model_flops(LLAMA, S) == pytest.approx(products + 3 * attention)
    assert model_flops(LLAMA, S, whole_attention=True) == pytest.approx(products + 6 * attention)
    assert model_flops(LLAMA, S) == pytest.approx(6 * S * (LLAMA.parameters() - 32000 * H), rel=0.09)
