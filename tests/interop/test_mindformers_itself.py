"""Exported YAMLs, read by MindFormers itself: its classes, its degrees, its layers of each stage, its networks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from msparallel.errors import RecipeError
from msparallel.interop.export_mindformers import export_mindformers, family
from msparallel.plan import Plan, resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not importlib.util.find_spec("mindformers"), reason="MindFormers is not installed here"),
]
SCRIPT = Path(__file__).with_name("read_with_mindformers.py")
SMALL = ["model.num_layers=4", "model.hidden_size=64", "model.num_heads=4", "model.num_kv_heads=2",
         "model.head_dim=16", "model.ffn_size=96", "model.vocab_size=256", "model.max_positions=128",
         "train.seq_length=128", "data.tokenizer=any.json", "parallel.model_parallel=1",
         "parallel.sequence_parallel=false"]  # fmt: skip
EXPERTS = [*SMALL, "model.num_experts=16", "model.expert_ffn_size=32"]
CLASSES = {"qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "telechat3": "TeleChat3"}
MORE = [
    ("llama2_7b_dp2_tp2_pp2", ["parallel.pipeline_schedule=gpipe"]),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.virtual_stages=2", "parallel.stage_layers=[7,9,8,8]"]),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.mode=auto_parallel", "parallel.search_mode=sharding_propagation"]),
    ("qwen3_8b_cp4_tp2", ["parallel.context_parallel_algo=all_gather"]),
]
"""Settings that no shipped recipe has."""


def read(folder: Path, cases: list[tuple[str, list[str]]], *options: str) -> list[tuple[Plan, dict]]:
    """Export recipes and let MindFormers read the YAMLs, in one process."""
    plans, paths = [], []
    for number, (name, overrides) in enumerate(cases):
        recipe = load_recipe(name, overrides)
        path = folder / f"{number}.yaml"
        path.write_text(export_mindformers(recipe).text, encoding="utf-8")
        plans.append(resolve(recipe))
        paths.append(str(path))
    environment = {**os.environ, "LOG_MF_PATH": str(folder / "log")}
    done = subprocess.run([sys.executable, str(SCRIPT), *options, *paths], capture_output=True, text=True, cwd=folder,
                          env=environment, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("READ ")]
    assert len(found) == len(plans)
    return list(zip(plans, found, strict=True))


def exportable() -> list[tuple[str, list[str]]]:
    cases: list[tuple[str, list[str]]] = []
    for name in shipped_recipes():
        try:
            export_mindformers(load_recipe(name))
        except RecipeError:
            continue
        cases.append((name, []))
    return cases


def test_mindformers_reads_what_the_plan_says(tmp_path):
    cases = exportable() + MORE
    assert len(cases) > 8
    for plan, found in read(tmp_path, cases):
        shape, mesh, parallel, seen = plan.shape, plan.mesh, plan.recipe.parallel, found["transformer"]
        kind = CLASSES[family(plan)]
        assert (found["config_class"], found["model_class"]) == (f"{kind}Config", f"{kind}ForCausalLM")
        expected = {
            "num_layers": shape.num_layers, "hidden_size": shape.hidden_size, "num_attention_heads": shape.num_heads,
            "num_query_groups": shape.num_kv_heads, "kv_channels": shape.head_dim, "ffn_hidden_size": shape.ffn_size,
            "vocab_size": shape.padded_vocab_size, "seq_length": plan.seq_length,
            "max_position_embeddings": shape.max_positions, "layernorm_epsilon": shape.norm_eps,
            "rotary_base": shape.rope_theta, "init_method_std": shape.init_std, "add_qkv_bias": shape.attention_bias,
            "qk_layernorm": shape.qk_norm, "num_moe_experts": shape.num_experts or None, "data_parallel_size": mesh.dp,
            "tensor_model_parallel_size": mesh.tp, "pipeline_model_parallel_size": mesh.pp,
            "context_parallel_size": mesh.cp, "expert_model_parallel_size": parallel.expert_parallel,
            "sequence_parallel": parallel.sequence_parallel, "use_flash_attention": plan.attention == "flash",
        }  # fmt: skip
        if shape.num_experts:
            expected |= {"moe_router_topk": shape.experts_per_token, "moe_ffn_hidden_size": shape.expert_ffn_size,
                         "norm_topk_prob": shape.normalize_expert_weights,
                         "moe_aux_loss_coeff": shape.router_aux_loss}  # fmt: skip
        assert {name: seen[name] for name in expected} == expected, plan.recipe.name
        assert found["compute_dtype"].lower() == plan.recipe.train.dtype
        assert tuple(found["stage_layers"]) == plan.stage_layers
        assert found["layer_recompute"] == (
            list(plan.stage_layers) if parallel.recompute == "full" else [0] * len(plan.stage_layers)
        )
        assert bool(found["select_recompute"]) == (parallel.recompute == "selective")
        assert found["global_batch_size"] == plan.global_batch_size
        context = found["context"]
        assert context["parallel_mode"] == parallel.mode
        assert context["enable_parallel_optimizer"] == bool(parallel.optimizer_shard)
        assert context["pipeline_stages"] == mesh.pp
        if mesh.pp > 1:
            assert context["pipeline_scheduler"] == (parallel.pipeline_schedule or "1f1b")


def test_mindformers_networks_have_our_parameters(tmp_path):
    """Small models of each family, on one device: MindFormers' network trains as many values as ours."""
    cases = [
        ("llama2_7b_dp2_tp2_pp2", [*SMALL, "parallel.data_parallel=4"]),
        ("llama2_7b_dp2_tp2_pp2", [*SMALL, "parallel.data_parallel=4", "model.attention_bias=true"]),
        ("qwen3_8b_dp2_tp4", [*SMALL, "model.tie_embeddings=true"]),
        ("qwen3_8b_dp2_tp4", [*SMALL, "parallel.recompute=full"]),
        ("qwen3_30b_a3b_dp8_pp2_ep8", EXPERTS),
    ]
    for plan, found in read(tmp_path, cases, "--build"):
        assert found["network_class"] == f"Training{CLASSES[family(plan)]}ForCausalLM"
        assert found["network_values"] == plan.shape.parameters(), plan.recipe.overrides
        core, whole = "self_attention.core_attention" in found["recomputed"], "mlp" in found["recomputed"]
        assert (core, whole) == (plan.recipe.parallel.recompute != "none", plan.recipe.parallel.recompute == "full")
