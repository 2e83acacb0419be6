"""Strategies that must compute the same as one device: every way to cut 8 devices, and what else a recipe can switch.

In: nothing. Out: `CASES`, overrides by name; `SAMPLE`, the names that stand for all of them.
"""

from __future__ import annotations

import itertools

RECIPE = "llama2_7b_dp2_tp2_pp2"
DEVICES = 8
FACTORS = [
    (dp, tp, DEVICES // dp // tp)
    for dp, tp in itertools.product((1, 2, 4, 8), repeat=2)
    if DEVICES % (dp * tp) == 0
]  # fmt: skip
"""(data_parallel, model_parallel, pipeline_stages)."""


def factor_cases() -> dict[str, tuple[str, ...]]:
    """All factorisations, each with and without what can be switched in it."""
    cases = {}
    for dp, tp, pp in FACTORS:
        switches = itertools.product(
            (False, True) if dp > 1 else (False,),
            (False, True) if tp > 1 else (False,),
            (False, True),
            (pp, 2 * pp),
        )
        for shard, sequence, recompute, micro in switches:
            words = [f"dp{dp}", f"tp{tp}", f"pp{pp}", f"m{micro}"]
            words += ["shard"] * shard + ["seq"] * sequence + ["recompute"] * recompute
            cases["-".join(words)] = (
                f"parallel.data_parallel={dp}",
                f"parallel.model_parallel={tp}",
                f"parallel.pipeline_stages={pp}",
                f"parallel.optimizer_shard={str(shard).lower()}",
                f"parallel.sequence_parallel={str(sequence).lower()}",
                f"parallel.recompute={'full' if recompute else 'none'}",
                f"train.global_batch_size={dp * micro}",
                "train.micro_batch_size=1",
            )
    return cases


OTHER_CASES: dict[str, tuple[str, ...]] = {
    "cp2-tp2-dp2": ("qwen3_8b_cp4_tp2", "parallel.context_parallel=2", "parallel.data_parallel=2"),
    "cp4-tp2": ("qwen3_8b_cp4_tp2",),
    "cp4-tp2-seq": ("qwen3_8b_cp4_tp2", "parallel.sequence_parallel=true"),
    "cp4-tp2-ulysses": ("qwen3_8b_cp4_tp2", "parallel.context_parallel_algo=ulysses"),
    "cp2-pp2-dp2-shard": (
        *("qwen3_8b_cp4_tp2", "parallel.context_parallel=2", "parallel.pipeline_stages=2", "parallel.data_parallel=2"),
        *("parallel.model_parallel=1", "parallel.optimizer_shard=true"),
    ),
    "qwen3-dp2-tp4": ("qwen3_8b_dp2_tp4",),
    "whole-vocabulary-tp4": ("qwen3_8b_dp2_tp4", "parallel.vocab_parallel=false"),
    "whole-vocabulary-tp2-pp2": (RECIPE, "parallel.vocab_parallel=false"),
    "gpt2-dp8": ("gpt2_124m_dp8",),
    "gpt2-dp2-tp4-seq": (
        *("gpt2_124m_dp8", "parallel.mode=semi_auto_parallel", "parallel.data_parallel=2"),
        *("parallel.model_parallel=4", "parallel.sequence_parallel=true", "model.num_heads=4"),
    ),
    "level2-dp8": (RECIPE, *("parallel.data_parallel=8", "parallel.model_parallel=1", "parallel.pipeline_stages=1"),
                   "parallel.optimizer_shard=level2"),
    "level3-dp4-tp2": (RECIPE, *("parallel.data_parallel=4", "parallel.model_parallel=2"),
                       *("parallel.pipeline_stages=1", "parallel.optimizer_shard=level3")),
    "interleaved-pp2-v2": (RECIPE, "parallel.virtual_stages=2"),
    "interleaved-pp4-v2": (RECIPE, "parallel.virtual_stages=2", "parallel.pipeline_stages=4",
                           "parallel.data_parallel=1"),
    "gpipe-pp2-v2": (RECIPE, "parallel.virtual_stages=2", "parallel.pipeline_schedule=gpipe"),
    "uneven-pp2": (RECIPE, "model.num_layers=3", "parallel.stage_layers=[2,1]"),
    "shard-size-dp8": (RECIPE, *("parallel.data_parallel=8", "parallel.model_parallel=1"),
                       *("parallel.pipeline_stages=1", "parallel.optimizer_shard=true"),
                       "parallel.optimizer_shard_size=4"),
    "fusion-dp4-tp2": (RECIPE, *("parallel.data_parallel=4", "parallel.model_parallel=2"),
                       *("parallel.pipeline_stages=1", "parallel.comm_fusion=auto")),
    "selective-dp2-tp2-pp2": (RECIPE, "parallel.recompute=selective"),
    "experts-dp4-ep4-pp2": ("qwen3_30b_a3b_dp8_pp2_ep8", "parallel.data_parallel=4", "parallel.expert_parallel=4",
                            "cluster.nodes=1"),
    "experts-dp2-tp2-ep4-pp2": (
        *("qwen3_30b_a3b_dp8_pp2_ep8", "parallel.data_parallel=2", "parallel.model_parallel=2"),
        *("parallel.expert_parallel=4", "cluster.nodes=1"),
    ),
    "experts-dp8-ep2": (
        *("qwen3_30b_a3b_dp8_pp2_ep8", "parallel.pipeline_stages=1", "parallel.expert_parallel=2", "cluster.nodes=1"),
    ),
    "experts-dp4-tp2-ep2-seq-shard": (
        *("qwen3_30b_a3b_dp8_pp2_ep8", "parallel.data_parallel=4", "parallel.model_parallel=2"),
        *("parallel.pipeline_stages=1", "parallel.expert_parallel=2", "parallel.sequence_parallel=true"),
        *("parallel.optimizer_shard=true", "cluster.nodes=1"),
    ),
    "data-parallel-mode": ("gpt_tiny_dp4_cpu",),
    "data-parallel-mode-accumulated": ("gpt_tiny_dp2_cpu", "train.micro_batch_size=1", "train.global_batch_size=4"),
}  # fmt: skip
"""Name -> recipe and overrides."""

CASES: dict[str, tuple[str, ...]] = {
    **{name: (RECIPE, *words) for name, words in factor_cases().items()},
    **OTHER_CASES,
}

SAMPLE = (
    "dp8-tp1-pp1-m2-shard",
    "dp1-tp8-pp1-m1-seq",
    "dp1-tp1-pp8-m8-recompute",
    "dp4-tp2-pp1-m1-shard-recompute",
    "dp2-tp4-pp1-m2-seq-recompute",
    "dp4-tp1-pp2-m4-shard",
    "dp2-tp1-pp4-m4",
    "dp1-tp4-pp2-m2-seq",
    "dp1-tp2-pp4-m8",
    "dp2-tp2-pp2-m4-shard-seq-recompute",
    "cp4-tp2",
    "cp4-tp2-ulysses",
    "whole-vocabulary-tp4",
    "gpt2-dp2-tp4-seq",
    "interleaved-pp2-v2",
    "experts-dp2-tp2-ep4-pp2",
    "experts-dp4-tp2-ep2-seq-shard",
    "data-parallel-mode-accumulated",
)
"""Each factorisation once, each switch twice and more, and every other kind of cut."""
