"""Deep models inferred from two and three layers a group: equal to a compilation of all layers."""

from __future__ import annotations

import pytest
from compiled import dried, plan_of

from msparallel.compile.depth import is_worth_it, note
from msparallel.compile.dryrun import recipe_job
from msparallel.errors import UserError

TIMES = {"build_s", "compile_s", "process_peak_bytes", "compiled_layers", "peak_tensors", "peak_tensor_count"}
HYBRID = ("llama2_7b_dp2_tp2_pp2", "train.global_batch_size=8")


def assert_inferred(*words: str, ranks: tuple[int, ...]) -> None:
    full = dried(*words, ranks=ranks, depth="full")
    inferred = dried(*words, ranks=ranks, depth="representative")
    for a, b in zip(full.ranks, inferred.ranks, strict=True):
        assert a.compiled_layers is None and b.compiled_layers is not None
        left, right = a.to_json(), b.to_json()
        assert {k: v for k, v in left.items() if k not in TIMES} == {k: v for k, v in right.items() if k not in TIMES}


@pytest.mark.cpu
def test_a_pipeline_with_shard_and_recompute():
    words = ("model.num_layers=10", "parallel.optimizer_shard=true", "parallel.optimizer_shard_threshold_kib=0")
    assert_inferred(*HYBRID, *words, "parallel.recompute=full", "parallel.sequence_parallel=true", ranks=(5,))


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ((*HYBRID, "model.num_layers=16"), (0, 4)),
        ((*HYBRID, "model.num_layers=18", "parallel.stage_layers=[8,10]", "parallel.recompute=selective"), (1, 7)),
        ((*HYBRID, "model.num_layers=18", "parallel.optimizer_shard=level2"), (0, 7)),
        ((*HYBRID, "model.num_layers=16", "parallel.virtual_stages=2"), (0, 5)),
        (("qwen3_8b_dp2_tp4", "model.num_layers=9", "train.global_batch_size=4"), (1,)),
        (("qwen3_8b_cp4_tp2", "model.num_layers=7", "train.global_batch_size=2"), (3,)),
        (("gpt2_124m_dp8", "model.num_layers=9", "train.global_batch_size=16"), (1,)),
        (("llama2_7b_dp8_zero1", "model.num_layers=9", "train.global_batch_size=16"), (2,)),
        (("qwen3_30b_a3b_dp8_pp2_ep8", "model.num_layers=10", "train.global_batch_size=16", "model.num_experts=16",
          "model.experts_per_token=2", "model.expert_ffn_size=64"), (0, 8)),
    ],
    ids=["hybrid", "uneven", "level2", "interleaved", "sequence", "context", "gpt2", "zero1", "experts"],
)  # fmt: skip
def test_every_kind(words, ranks):
    assert_inferred(*words, ranks=ranks)


@pytest.mark.pure
def test_only_deep_models_are_inferred():
    assert is_worth_it((20, 20)) and is_worth_it((19, 20, 21, 20))
    assert not is_worth_it((8, 8)) and not is_worth_it((3, 20))
    assert "4 and with 6 layers" in note((20, 20)) and "40" in note((20, 20))
    job = recipe_job(plan_of("llama2_13b_dp4_tp4_pp2", small=False))
    assert [variant.stage_layers for variant in job.variants] == [(2, 2), (3, 3)]
    assert [v.request.overrides for v in job.variants] == [["model.num_layers=4"], ["model.num_layers=6"]]
    uneven = recipe_job(plan_of("llama2_70b_dp2_tp8_pp4", small=False))
    assert uneven.variants[0].request.overrides == ["model.num_layers=8", "parallel.stage_layers=[2,2,2,2]"]


@pytest.mark.pure
def test_too_few_layers_to_infer_from():
    with pytest.raises(UserError, match="needs more than that. Try: --depth full"):
        recipe_job(plan_of("llama2_7b_dp2_tp2_pp2", "model.num_layers=6", small=False), "representative")
