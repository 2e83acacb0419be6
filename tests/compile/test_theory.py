"""What a strategy is known to send, against what MindSpore's engine put into the graph.

A dense layer under tensor parallel sums twice forward and twice backward, in every micro-batch; sequence parallel
turns each sum into a reduce-scatter and an all-gather. Replicas add each parameter's gradient once a step; the
optimizer shard gathers each weight and scatters its gradient. A pipeline's border is crossed by every micro-batch,
there and back.
"""

from __future__ import annotations

from collections import Counter

import pytest
from compiled import counts, dried

pytestmark = pytest.mark.cpu
LAYERS, MICRO_BATCHES = 3, 4
TP = ("llama2_7b_dp2_tp2_pp2", f"model.num_layers={LAYERS}", "parallel.pipeline_stages=1", "parallel.data_parallel=1")
TP_BATCH = (*TP, "cluster.devices_per_node=2", f"train.global_batch_size={MICRO_BATCHES}")
WIDE = "train.seq_length=64"
"""So that no other message is as large as a layer's."""
ACTIVATION = 64 * 64 * 2
"""Bytes of the tokens of a micro-batch in bfloat16."""


def of_activations(report, *purposes) -> Counter:
    """Messages over tp that carry a layer's activations, by primitive; the embedding's and the head's among them."""
    found: Counter = Counter()
    for use in report.collectives:
        if use.purpose in purposes and use.axes == ("tp",) and use.bytes in (ACTIVATION, 2 * ACTIVATION):
            found[use.op] += use.count
    return found


def test_tensor_parallel_sums_twice_a_layer_in_each_direction():
    report = dried(*TP_BATCH, WIDE, "parallel.optimizer_shard=false").ranks[0]
    # Forward: two a layer, and the embedding's sum. Backward: two a layer, and the head's input.
    assert of_activations(report, "forward") == {"AllReduce": MICRO_BATCHES * (2 * LAYERS + 1)}
    assert of_activations(report, "backward") == {"AllReduce": MICRO_BATCHES * (2 * LAYERS + 1)}
    assert not counts(report, "weight", "pipeline", "recompute")


@pytest.mark.slow
def test_sequence_parallel_gathers_and_scatters():
    report = dried(*TP_BATCH, WIDE, "parallel.sequence_parallel=true").ranks[0]
    each = MICRO_BATCHES * (2 * LAYERS + 1)
    forward, backward = of_activations(report, "forward"), of_activations(report, "backward")
    assert forward == {"AllGather": each, "ReduceScatter": each}
    assert backward == {"AllGather": each, "ReduceScatter": each}


RECOMPUTE = (("parallel.recompute=none",), ("parallel.recompute=full",), ("parallel.recompute=selective",))


@pytest.mark.slow
def test_recompute_saves_memory():
    """Of long sequences: the layers, not the loss over a large vocabulary, make the peak."""
    long = (*TP_BATCH, "model.vocab_size=64", "train.seq_length=128")
    plain, full, selective = (dried(*long, *words).ranks[0].peak.bytes for words in RECOMPUTE)
    assert full < selective < plain


@pytest.mark.slow
def test_recompute_repeats_the_forward_sum_that_the_backward_pass_needs():
    plain, full, selective = (dried(*TP_BATCH, WIDE, *words).ranks[0] for words in RECOMPUTE)
    # Of a layer's two sums the second ends it; only what lies before the second norm is computed again.
    assert of_activations(full, "recompute") == {"AllReduce": MICRO_BATCHES * LAYERS}
    assert not of_activations(selective, "recompute")
    for report in (full, selective):
        assert of_activations(report, "forward") == of_activations(plain, "forward")
        assert of_activations(report, "backward") == of_activations(plain, "backward")


DP = ("llama2_7b_dp8_zero1", f"model.num_layers={LAYERS}", "train.global_batch_size=32")
MATRICES, NORMS = 7 * LAYERS + 2, 2 * LAYERS + 1
"""Parameters of the model."""


def test_replicas_add_each_gradient_once_a_step():
    details = ("parallel.optimizer_shard_size=null", "parallel.optimizer_shard_threshold_kib=null")
    report = dried(*DP, "parallel.optimizer_shard=false", *details).ranks[0]
    assert counts(report, "gradient") == {"AllReduce": MATRICES + NORMS}
    assert not counts(report, "weight", "forward", "backward")


def test_optimizer_shard_gathers_weights_and_scatters_gradients():
    report = dried(*DP, "parallel.optimizer_shard=true", "parallel.optimizer_shard_threshold_kib=0").ranks[0]
    assert counts(report, "gradient") == {"ReduceScatter": MATRICES + NORMS}
    assert counts(report, "weight") == {"AllGather": MATRICES + NORMS}
    assert report.weights_bytes * 8 == sum(4 * product(p.part.shape) for p in report.parameters if p.role == "weight")


@pytest.mark.slow
def test_parameters_under_the_threshold_stay_whole():
    """At 40 KiB: the embedding and the head (128 KiB) are cut, the layers' matrices (32 KiB) are not."""
    report = dried(*DP, "parallel.optimizer_shard=true", "parallel.optimizer_shard_threshold_kib=40").ranks[0]
    large = [p for p in report.parameters if p.role == "weight" and 4 * product(p.part.shape) >= 40 * 1024]
    assert {p.optimizer_shard for p in large} == {8} and len(large) == 2
    assert counts(report, "gradient") == {"ReduceScatter": len(large), "AllReduce": MATRICES + NORMS - len(large)}
    assert counts(report, "weight") == {"AllGather": len(large)}


def test_every_micro_batch_crosses_a_border_there_and_back():
    words = ("llama2_7b_dp2_tp2_pp2", "model.num_layers=4", "train.global_batch_size=12")  # 6 micro-batches
    first, last = dried(*words, ranks=(0, 4)).ranks
    assert counts(first, "pipeline") == counts(last, "pipeline") == {"Send": 6, "Receive": 6}
    assert {use.ranks for use in first.collectives if use.op == "Send"} == {(0, 4)}
    assert {use.ranks for use in last.collectives if use.op == "Send"} == {(4, 0)}
    assert first.layers == (0, 1) and last.layers == (2, 3)
    # 1F1B: the first stage holds two micro-batches at most, however many there are.
    more = dried(*words[:2], "train.global_batch_size=24").ranks[0]
    assert more.peak.bytes == pytest.approx(first.peak.bytes, rel=0.02)
    assert counts(more, "pipeline") == {"Send": 12, "Receive": 12}


def product(shape) -> int:
    result = 1
    for length in shape:
        result *= length
    return result
