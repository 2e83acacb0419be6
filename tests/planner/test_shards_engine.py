"""Predicted slices against those of MindSpore's engine, parameter by parameter, and the bytes of the state."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from msparallel.compile.dryrun import dry_run, recipe_job
from msparallel.compile.rank_report import RankReport
from msparallel.plan import Plan, resolve
from msparallel.planner.shards import accumulates, predict_shards, state_bytes
from msparallel.recipe.load import load_recipe

RECIPE = "llama2_7b_dp2_tp2_pp2"
_SHORT = ["train.seq_length=32", "train.micro_batch_size=1", "model.num_heads=8"]
_EVEN = ["model.num_kv_heads=8", "model.head_dim=8", "model.vocab_size=256", "model.hidden_size=64"]
EVEN = ["model.preset=qwen3_8b", *_SHORT, *_EVEN, "model.ffn_size=128"]
"""Embedding and head have exactly 64 KiB, the default threshold."""
_ODD = ["model.num_kv_heads=8", "model.head_dim=12", "model.vocab_size=290", "model.hidden_size=60"]
ODD = ["model.preset=qwen3_8b", *_SHORT, *_ODD, "model.ffn_size=136", "model.vocab_multiple=8"]
"""60 rows and 12 do not divide by 8, 136 rows not by 16, 296 rows of the vocabulary not by 16."""
BIASED = ["model.preset=qwen2_7b", *EVEN[1:]]
GPT2 = ["model.preset=gpt2_124m", *_SHORT, "model.hidden_size=64", "model.ffn_size=128", "model.vocab_size=250"]
GPT2 += ["model.vocab_multiple=16", "model.max_positions=48"]
MOE = [*EVEN, "model.num_experts=8", "model.experts_per_token=2", "model.expert_ffn_size=40"]
MOE += ["model.router_aux_loss=0.01"]
WIDE = [word.replace("hidden_size=64", "hidden_size=96").replace("ffn_size=128", "ffn_size=72") for word in EVEN]
"""96 and 72 rows divide by 24, the vocabulary does not."""
WIDE_MOE = [word.replace("num_experts=8", "num_experts=48") for word in MOE]
UNTIED, TIED = ["model.tie_embeddings=false"], ["model.tie_embeddings=true"]
WHOLE_VOCAB = ["parallel.vocab_parallel=false"]
SEQUENCE = ["parallel.sequence_parallel=true"]
ULYSSES = ["parallel.context_parallel_algo=ulysses"]
SERVERS = ["cluster.nodes=3", "cluster.devices_per_node=8"]
ACCUMULATED = ["train.global_batch_size=8"]


def shard(level: str = "level1", *, threshold_kib: int | None = 0, size: int | None = None) -> list[str]:
    words = [f"parallel.optimizer_shard={level}"]
    words += [] if threshold_kib is None else [f"parallel.optimizer_shard_threshold_kib={threshold_kib}"]
    return words + ([] if size is None else [f"parallel.optimizer_shard_size={size}"])


@dataclass(frozen=True)
class Case:
    """One rank of one recipe; `words` replace the recipe's values."""

    rank: int
    shape: list[str]
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    layers: int | None = None
    words: list[str] = field(default_factory=list)

    def recipe_words(self) -> list[str]:
        degrees = {"data": self.dp, "model": self.tp, "context": self.cp, "expert": self.ep}
        words = [f"parallel.{name}_parallel={degree}" for name, degree in degrees.items()]
        words += [f"parallel.pipeline_stages={self.pp}", f"model.num_layers={self.layers or max(2, self.pp)}"]
        if not any(word.startswith("train.global_batch_size=") for word in self.words):
            words.append(f"train.global_batch_size={self.dp * self.pp}")
        return [RECIPE, *self.shape, *words, *self.words]

    def __str__(self) -> str:
        shape = next(
            name
            for name in ("EVEN", "ODD", "BIASED", "GPT2", "MOE", "WIDE", "WIDE_MOE")
            if globals()[name] is self.shape
        )
        words = [word.partition(".")[2] for word in self.words]
        return "-".join([shape, f"dp{self.dp}tp{self.tp}pp{self.pp}cp{self.cp}ep{self.ep}", *words, f"rank{self.rank}"])


