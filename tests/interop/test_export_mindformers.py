"""Recipe -> MindFormers YAML, and back."""

from __future__ import annotations

import re

import pytest
import yaml

from msparallel.context import context_kwargs
from msparallel.errors import RecipeError
from msparallel.interop.export_mindformers import DATA_PATH, export_mindformers
from msparallel.interop.import_mindformers import import_mindformers
from msparallel.interop.mindformers import is_mindformers, read_mindformers
from msparallel.plan import Plan, resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
ASCEND = ["cluster.hardware=atlas_800t_a2", "train.dtype=bfloat16"]
EXPORTED = [
    "llama2_13b_dp4_tp4_pp2", "llama2_13b_dp8_tp4_pp2", "llama2_70b_dp2_tp8_pp4", "llama2_7b_dp2_tp2_pp2",
    "llama2_7b_dp8_zero1", "qwen3_30b_a3b_dp8_pp2_ep8", "qwen3_32b_tp4_pp4", "qwen3_8b_cp4_tp2", "qwen3_8b_dp2_tp4",
]  # fmt: skip
REFUSED = {
    "custom_shape_cpu": "Ascend only", "gpt2_124m_auto_load": "learned positions",
    "gpt2_124m_auto_parallel": "learned positions", "gpt2_124m_dp8": "learned positions",
    "gpt_tiny_dp2_cpu": "one matrix", "gpt_tiny_dp4_cpu": "one matrix", "moe_tiny_cpu": "QK-norm",
    "quickstart": "one matrix", "qwen3_8b_serve_tp1": "`train:`", "qwen3_8b_serve_tp2": "`train:`",
    "serve_tiny_cpu": "`train:`",
}  # fmt: skip
"""Recipe -> words of the reason."""
NO_WORD = ("expert_capacity_factor", "vocab_size", "vocab_multiple")
"""Of the shape: what MindFormers cannot say, or says otherwise (the padded vocabulary)."""
VARIANTS = [
    ("qwen3_32b_tp4_pp4", ["parallel.stage_layers=[15,17,16,16]", "parallel.recompute=selective"]),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.pipeline_schedule=gpipe", "parallel.virtual_stages=2"]),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.virtual_stages=2", "parallel.stage_layers=[7,9,8,8]"]),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.mode=auto_parallel", "parallel.search_mode=recursive_programming"]),
    ("llama2_7b_dp8_zero1", ["parallel.optimizer_shard=level3", "train.global_batch_size=8"]),
    ("llama2_7b_dp8_zero1", ["parallel.optimizer_shard=true", "parallel.comm_fusion=64"]),
    ("llama2_7b_dp8_zero1", ["parallel.comm_fusion=auto", "parallel.strategy_save_file=out/strategy.json"]),
    ("llama2_7b_dp8_zero1", ["optimizer.schedule=constant", "optimizer.min_learning_rate=null"]),
    ("llama2_7b_dp8_zero1", ["optimizer.clip_norm=0", "train.log_interval=7", "train.keep_checkpoints=9"]),
    ("llama2_7b_dp8_zero1", ["train.dtype=float16", "train.loss_scale=1024"]),
    ("llama2_7b_dp8_zero1", ["train.dtype=float16", "model.attention=plain"]),
    ("llama2_7b_dp8_zero1", ["model.preset=qwen2_7b"]),
    ("llama2_7b_dp8_zero1", ["parallel.mode=data_parallel", "parallel.optimizer_shard=null",
                             "parallel.optimizer_shard_size=null", "parallel.optimizer_shard_threshold_kib=null",
                             "train.global_batch_size=8"]),
    ("llama2_7b_dp8_zero1", ["parallel.mode=stand_alone", "parallel.data_parallel=1", "parallel.optimizer_shard=null",
                             "parallel.optimizer_shard_size=null", "parallel.optimizer_shard_threshold_kib=null",
                             "train.global_batch_size=1"]),
    ("qwen3_8b_cp4_tp2", ["parallel.context_parallel_algo=all_gather"]),
    ("qwen3_8b_dp2_tp4", ["model.preset=qwen3_4b", "train.seed=0", "train.output_dir=some where/else"]),
    ("custom_shape_cpu", [*ASCEND, "model.attention=flash", "train.global_batch_size=8"]),
]  # fmt: skip


def there_and_back(folder, name: str, overrides: list[str]) -> tuple[Plan, Plan]:
    recipe = load_recipe(name, overrides)
    path = folder / "exported.yaml"
    path.write_text(export_mindformers(recipe).text, encoding="utf-8")
    return resolve(recipe), resolve(import_mindformers(path).recipe)


def comparable(plan: Plan) -> dict:
    """Every value that both sides have a word for."""
    train, optimizer, parallel = plan.recipe.train, plan.recipe.optimizer, plan.recipe.parallel
    shape = {name: value for name, value in vars(plan.shape).items() if name not in NO_WORD}
    if not plan.shape.num_experts:  # no router, so no weights to normalize
        shape.pop("normalize_expert_weights")
    return {
        **shape,
        "rows": plan.shape.padded_vocab_size,
        "mesh": plan.mesh,
        "batch": (plan.global_batch_size, plan.micro_batch_size, plan.micro_batch_num),
        "stage_layers": plan.stage_layers,
        "virtual_stages": parallel.virtual_stages,
        "attention": plan.attention,
        "context": context_kwargs(plan),
        "op_parallel": plan.op_parallel,
        "optimizer": optimizer.model_dump(),
        **{key: getattr(train, key) for key in ("seq_length", "steps", "seed", "dtype", "output_dir", "log_interval",
                                                "keep_checkpoints")},
        "checkpoint_interval": train.checkpoint_interval or train.steps,
        "loss_scale": (train.loss_scale or "dynamic") if train.dtype == "float16" else None,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "overrides"), [(name, []) for name in EXPORTED] + VARIANTS)
