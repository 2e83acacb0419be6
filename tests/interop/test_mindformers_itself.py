"""MindFormers itself beside our reading and writing: its classes, degrees, layers of each stage, networks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from interop.mindformers_files import EXPERTS as EXPERT_CHANGES
from interop.mindformers_files import wheel_configs, write

from msparallel.errors import RecipeError
from msparallel.interop.export_mindformers import export_mindformers, family
from msparallel.interop.import_mindformers import import_mindformers
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
    ("llama2_7b_dp2_tp2_pp2", ["parallel.pipeline_schedule=gpipe", "parallel.virtual_stages=2"]),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.virtual_stages=2", "parallel.stage_layers=[7,9,8,8]"]),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.mode=auto_parallel", "parallel.search_mode=sharding_propagation",
                               "parallel.data_parallel=1", "parallel.model_parallel=4"]),
    ("qwen3_8b_cp4_tp2", ["parallel.context_parallel_algo=all_gather"]),
]
"""Settings that no shipped recipe has."""


def read_files(folder: Path, paths: list[Path], *options: str) -> list[dict]:
    """What MindFormers makes of YAMLs, in one process."""
    environment = {**os.environ, "LOG_MF_PATH": str(folder / "log")}
    done = subprocess.run([sys.executable, str(SCRIPT), *options, *map(str, paths)], capture_output=True, text=True,
                          cwd=folder, env=environment, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("READ ")]
    assert len(found) == len(paths)
    return found


def read(folder: Path, cases: list[tuple[str, list[str]]], *options: str) -> list[tuple[Plan, dict]]:
    """Export recipes and let MindFormers read the YAMLs."""
    plans, paths = [], []
    for number, (name, overrides) in enumerate(cases):
        recipe = load_recipe(name, overrides)
        paths.append(folder / f"{number}.yaml")
        paths[-1].write_text(export_mindformers(recipe).text, encoding="utf-8")
        plans.append(resolve(recipe))
    return list(zip(plans, read_files(folder, paths, *options), strict=True))


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


INTERLEAVED = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
IMPORTED: list[dict] = [
    {},
    EXPERT_CHANGES,
    {"model.model_config.model_type": "telechat3", "model.model_config.architectures": ["TeleChat3ForCausalLM"]},
    {"parallel.pipeline_config": INTERLEAVED, "model.model_config.pp_interleave_num": 2,
     "model.model_config.offset": [[0, 0], [1, 0]]},
    {"model.model_config.pp_interleave_num": 2},
    {"parallel_config.pipeline_stage": 1, "parallel_config.data_parallel": 4,
     "parallel.dataset_strategy": [[4, 1]] * 4, "runner_config.gradient_accumulation_steps": 6},
    {"recompute_config.recompute": [4, 9]},
    {"recompute_config.recompute": False},
]  # fmt: skip
"""Changes to our own MindFormers file: what import makes of them is what MindFormers makes of them."""
WHEEL_FILES = ("pretrain_qwen3_32b_4k.yaml", "pretrain_qwen3_30b_a3b_4k.yaml", "pretrain_telechat3_36b.yaml")


def test_import_reads_what_mindformers_reads(tmp_path):
    paths = [write(tmp_path, changes, f"{number}.yaml") for number, changes in enumerate(IMPORTED)]
    wheel = wheel_configs()
    assert wheel is not None
    paths += [path for path in sorted(wheel.rglob("*.yaml")) if path.name in WHEEL_FILES]
    assert len(paths) == len(IMPORTED) + len(WHEEL_FILES)
    for path, found in zip(paths, read_files(tmp_path, paths), strict=True):
        plan, seen = resolve(import_mindformers(path).recipe), found["transformer"]
        shape, mesh = plan.shape, plan.mesh
        assert tuple(found["stage_layers"]) == plan.stage_layers, path
        assert found["global_batch_size"] == plan.global_batch_size
        assert (seen["data_parallel_size"], seen["tensor_model_parallel_size"], seen["pipeline_model_parallel_size"],
                seen["context_parallel_size"]) == (mesh.dp, mesh.tp, mesh.pp, mesh.cp)  # fmt: skip
        assert seen["expert_model_parallel_size"] == plan.recipe.parallel.expert_parallel
        assert (seen["num_layers"], seen["hidden_size"], seen["num_attention_heads"], seen["num_query_groups"]) == (
            shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads)  # fmt: skip
        assert (seen["kv_channels"] or shape.hidden_size // shape.num_heads) == shape.head_dim
        assert (seen["vocab_size"], seen["rotary_base"], seen["layernorm_epsilon"], seen["init_method_std"]) == (
            shape.vocab_size, shape.rope_theta, shape.norm_eps, shape.init_std)  # fmt: skip
        assert (seen["num_moe_experts"] or 0) == shape.num_experts
        if shape.num_experts:
            assert (seen["moe_router_topk"], seen["moe_ffn_hidden_size"], seen["norm_topk_prob"],
                    seen["moe_aux_loss_coeff"]) == (shape.experts_per_token, shape.expert_ffn_size,
                                                    shape.normalize_expert_weights, shape.router_aux_loss)  # fmt: skip
        recomputed = sum(found["layer_recompute"]) / shape.num_layers
        assert plan.recipe.parallel.recompute == ("full" if recomputed >= 0.5 else "none")
