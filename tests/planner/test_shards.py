"""Predicted slices against pictures drawn by hand, and what must hold for every plan."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from msparallel.errors import RecipeError
from msparallel.model.presets import PRESETS
from msparallel.plan import Plan, resolve
from msparallel.planner.shards import parameters, predict_shards, state_bytes
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure

HYBRID = "llama2_7b_dp2_tp2_pp2"  # 32 layers, hidden 4096, ffn 11008, vocabulary 32000
WHOLE = ["parallel.optimizer_shard=true", "parallel.optimizer_shard_threshold_kib=0"]


def plan(*words: str, recipe: str = HYBRID) -> Plan:
    return resolve(load_recipe(recipe, list(words)))


def no_pipeline(dp: int, tp: int) -> list[str]:
    return [f"parallel.data_parallel={dp}", f"parallel.model_parallel={tp}", "parallel.pipeline_stages=1"]


def bounds(shards, name):
    return shards[name].part.bounds


def test_without_the_optimizer_shard():
    """Rank 5 of pp2 x dp2 x tp2 is (1, 0, 1): layers 16 to 31, the second half of what tp cuts."""
    shards = predict_shards(plan(), 5)
    assert bounds(shards, "model.layers.16.self_attn.q_proj.weight") == ((2048, 4096), (0, 4096))
    assert bounds(shards, "model.layers.16.self_attn.o_proj.weight") == ((0, 4096), (2048, 4096))
    assert bounds(shards, "model.layers.31.mlp.up_proj.weight") == ((5504, 11008), (0, 4096))
    assert bounds(shards, "model.layers.31.mlp.down_proj.weight") == ((0, 4096), (5504, 11008))
    assert bounds(shards, "model.norm.weight") == ((0, 4096),)
    assert bounds(shards, "lm_head.weight") == ((16000, 32000), (0, 4096))
    assert "model.layers.15.self_attn.q_proj.weight" not in shards and "model.embed_tokens.weight" not in shards
    assert shards["lm_head.weight"].local_bytes == shards["lm_head.weight"].gathered_bytes == 16000 * 4096 * 4


def test_the_optimizer_shard_cuts_rows_over_the_copies():
    """Copies of a matrix are the two of dp; what tp leaves whole has four copies, ranks 4 to 7 in order."""
    cut = plan(*WHOLE)
    held = {rank: predict_shards(cut, rank) for rank in range(4, 8)}
    head = [held[rank]["lm_head.weight"].part for rank in held]
    assert [part.bounds[0] for part in head] == [(0, 8000), (16000, 24000), (8000, 16000), (24000, 32000)]
    assert head[0].cut_by == (("tp", "optimizer_shard"), ())
    down = [held[rank]["model.layers.16.mlp.down_proj.weight"].part for rank in held]
    assert [part.bounds for part in down] == [
        ((0, 2048), (0, 5504)), ((0, 2048), (5504, 11008)), ((2048, 4096), (0, 5504)), ((2048, 4096), (5504, 11008)),
    ]  # fmt: skip
    assert down[0].cut_by == (("optimizer_shard",), ("tp",))
    norm = [bounds(held[rank], "model.norm.weight")[0] for rank in held]
    assert norm == [(0, 1024), (1024, 2048), (2048, 3072), (3072, 4096)]
    assert held[4]["model.norm.weight"].gathered_bytes == 4 * held[4]["model.norm.weight"].local_bytes == 4096 * 4


def test_the_threshold_is_of_the_whole_parameter_and_cuts_at_equality():
    """A matrix of 256 x 64 float32 has exactly 64 KiB; each of its two slices has 32."""
    tiny = ["model.hidden_size=64", "model.num_heads=4", "model.ffn_size=128", "model.num_layers=2"]
    words = [*tiny, *no_pipeline(4, 2), "parallel.optimizer_shard=true"]
    assert predict_shards(plan(*words, "model.vocab_size=256"), 0)["lm_head.weight"].optimizer_shard
    assert not predict_shards(plan(*words, "model.vocab_size=248"), 0)["lm_head.weight"].optimizer_shard
    raised = [*words, "model.vocab_size=256", "parallel.optimizer_shard_threshold_kib=65"]
    assert not predict_shards(plan(*raised), 0)["lm_head.weight"].optimizer_shard


def test_rows_that_do_not_divide_stay():
    """40 rows over 8 ranks divide, 60 do not; tp 2 x dp 4 takes 136 rows and leaves 100."""
    words = ["model.head_dim=16", "model.num_heads=4", "model.vocab_size=100", "model.num_layers=2", *WHOLE]
    shards = predict_shards(plan(*words, "model.hidden_size=60", "model.ffn_size=136", *no_pipeline(4, 2)), 0)
    assert not shards["model.norm.weight"].optimizer_shard and not shards["lm_head.weight"].optimizer_shard
    assert shards["model.layers.0.mlp.up_proj.weight"].local_shape == (17, 60)
    assert shards["model.layers.0.mlp.down_proj.weight"].local_shape == (15, 68)
    shards = predict_shards(plan(*words, "model.hidden_size=40", "model.ffn_size=136", *no_pipeline(4, 2)), 0)
    assert shards["model.norm.weight"].local_shape == (5,)


def test_a_smaller_optimizer_shard_repeats():
    shards = [predict_shards(plan(*WHOLE, *no_pipeline(8, 1), "parallel.optimizer_shard_size=2"), r) for r in range(8)]
    assert [bounds(s, "model.norm.weight")[0] for s in shards] == [(0, 2048), (2048, 4096)] * 4


def test_a_size_beyond_the_copies_takes_all_copies():
    """Of an expert there are fewer copies than of the rest."""
    words = [*WHOLE, "parallel.expert_parallel=4", "parallel.optimizer_shard_size=8"]
    experts = predict_shards(plan(*words, recipe="qwen3_30b_a3b_dp8_pp2_ep8"), 7)
    assert bounds(experts, "model.layers.0.mlp.experts.up_proj")[0] == (112, 128)


def test_a_group_that_straddles_servers_cuts_nothing():
    """24 ranks on three servers: 12 of them would be eight of one server and four of the next."""
    words = [*WHOLE, *no_pipeline(24, 1), "cluster.nodes=3", "train.global_batch_size=24", "model.hidden_size=3072"]
    words += ["model.num_heads=24"]
    assert predict_shards(plan(*words, "parallel.optimizer_shard_size=8"), 9)["model.norm.weight"].local_shape == (384,)
    assert predict_shards(plan(*words, "parallel.optimizer_shard_size=12"), 9)["model.norm.weight"].local_shape == (
        3072,
    )


def test_experts_are_cut_over_neighbours():
    """Two stages of dp8; ep 4: four ranks hold the 128 experts, and the optimizer shard halves what two ranks share."""
    words = [*WHOLE, "parallel.expert_parallel=4"]
    shards = [predict_shards(plan(*words, recipe="qwen3_30b_a3b_dp8_pp2_ep8"), rank) for rank in range(8)]
    name = "model.layers.0.mlp.experts.down_proj"
    first = [bounds(s, name)[0] for s in shards]
    assert first == [(0, 16), (32, 48), (64, 80), (96, 112), (16, 32), (48, 64), (80, 96), (112, 128)]
    assert shards[0][name].part.cut_by == (("ep", "optimizer_shard"), (), ())
    assert shards[0][name].part.shape == (128, 2048, 768)
    assert bounds(shards[3], "model.layers.0.mlp.gate.weight") == ((48, 64), (0, 2048))


def test_gpt2_has_biases_positions_and_one_table():
    shards = predict_shards(plan("parallel.data_parallel=4", "parallel.model_parallel=2", recipe="gpt2_124m_dp8"), 1)
    assert "lm_head.weight" not in shards and len(shards) == 2 + 12 * 16 + 2
    layer = "model.layers.0"
    assert bounds(shards, f"{layer}.self_attn.v_proj.bias") == ((384, 768),)
    assert bounds(shards, f"{layer}.self_attn.o_proj.bias") == ((0, 768),)
    assert bounds(shards, f"{layer}.mlp.up_proj.bias") == ((1536, 3072),)
    assert bounds(shards, f"{layer}.mlp.down_proj.bias") == bounds(shards, "model.norm.bias") == ((0, 768),)
    assert bounds(shards, "model.embed_positions.weight") == ((0, 1024), (0, 768))
    assert bounds(shards, "model.embed_tokens.weight") == ((50304 // 2, 50304), (0, 768))


def test_the_vocabulary_stays_whole_without_vocab_parallel():
    shards = predict_shards(plan("parallel.vocab_parallel=false"), 5)
    assert bounds(shards, "lm_head.weight") == ((0, 32000), (0, 4096))


def test_stages_come_back_with_virtual_stages():
    words = ["model.num_layers=8", "parallel.virtual_stages=2"]
    for rank, expected in ((0, {"0", "1", "4", "5"}), (4, {"2", "3", "6", "7"})):
        names = predict_shards(plan(*words), rank)
        assert {name.split(".")[2] for name in names if ".layers." in name} == expected


def test_data_parallel_without_the_engine_holds_everything():
    for rank in range(2):
        shards = predict_shards(plan(recipe="gpt_tiny_dp2_cpu"), rank)
        assert all(s.local_shape == s.part.shape and not any(s.part.cut_by) for s in shards.values())
    with pytest.raises(IndexError):
        predict_shards(plan(recipe="gpt_tiny_dp2_cpu"), 2)


def test_what_the_search_decides_is_not_predicted():
    with pytest.raises(RecipeError, match="yaml:[0-9]+  parallel.mode: auto_parallel") as caught:
        predict_shards(plan(recipe="gpt2_124m_auto_parallel"), 0)
    words = caught.value.problems[0].suggestion.split()
    assert predict_shards(plan(*words, recipe="gpt2_124m_auto_parallel"), 0)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_parameters_are_those_of_the_model(preset):
    words = ["parallel.pipeline_stages=1", "parallel.data_parallel=1", "parallel.model_parallel=1"]
    listed = list(parameters(plan(f"model.preset={preset}", "train.seq_length=512", "cluster.devices_per_node=1",
                                  "parallel.mode=stand_alone", *words)))  # fmt: skip
    assert sum(math.prod(shape) for _, shape, _, _ in listed) == PRESETS[preset].parameters()
    assert len({name for name, _, _, _ in listed}) == len(listed)


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if "auto" not in name])
def test_the_ranks_of_a_recipe_hold_every_value_equally_often(name):
    shipped = resolve(load_recipe(name))
    held, whole = Counter(), {}
    for rank in range(shipped.world_size):
        for parameter, shard in predict_shards(shipped, rank).items():
            held[parameter] += math.prod(shard.local_shape)
            whole[parameter] = math.prod(shard.part.shape)
            for (start, stop), length in zip(shard.part.bounds, shard.part.shape, strict=True):
                assert 0 <= start < stop <= length
    assert all(count % whole[parameter] == 0 for parameter, count in held.items())
    assert sum(whole.values()) == shipped.shape.parameters()


def test_bytes_by_hand():
    """Stage 1 of Llama 2 7B over dp2 x tp2 x pp2: 16 layers and the head, of which tp halves all but 33 norms."""
    norms = 33 * 4096
    half = (16 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096) // 2
    plain = state_bytes(plan(), 5)
    assert plain.weights_bytes == plain.gradients_bytes == 4 * (half + norms)
    assert plain.optimizer_bytes == 2 * plain.weights_bytes
    level1 = state_bytes(plan(*WHOLE), 5)
    assert level1.weights_bytes == 4 * (half // 2 + norms // 4)
    assert level1.gradients_bytes == plain.gradients_bytes and level1.optimizer_bytes == 2 * level1.weights_bytes
    level2 = state_bytes(plan("parallel.optimizer_shard=level2", WHOLE[1]), 5)
    assert level2.gradients_bytes == level2.weights_bytes == level1.weights_bytes
    one = state_bytes(plan(*WHOLE, *no_pipeline(4, 2), "train.global_batch_size=4"), 5)
    assert one.gradients_bytes == one.weights_bytes


def test_a_recipe_that_does_not_train_has_weights_only():
    serving = plan(recipe="qwen3_8b_serve_tp2")
    state = state_bytes(serving, 0)
    assert state.optimizer_bytes == state.gradients_bytes == 0
    assert state.weights_bytes == sum(shard.local_bytes for shard in predict_shards(serving, 0).values())