def factorisations() -> list[Case]:
    """Every dp x tp x pp = 8 with and without optimizer shard and sequence parallel, ranks in turn."""
    cases = []
    switches = itertools.product(([], shard(), shard(threshold_kib=None)), ([], SEQUENCE))
    for shape, degrees, (cut, sequence) in itertools.product(
        (EVEN, ODD), itertools.product((1, 2, 4, 8), repeat=3), list(switches)
    ):
        dp, tp, pp = degrees
        if dp * tp * pp == 8 and not (cut and dp == 1) and not (sequence and tp == 1):
            rank = 3 * (len(cases) + 1) % 8
            cases.append(Case(rank, shape, dp=dp, tp=tp, pp=pp, words=[*cut, *sequence]))
    return cases


SAMPLE = [
    Case(5, EVEN, dp=2, tp=2, pp=2, words=shard()),
    Case(6, ODD, dp=4, tp=2, words=shard(size=2)),
    Case(3, EVEN, dp=2, tp=4, words=[*shard(threshold_kib=None), *SEQUENCE]),
    Case(5, EVEN, dp=2, tp=2, cp=2, words=shard()),
    Case(6, MOE, dp=2, tp=2, pp=2, ep=4, words=shard()),
    Case(5, GPT2, dp=4, tp=2, words=shard()),
]
FURTHER = [
    Case(3, EVEN, tp=2, cp=4, words=ULYSSES),
    Case(6, EVEN, dp=2, cp=4, words=[*shard(), *ULYSSES]),
    Case(7, ODD, dp=2, tp=2, cp=2, words=[*shard(), *SEQUENCE]),
    Case(6, EVEN, dp=2, pp=2, cp=2, words=shard()),
    Case(3, ODD, dp=4, cp=2, words=shard(threshold_kib=None)),
    Case(5, MOE, dp=8, ep=8, words=shard()),
    Case(3, MOE, dp=8, ep=4, words=shard()),
    Case(6, MOE, dp=4, tp=2, ep=2, words=[*shard(), *SEQUENCE]),
    Case(6, MOE, dp=4, tp=2, words=shard()),
    Case(5, MOE, dp=2, tp=4, ep=2, words=shard()),
    Case(4, MOE, dp=2, tp=2, cp=2, ep=8, words=shard()),
    Case(2, MOE, dp=2, tp=2, cp=2, ep=2),
    Case(5, MOE, dp=4, pp=2, ep=2, words=shard()),
    Case(1, MOE, dp=4, tp=2, ep=4, words=shard(threshold_kib=20)),
    Case(6, MOE, dp=8, ep=4, words=shard(size=4)),  # two copies, which 4 does not divide
    Case(6, MOE, dp=8, ep=2, words=shard(size=2)),
    Case(2, GPT2, dp=2, tp=4, words=SEQUENCE),
    Case(3, GPT2, dp=2, tp=2, pp=2, words=[*shard(), *UNTIED]),
    Case(6, GPT2, dp=8, words=shard(threshold_kib=8)),
    Case(7, GPT2, dp=2, tp=4, words=[*shard(), *WHOLE_VOCAB]),
    Case(5, BIASED, dp=2, tp=4, words=shard()),
    Case(5, EVEN, dp=4, tp=2, words=[*shard(), *WHOLE_VOCAB]),
    Case(6, EVEN, dp=2, tp=4, words=[*shard(threshold_kib=None), *SEQUENCE, *WHOLE_VOCAB]),
    Case(7, ODD, dp=2, tp=2, pp=2, words=[*shard(), *WHOLE_VOCAB]),
    Case(6, EVEN, dp=4, tp=2, words=[*shard(), *TIED]),
    Case(3, EVEN, dp=2, tp=4, words=[*shard(), *SEQUENCE, *TIED, *WHOLE_VOCAB]),
    Case(1, ODD, dp=8, words=[*shard(threshold_kib=None), *TIED]),
    Case(5, EVEN, dp=8, words=shard(size=2)),
    Case(6, EVEN, dp=8, words=shard(size=4)),
    Case(6, EVEN, dp=4, tp=2, words=shard(size=4)),
    Case(7, EVEN, dp=2, tp=2, pp=2, words=shard(size=2)),
    Case(1, ODD, dp=4, tp=2, words=[*shard(size=4), *SEQUENCE]),
    Case(5, ODD, dp=8, words=shard(size=2)),
    Case(5, EVEN, dp=2, tp=2, pp=2, words=shard("level2")),
    Case(3, ODD, dp=4, pp=2, words=shard("level2")),
    *[Case(6, EVEN, dp=4, tp=2, words=shard(level)) for level in ("level2", "level3")],
    Case(6, EVEN, dp=4, tp=2, words=[*shard(), *ACCUMULATED]),
    Case(6, EVEN, dp=4, tp=2, words=ACCUMULATED),
    *[Case(rank, EVEN, dp=2, tp=2, pp=2, layers=4, words=[*shard(), "parallel.virtual_stages=2"]) for rank in (1, 6)],
    Case(6, EVEN, dp=2, pp=4, layers=5, words=[*shard(), "parallel.stage_layers=[2,1,1,1]"]),
    # a query matrix has 16 KiB, one of the feed-forward layer 32
    *[Case(5, EVEN, dp=4, tp=2, words=shard(threshold_kib=kib)) for kib in (15, 16, 17, 32, 33)],
    Case(3, EVEN, dp=4, tp=2, words=[*shard(), "train.dtype=float16"]),
    # three servers: groups of 2 and 8 can be, of 6 and 12 not; of three copies 2 takes none and 12 all
    *[Case(15, WIDE, dp=24, words=[*shard(size=size), *SERVERS]) for size in (2, 6, 8, 12)],
    *[Case(15, WIDE_MOE, dp=24, ep=8, words=[*shard(size=size), *SERVERS]) for size in (2, 12)],
]


