"""Kept tensors of a layer, against Korthikanti et al.; in-flight micro-batches, against their schedules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from msparallel.mesh import Mesh
from msparallel.model.shape import ModelShape
from msparallel.planner.activations import expert_rows, groups_in_flight, kept_bytes, layer_tensors, sizes_of
from msparallel.planner.stack import MSPARALLEL, megatron
from msparallel.planner.workload import Workload

pytestmark = pytest.mark.pure

S, B, H, A = 2048, 2, 4096, 32
GPT = ModelShape(
    num_layers=8, hidden_size=H, num_heads=A, ffn_size=4 * H, vocab_size=32000, activation="gelu", norm="layer"
)
LLAMA = ModelShape(num_layers=8, hidden_size=H, num_heads=A, num_kv_heads=8, ffn_size=11008, vocab_size=32000)


def work(**changes) -> Workload:
    values = {
        "shape": LLAMA, "mesh": Mesh(), "devices_per_node": 8, "stage_layers": (8,), "micro_batch_size": B,
        "micro_batch_num": 8, "seq_length": S, "dtype": "bfloat16", "stack": megatron("bfloat16"),
        "vocab_parallel": True,
    }  # fmt: skip
    return Workload(**{**values, **changes})


def kept(**changes) -> float:
    found = work(**changes)
    return kept_bytes(sizes_of(found), found.recompute)


def by_name(**changes) -> dict[str, float]:
    return {tensor.name: tensor.bytes for tensor in layer_tensors(work(**changes))}


def test_gpt_keeps_what_korthikanti_counts_but_for_dropout() -> None:
    """34 s b h + 5 a s^2 b, less the two dropout masks of the residual stream (2 s b h); statistics in float32 more."""
    sbh = S * B * H
    found = kept(shape=GPT, attention="plain")
    assert found == pytest.approx(32 * sbh + 5 * A * S * S * B + 16 * S * B)
    cut = kept(shape=GPT, attention="plain", mesh=Mesh(tp=4), sequence_parallel=True)
    assert cut == pytest.approx(found / 4)


def test_without_sequence_parallel_the_residual_stream_is_whole() -> None:
    """10 s b h + 24 s b h / t: here 8 of the 10, since 2 are dropout's masks."""
    sbh, statistics = S * B * H, 16 * S * B
    found = kept(shape=GPT, attention="flash", mesh=Mesh(tp=4)) - by_name(shape=GPT, mesh=Mesh(tp=4))[
        "softmax statistics"
    ]
    assert found == pytest.approx(8 * sbh + 24 * sbh / 4 + statistics)


def test_recompute_keeps_less_at_every_level() -> None:
    plain = {"attention": "plain"}
    none, some, little = kept(**plain), kept(**plain, recompute="selective"), kept(**plain, recompute="full")
    assert none - some == pytest.approx(5 * A * S * S * B)
    assert little == 2 * S * B * H < some < none


def test_grouped_keys_and_swiglu() -> None:
    found = by_name()
    assert found["queries"] == 2 * S * B * H and found["keys and values"] == 2 * found["queries"] / 4
    assert found["gate and up"] == 2 * 2 * S * B * 11008 == 2 * found["product"]
    assert "activated gate" not in found and "activated gate" in by_name(stack=MSPARALLEL)
    assert by_name(shape=replace(LLAMA, qk_norm=True))["queries and keys before their norm"] == 1.25 * found["queries"]


def test_context_parallel_cuts_everything_but_gathered_keys() -> None:
    one, four = by_name(), by_name(mesh=Mesh(cp=4), context_parallel_algo="ulysses")
    assert four["product"] == one["product"] / 4 and four["keys and values"] == one["keys and values"] / 4
    gathered = by_name(mesh=Mesh(cp=4), context_parallel_algo="all_gather")
    assert gathered["keys and values"] == one["keys and values"]


def test_rows_of_experts() -> None:
    shape = replace(LLAMA, num_experts=16, experts_per_token=2, expert_ffn_size=1024)
    tokens = S * B
    assert expert_rows(sizes_of(work(shape=shape))) == 2 * tokens
    assert expert_rows(sizes_of(work(shape=shape, stack=MSPARALLEL))) == 16 * tokens, "dropless pads"
    capped = replace(shape, expert_capacity_factor=1.5)
    assert expert_rows(sizes_of(work(shape=capped))) == 3 * tokens
    found = by_name(shape=shape)
    assert found["gates and ups of experts"] == 2 * 2 * (2 * tokens) * 1024


@pytest.mark.parametrize(
    ("changes", "in_flight"),
    [
        ({}, [4, 3, 2, 1]),
        ({"micro_batch_num": 2}, [2, 2, 2, 1]),
        ({"schedule": "gpipe"}, [8, 8, 8, 8]),
        ({"stage_layers": (1,) * 8}, [11, 9, 7, 5]),
        ({"stage_layers": (1,) * 8, "schedule": "gpipe"}, [16] * 4),
    ],
)
def test_micro_batches_under_way(changes, in_flight) -> None:
    found = work(**{"mesh": Mesh(pp=4), "stage_layers": (2,) * 4, **changes})
    assert [groups_in_flight(found, stage) for stage in range(4)] == in_flight


def test_interleaved_in_flight_is_megatrons_factor() -> None:
    """Layers times 1 + (p - 1) / (p v) on the first stage (Megatron-LM, theoretical_memory_usage.py)."""
    found = work(mesh=Mesh(pp=4), stage_layers=(1,) * 8)
    assert groups_in_flight(found, 0) * 1 == 8 * (1 + 3 / (4 * 2))


def test_without_a_pipeline_one_micro_batch_is_under_way() -> None:
    assert groups_in_flight(work(micro_batch_num=64), 0) == 1