def test_what_both_sides_have_survives_there_and_back(tmp_path, name, overrides):
    before, after = there_and_back(tmp_path, name, overrides)
    assert comparable(after) == comparable(before)


@pytest.mark.parametrize("copies", [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("level", ["level1", "level2", "level3"])
def test_the_optimizer_shard_survives_wherever_there_are_copies(tmp_path, copies, level):
    dp, cp = copies
    for size in [number for number in (2, 4, 8) if dp * cp % number == 0] + ["null"]:
        overrides = [f"parallel.optimizer_shard={level}", f"parallel.optimizer_shard_size={size}",
                     f"parallel.data_parallel={dp}", f"parallel.context_parallel={cp}",
                     f"train.global_batch_size={4 * dp}", "cluster.nodes=null",
                     "cluster.devices_per_node=null"]  # fmt: skip
        overrides += ["parallel.context_parallel_algo=null"] * (cp == 1)
        before, after = there_and_back(tmp_path, "qwen3_8b_cp4_tp2", overrides)
        shards = [(plan.recipe.parallel.optimizer_shard, plan.recipe.parallel.optimizer_shard_size, plan.mesh)
                  for plan in (before, after)]  # fmt: skip
        assert shards[0] == shards[1] and shards[0][0]


def test_every_shipped_recipe_is_exported_or_refused():
    assert set(EXPORTED) | set(REFUSED) == set(shipped_recipes())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_mindformers_cannot_train_is_said_so(name):
    with pytest.raises(RecipeError) as error:
        export_mindformers(load_recipe(name))
    assert REFUSED[name] in str(error.value)


@pytest.mark.parametrize(("name", "overrides", "words"), [
    ("qwen3_30b_a3b_dp8_pp2_ep8", ["model.qk_norm=false"], "experts there come with QK-norm"),
    ("llama2_7b_dp8_zero1", ["model.output_bias=true"], "bias on the attention output"),
    ("llama2_7b_dp8_zero1", ["model.preset=qwen2_0_5b"], "one matrix for token embedding"),
    ("custom_shape_cpu", ASCEND, "in mode stand_alone it takes 1 step"),
    ("qwen3_8b_cp4_tp2", ["model.attention=plain"], "flash attention only"),
    ("llama2_7b_dp2_tp2_pp2", ["parallel.vocab_parallel=false", "model.vocab_size=32001"], "32001 % 2 = 1"),
])  # fmt: skip
def test_what_one_setting_makes_impossible(name, overrides, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        export_mindformers(load_recipe(name, overrides))


def test_what_has_no_word_stands_in_the_head():
    exported = export_mindformers(load_recipe("qwen3_30b_a3b_dp8_pp2_ep8"))
    head = exported.text.partition("\n\n")[0]
    assert all(line.startswith("# ") for line in head.splitlines())
    found = {item.key for item in exported.not_exported}
    assert {"model.expert_capacity_factor", "data.corpus", "data.tokenizer", "cluster.nodes"} <= found
    assert all(key in head for key in found)
    assert DATA_PATH in head
    assert yaml.safe_load(exported.text) == exported.document


def test_the_order_of_what_has_no_word_does_not_change():
    told = [export_mindformers(load_recipe("llama2_7b_dp2_tp2_pp2")).not_exported for _ in range(3)]
    assert told[0] == told[1] == told[2]
    assert [item.key for item in told[0]] == ["data.corpus", "data.tokenizer", "cluster.nodes",
                                              "cluster.devices_per_node", "cluster.hardware"]  # fmt: skip


def test_the_export_is_a_mindformers_file_to_us(tmp_path):
    path = tmp_path / "out.yaml"
    path.write_text(export_mindformers(load_recipe("qwen3_32b_tp4_pp4")).text)
    assert is_mindformers(path) and not is_mindformers(shipped_recipes()["qwen3_32b_tp4_pp4"])
    with pytest.raises(RecipeError, match="This is a MindFormers YAML"):
        load_recipe(path)
    config = read_mindformers(path)
    assert (config.model_parallel, config.pipeline_stages, config.micro_batches) == (4, 4, 32)
    assert config.stage_layers(64) == (16, 16, 16, 16)


@pytest.mark.parametrize("text", ["a\x1b[31m", "line\u2028break", "\u202eright to left"])
def test_odd_paths_stay_comments(tmp_path, text):
    recipe = load_recipe("qwen3_32b_tp4_pp4", [f"data.corpus={text!a}"] if text.isascii() else [])
    object.__setattr__(recipe, "path", text)
    exported = export_mindformers(recipe)
    assert yaml.safe_load(exported.text) == exported.document