def plan_of(words: list[str]) -> Plan:
    return resolve(load_recipe(words[0], words[1:]))


def check(plan: Plan, rank: int) -> None:
    engine, shards, state = (
        dry_run(recipe_job(plan, "full"), [rank], progress=False).ranks[0],
        predict_shards(plan, rank),
        state_bytes(plan, rank),
    )
    found = {held.name: held for held in engine.parameters if held.role == "weight"}
    assert shards.keys() == found.keys()
    for name, shard_ in shards.items():
        part, held = shard_.part, found[name]
        assert (part.shape, part.bounds, shard_.local_bytes) == (held.part.shape, held.part.bounds, held.bytes), name
        assert shard_.optimizer_shard == (held.optimizer_shard > 1), name
        assert shard_.gathered_bytes == held.bytes * held.optimizer_shard, name
        if "ep" not in part.cut_by[0]:  # the engine's layout knows the axes of the mesh only
            assert part.cut_by == held.part.cut_by, name
    assert (state.weights_bytes, state.optimizer_bytes) == (engine.weights_bytes, adam_bytes(engine))
    assert (state.gradients_bytes if accumulates(plan) else 0) == engine.gradients_bytes


def adam_bytes(engine: RankReport) -> int:
    """Of the moments, without the number of steps and the loss scale."""
    return sum(held.bytes for held in engine.parameters if held.name.startswith("adam_"))


@pytest.mark.pure
@pytest.mark.parametrize("case", [*SAMPLE, *factorisations(), *FURTHER], ids=str)
def test_every_case_is_a_recipe_that_can_be(case):
    assert predict_shards(plan_of(case.recipe_words()), case.rank)


@pytest.mark.cpu
@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_sample(case):
    check(plan_of(case.recipe_words()), case.rank)


@pytest.mark.cpu
@pytest.mark.parametrize("words", [["train.global_batch_size=4"], []], ids=["one_micro_batch", "accumulated"])
def test_without_the_engine_s_cuts(words):
    """data_parallel: every rank holds everything, and the sums of gradients where micro-batches are added."""
    check(plan_of(["gpt_tiny_dp2_cpu", *words]), 1)


@pytest.mark.cpu
@pytest.mark.slow
@pytest.mark.parametrize("case", [*factorisations(), *FURTHER], ids=str)
def test_matrix(case):
    check(plan_of(case.recipe_words()), case.rank)
