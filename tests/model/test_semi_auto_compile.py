"""What MindSpore's auto-parallel engine makes of the blocks' strategies, for Ascend devices that do not exist.

Each case compiles one rank's training step in a process of its own and looks at the collectives of the graph: those the
strategy is known for, and no redistribution beside them.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

REPO = Path(__file__).parents[2]
LAYERS = 2
GPT2 = {
    "position": "learned",
    "max_positions": 64,
    "norm": "layer",
    "activation": "gelu",
    "attention_bias": True,
    "output_bias": True,
    "ffn_bias": True,
    "num_kv_heads": 8,
    "tie_embeddings": True,
}
FLASH = {"attention": "flash", "dtype": "bfloat16"}
CROSS_ENTROPY = ["AllReduce cross_entropy"] * 3


@pytest.fixture
def compile_rank(tmp_path):
    """(world, rank, case) -> the report of compile_case.py."""

    def run(world: int, rank: int, **case) -> dict:
        script = Path(__file__).with_name("compile_case.py")
        command = [sys.executable, str(script), str(world), str(rank), json.dumps(case), str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(REPO), "GLOG_v": "3"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def forward(report: dict) -> list[str]:
    """Collectives outside the backward pass (recomputed ones included), in order: `AllReduce 0.o_proj`."""
    return [label(c) for c in report["collectives"] if not c["scope"].startswith("Gradients")]


def backward(report: dict) -> Counter:
    """Collectives of the backward pass by kind; those that add parameters' gradients apart."""
    found = [c for c in report["collectives"] if c["scope"].startswith("Gradients")]
    kinds = [c["op"] + (" parameter" if "Mirror" in c["scope"] else "") for c in found]
    return Counter(kinds)


def label(collective: dict) -> str:
    """Kind, layer and cell of a collective; those with one input share its gather, whichever of them holds it."""
    cells = collective["scope"].split("/")[:-1]
    layer = re.search(r"/(\d+)-TransformerLayer", collective["scope"])
    place = f"{layer[1]}." if layer else ""
    cell = cells[-1].split("-")[0] if cells else ""
    shared = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
    return f"{collective['op']} {place}{shared.get(cell, cell)}"


def per_layer(*kinds: str) -> list[str]:
    """`AllReduce o_proj` -> `AllReduce 0.o_proj`, ... for every layer."""
    return [kind.replace(" ", f" {layer}.") for layer in range(LAYERS) for kind in kinds]


TENSOR_PARALLEL = [
    "AllReduce embed_tokens",
    *per_layer("AllReduce o_proj", "AllReduce down_proj"),
    *CROSS_ENTROPY,
]


def test_tensor_parallel(compile_rank):
    report = compile_rank(2, 0, parallel={"model_parallel": 2})
    assert forward(report) == TENSOR_PARALLEL
    # The gradient of each norm's output, of the head's input, and of two sums in the cross entropy; norms' weights.
    assert backward(report) == {"AllReduce": 2 * LAYERS + 1 + 2, "AllReduce parameter": 2 * LAYERS + 1}
    slices = {name: tuple(layout["slice"]) for name, layout in report["parameters"].items()}
    assert slices["model.embed_tokens.weight"] == slices["lm_head.weight"] == (128, 64)
    assert slices["model.layers.0.self_attn.q_proj.weight"] == (32, 64)
    assert slices["model.layers.1.mlp.down_proj.weight"] == (64, 48)
    assert slices["model.norm.weight"] == (64,)


SEQUENCE_PARALLEL_LAYERS = per_layer(
    "AllGather qkv", "ReduceScatter o_proj", "AllGather gate_up", "ReduceScatter down_proj"
)
SEQUENCE_PARALLEL = ["ReduceScatter embed_tokens", *SEQUENCE_PARALLEL_LAYERS, "AllGather lm_head", *CROSS_ENTROPY]


def test_sequence_parallel_scatters_and_gathers_instead_of_all_reducing(compile_rank):
    report = compile_rank(2, 1, parallel={"model_parallel": 2, "use_seq_parallel": True})
    assert forward(report) == SEQUENCE_PARALLEL
    assert backward(report) == {
        "AllReduce": 2,
        "AllGather": 2 * LAYERS + 1,
        "ReduceScatter": 2 * LAYERS + 1,
        "AllReduce parameter": 2 * LAYERS + 1,
    }


def test_optimizer_shard_gathers_every_parameter_once(compile_rank):
    report = compile_rank(
        4, 1, parallel={"data_parallel": 2, "model_parallel": 2}, optimizer_shard=True, shape={"qk_norm": True}, **FLASH
    )
    parameters = len(report["parameters"])
    gathered = [c for c in report["collectives"] if c["op"] == "AllGather"]
    assert len(gathered) == parameters == 2 + 1 + 11 * LAYERS
    assert [c for c in forward(report) if not c.startswith("AllGather")] == [*TENSOR_PARALLEL, "AllReduce weighted_sum"]
    assert backward(report) == {"AllReduce": 2 * LAYERS + 1 + 2, "ReduceScatter": parameters}
    assert all(layout["optimizer_group"] for layout in report["parameters"].values())


def test_pipeline_sends_only_the_residual_stream(compile_rank):
    report = compile_rank(2, 1, parallel={}, layer_stages=[0, 1])
    assert Counter(c["op"] for c in report["collectives"]) == {"Receive": 2, "Send": 2}  # a pair a micro-batch
    names = set(report["parameters"])
    assert {"model.norm.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"} < names
    assert not any(name.startswith(("model.embed_tokens", "model.layers.0.")) for name in names)


