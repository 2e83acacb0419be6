"""Served graphs as MindSpore's engine compiles them: what is sent, what is held, and the planner's bytes beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from msparallel.compile.graph import read_graph
from msparallel.compile.ranks import compile_ranks, temporary_folder
from msparallel.compile.request import read_result
from msparallel.compile.serving import dry_run_serving, graphs_of, served_form, serving_job
from msparallel.errors import UserError
from msparallel.plan import Plan, resolve
from msparallel.planner.serving import serving_memory
from msparallel.recipe.load import load_recipe
from msparallel.serve.buckets import paged_buckets
from msparallel.serve.paged_inputs import INPUTS, input_shapes

TP1, TP2 = "qwen3_8b_serve_tp1", "qwen3_8b_serve_tp2"
LAYERS, HIDDEN, VOCAB = 2, 4096, 151936
SAMPLE = {"tp2": (TP2, f"model.num_layers={LAYERS}")}
FURTHER = {
    "tp1": (TP1, f"model.num_layers={LAYERS}"),
    "tp4": (TP2, f"model.num_layers={LAYERS}", "parallel.model_parallel=4"),
    "llama2": (TP2, "model.preset=llama2_7b", f"model.num_layers={LAYERS}"),
    "llama3-long": (TP2, "model.preset=llama3_8b", f"model.num_layers={LAYERS}", "serve.max_length=8000"),
    "biases": (TP2, "model.preset=qwen2_7b", f"model.num_layers={LAYERS}", "parallel.model_parallel=4"),
    "tied": (TP2, "model.preset=qwen3_0_6b", f"model.num_layers={LAYERS}"),
    "gpt2": (TP2, "model.preset=gpt2_124m", "model.vocab_multiple=8", "serve.max_length=1000"),
    "experts": (TP2, "model.preset=qwen3_30b_a3b", f"model.num_layers={LAYERS}", "parallel.expert_parallel=2"),
    "whole-vocabulary": (TP2, f"model.num_layers={LAYERS}", "parallel.vocab_parallel=false"),
    "few": (TP2, f"model.num_layers={LAYERS}", "serve.max_concurrency=3", "serve.max_length=200"),
}


def plan_of(recipe: str, *words: str) -> Plan:
    return resolve(load_recipe(recipe, words))


def sent(report) -> Counter:
    """(primitive, bytes of a message) -> how often."""
    return Counter({(use.op, use.bytes): use.count for use in report.collectives})


def check(plan: Plan) -> None:
    """Weights and cache to the byte, what is alive within 15 %, on the first and the last rank."""
    found = dry_run_serving(plan, served_form(plan), sorted({0, plan.world_size - 1}), how_deep="full", progress=False)
    paper = serving_memory(plan)
    for reports in zip(*(run.ranks for run in found.runs), strict=True):
        assert {report.weights_bytes for report in reports} == {paper.weights_bytes}
        assert {report.cache_bytes for report in reports} == {paper.cache_bytes}
        live = max(report.peak.bytes for report in reports)
        assert 0.85 <= paper.workspace_bytes / live <= 1.15
        assert not any(report.optimizer_bytes or report.gradients_bytes for report in reports)
    tp = plan.mesh.tp
    caches = [held for held in found.runs[0].ranks[-1].parameters if held.role == "cache"]
    assert len(caches) == 2 * plan.shape.num_layers
    for held in caches:
        assert held.part.cut_by == ((), (), ("tp",) if tp > 1 else (), ())
        assert held.local_shape[2] * tp == plan.shape.num_kv_heads and held.dtype == "BFloat16"


@pytest.mark.cpu
@pytest.mark.parametrize("name", [*SAMPLE, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def test_the_planner_s_bytes_are_the_engine_s(name):
    check(plan_of(*(SAMPLE | FURTHER)[name]))


@pytest.mark.cpu
def test_a_token_costs_two_sums_a_layer_one_for_the_embedding_and_the_gathered_logits():
    plan = plan_of(*SAMPLE["tp2"])
    prefill, decode = dry_run_serving(plan, served_form(plan), [1], progress=False).runs
    (piece,), (token,) = prefill.ranks, decode.ranks
    assert sent(token) == {("AllReduce", 16 * HIDDEN * 2): 2 * LAYERS + 1, ("AllGather", 16 * VOCAB * 2): 1}
    assert sent(piece) == {("AllReduce", 512 * HIDDEN * 2): 2 * LAYERS + 1, ("AllGather", VOCAB * 2): 1}
    for report in (piece, token):
        assert report.operators["PagedAttention"] == report.operators["ReshapeAndCache"] == LAYERS
        assert report.operators["RmsNorm"] == 4 * LAYERS + 1 and "ScatterUpdate" not in report.operators


@pytest.mark.slow
@pytest.mark.cpu
def test_a_whole_vocabulary_needs_neither_the_embedding_s_sum_nor_the_gathered_logits():
    plan = plan_of(*FURTHER["whole-vocabulary"])
    token = dry_run_serving(plan, served_form(plan), [0], progress=False).token_step.ranks[0]
    assert sent(token) == {("AllReduce", 16 * HIDDEN * 2): 2 * LAYERS}


@pytest.mark.slow
@pytest.mark.cpu
def test_one_device_sends_nothing():
    plan = plan_of(*FURTHER["tp1"])
    assert not any(run.ranks[0].collectives for run in dry_run_serving(plan, served_form(plan), [0]).runs)


@pytest.mark.slow
@pytest.mark.cpu
def test_few_layers_tell_of_many():
    small = (
        "model.hidden_size=64",
        "model.head_dim=16",
        "model.num_heads=8",
        "model.num_kv_heads=4",
        "model.ffn_size=64",
    )
    plan = plan_of(TP2, *small, "model.vocab_size=512", "model.num_layers=7")
    whole, few = (
        dry_run_serving(plan, served_form(plan), [0], how_deep=how, progress=False)
        for how in ("full", "representative")
    )
    for one, other in zip(whole.runs, few.runs, strict=True):
        (full,), (inferred,) = one.ranks, other.ranks
        assert full.parameters == inferred.parameters and full.collectives == inferred.collectives
        assert full.operators == inferred.operators and full.peak.bytes == inferred.peak.bytes


@pytest.mark.cpu
def test_every_shape_of_a_server_compiles_with_the_names_that_the_kernel_reads():
    """Ascend's PagedAttention reads lengths from the graph's inputs `q_seq_lens` and `batch_valid_length`."""
    small = (
        "model.hidden_size=64",
        "model.head_dim=16",
        "model.num_heads=8",
        "model.num_kv_heads=4",
        "model.ffn_size=64",
    )
    plan = plan_of(TP2, *small, "model.vocab_size=512", "model.num_layers=1", "serve.max_length=700")
    sizes = paged_buckets(plan.recipe.serve.max_concurrency, plan.recipe.serve.max_length)
    form = replace(served_form(plan), graphs=graphs_of(sizes))
    (variant,) = serving_job(plan, form, "full").variants
    with temporary_folder() as folder:
        request = replace(variant.request, rank=0, folder=str(folder / "rank_0"))
        (done,) = compile_ranks([request], memory_bytes=variant.memory_bytes, progress=False)
        graphs = read_result(Path(done.folder)).graphs
        assert len(graphs) == len(sizes.shapes()) == 5
        for graph in graphs:
            fed = [p.name for p in read_graph(Path(graph.folder)).functions[0].parameters if not p.weight]
            assert tuple(fed) == INPUTS


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "msparallel", "dryrun", *words], capture_output=True, text=True, timeout=600
    )


@pytest.mark.cpu
def test_the_verb_tells_a_token_and_a_piece_of_a_prompt(tmp_path):
    page = tmp_path / "report.html"
    done = run(*SAMPLE["tp2"], "--chunk", "128", "--batch", "4", "--json", "--report", str(page))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["world_size"] == 2 and document["serving"]["blocks"] == 16 * 32 + 1
    (rank,) = document["ranks"]
    prefill, decode = rank["graphs"]
    assert (prefill["name"], prefill["new"], decode["name"], decode["rows"]) == ("prefill", 128, "decode", 4)
    assert rank["collectives"] == decode["collectives"]
    assert rank["peak_live_bytes"] == max(prefill["peak_live_bytes"], decode["peak_live_bytes"])
    cache = [held for held in rank["parameters"] if held["role"] == "cache"]
    assert rank["cache_bytes"] == sum(held["bytes"] for held in cache)
    assert cache[0]["shape"] == [513, 128, 8, 128] and cache[0]["slice"] == [513, 128, 4, 128]
    assert "keys and values" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.cpu
def test_the_verb_for_a_person():
    done = run(*SAMPLE["tp2"], "--all-ranks")
    assert done.returncode == 0, done.stderr
    words = ("compiled every rank", "live: prefill", "Keys and values", "dim 2 by tp", "not yet run on hardware")
    titles = ("Collectives of a piece of a prompt, 512 tokens", "Collectives of a token for 16 requests")
    for told in (*words, *titles):
        assert told in done.stdout, told


@pytest.mark.pure
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((TP2, "--chunk", "100"), 2, "--chunk 100: this recipe's server compiles 128, 512."),
        ((TP2, "--batch", "3"), 2, "--batch 3: this recipe's server compiles 1, 4, 16."),
        ((TP2, "--rank", "2"), 2, "ranks 0 to 1"),
        ((TP2, "--save-strategy", "s.json"), 2, "auto_parallel has"),
        ((TP2, "model.num_layers=3", "--depth", "representative"), 2, "3 layers; it compiles 3"),
        (("llama2_7b_dp2_tp2_pp2", "--chunk", "128"), 2, "recipes that only serve"),
        ((TP2, "model.preset=qwen3_30b_a3b"), 2, "Try: parallel.expert_parallel=2"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_compiled(words, code, told):
    done = run(*words)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.pure
def test_a_server_feeds_its_graphs_whole_whether_or_not_its_recipe_also_trains():
    from msparallel.context import context_kwargs

    words = ("parallel.data_parallel=1", "parallel.optimizer_shard=null", "cluster.devices_per_node=4")
    both = plan_of("qwen3_8b_dp2_tp4", *words, "serve.weights=random")
    blocks = served_form(both).blocks(both)
    whole = tuple((1,) * len(shape) for shape in input_shapes(blocks, 4, 1))
    assert context_kwargs(both, serving=True)["dataset_strategy"] == whole
    assert context_kwargs(plan_of(TP2))["dataset_strategy"] == whole
    assert context_kwargs(both)["dataset_strategy"] == ((1, 1),) * 5


@pytest.mark.pure
def test_sizes_that_the_server_does_not_compile():
    with pytest.raises(UserError, match="compiles 128, 512"):
        served_form(plan_of(TP2), chunk=1)


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_graph_finds_parameters_that_were_cut_for_the_first(rank, tmp_path):
    script = Path(__file__).parent / "compile_twice.py"
    done = subprocess.run(
        [sys.executable, str(script), str(rank), "2", str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["held"] == found["graph"]
    assert found["whole"]["lm_head.weight"] == [256, 64] and found["held"]["lm_head.weight"] == [128, 64]
    cache = "model.layers.1.self_attn.core.key_cache"
    assert found["whole"][cache] == [13, 16, 4, 8] and found["held"][cache] == [13, 16, 2, 8]