@pytest.mark.slow
def test_tensor_parallel_over_four(compile_rank):
    report = compile_rank(4, 3, parallel={"model_parallel": 4})
    assert forward(report) == TENSOR_PARALLEL
    assert {c["group_size"] for c in report["collectives"]} == {4}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
def test_data_and_tensor_parallel(compile_rank, rank):
    report = compile_rank(4, rank, parallel={"data_parallel": 2, "model_parallel": 2})
    assert forward(report) == [*TENSOR_PARALLEL, "AllReduce weighted_sum"]
    assert {c["group_size"] for c in report["collectives"] if c["shape"] == [64]} <= {2, 4}
    assert backward(report) == {"AllReduce": 2 * LAYERS + 1 + 2, "AllReduce parameter": 3 + 9 * LAYERS}


@pytest.mark.slow
def test_gpt2_form(compile_rank):
    report = compile_rank(2, 0, parallel={"model_parallel": 2, "use_seq_parallel": True}, shape=GPT2, **FLASH)
    assert forward(report) == SEQUENCE_PARALLEL


@pytest.mark.slow
def test_whole_vocabulary_on_every_device(compile_rank):
    parallel = {"model_parallel": 2, "use_seq_parallel": True, "vocab_parallel": False}
    report = compile_rank(2, 0, parallel=parallel)
    assert forward(report) == [*SEQUENCE_PARALLEL_LAYERS, "AllReduce weighted_sum"]


@pytest.mark.slow
def test_tied_embeddings_are_one_parameter(compile_rank):
    report = compile_rank(2, 0, parallel={"data_parallel": 2}, shape={"tie_embeddings": True})
    assert "lm_head.weight" not in report["parameters"]
    assert forward(report) == ["AllReduce weighted_sum"]
    assert backward(report) == {"AllReduce parameter": len(report["parameters"])}


@pytest.mark.slow
def test_tied_embeddings_over_a_pipeline(compile_rank):
    report = compile_rank(2, 1, parallel={}, shape={"tie_embeddings": True}, layer_stages=[0, 1])
    # The table comes once from the first stage and its gradient goes back once.
    assert Counter(c["op"] for c in report["collectives"]) == {"Receive": 3, "Send": 3}


@pytest.mark.slow
def test_interleaved_pipeline(compile_rank):
    shape = {"num_layers": 4}
    first = compile_rank(2, 0, parallel={}, shape=shape, layer_stages=[0, 1, 0, 1])
    assert Counter(c["op"] for c in first["collectives"]) == {"Receive": 6, "Send": 6}  # 3 borders x 2 micro-batches


@pytest.mark.slow
@pytest.mark.parametrize("attention", [{}, FLASH], ids=["plain", "flash"])
@pytest.mark.parametrize("tp", [1, 2])
def test_context_parallel_gathers_keys_and_values(compile_rank, attention, tp):
    parallel = {"context_parallel": 2, "model_parallel": tp}
    report = compile_rank(2 * tp, 1, parallel=parallel, batch=1, **attention)
    layer = ["AllGather core", "AllGather core"] + (["AllReduce o_proj", "AllReduce down_proj"] if tp > 1 else [])
    whole = ["AllReduce embed_tokens"] if tp > 1 else []
    end = (CROSS_ENTROPY if tp > 1 else []) + ["AllReduce weighted_sum"]
    assert forward(report) == [*whole, *per_layer(*layer), *end]


@pytest.mark.slow
@pytest.mark.parametrize("attention", [{}, FLASH], ids=["plain", "flash"])
def test_ulysses_exchanges_heads_for_tokens(compile_rank, attention):
    parallel = {"context_parallel": 2, "context_parallel_algo": "ulysses_cp"}
    report = compile_rank(2, 1, parallel=parallel, batch=1, **attention)
    counts = Counter(c.split()[0] for c in forward(report))
    assert counts == {"AlltoAll": 4 * LAYERS, "AllReduce": 1}  # query, key, value, result; the loss
    assert backward(report)["AlltoAll"] == 4 * LAYERS


@pytest.mark.slow
def test_full_recompute_repeats_only_what_the_backward_pass_needs(compile_rank):
    report = compile_rank(2, 0, parallel={"model_parallel": 2, "recompute": "full"})
    again = [f"AllReduce {layer}.o_proj" for layer in range(LAYERS)]  # its sum feeds the second norm
    assert Counter(forward(report)) == Counter([*TENSOR_PARALLEL, *again])


@pytest.mark.slow
def test_selective_recompute_repeats_no_collective(compile_rank):
    report = compile_rank(2, 0, parallel={"model_parallel": 2, "recompute": "selective"}, **FLASH)
    assert forward(report) == TENSOR_PARALLEL


@pytest.mark.slow
def test_everything_at_once(compile_rank):
    parallel = {"data_parallel": 2, "model_parallel": 2, "use_seq_parallel": True, "recompute": "full"}
    report = compile_rank(8, 5, parallel=parallel, layer_stages=[0, 1], optimizer_shard=True, **FLASH)
    counts = Counter(c["op"] for c in report["collectives"])
    assert counts["Send"] == counts["Receive"] == 2
    assert not {"AlltoAll", "AllToAll"} & set(counts)
