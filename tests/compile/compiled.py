"""Dry runs of small recipes for tests."""

from __future__ import annotations

from collections import Counter

from msparallel.compile.dryrun import DryRun, dry_run, recipe_job
from msparallel.compile.rank_report import RankReport
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe

SMALL = (
    *("model.hidden_size=64", "model.num_heads=8", "model.num_kv_heads=8", "model.head_dim=16", "model.ffn_size=128"),
    *("model.vocab_size=512", "train.seq_length=32", "train.micro_batch_size=1"),
)
"""One micro-batch is a sequence of 32 tokens of 64 numbers."""


def plan_of(recipe: str, *words: str, small: bool = True) -> Plan:
    """A recipe's plan, shrunk; words given here win."""
    stated = {word.partition("=")[0] for word in words}
    return resolve(load_recipe(recipe, [*(w for w in SMALL if small and w.partition("=")[0] not in stated), *words]))


def dried(recipe: str, *words: str, ranks: tuple[int, ...] = (0,), depth: str = "full", small: bool = True) -> DryRun:
    return dry_run(recipe_job(plan_of(recipe, *words, small=small), depth), ranks, progress=False)


def counts(report: RankReport, *purposes: str, axes: tuple[str, ...] | None = None) -> Counter[str]:
    """Messages a step by primitive, of some purposes and groups."""
    found: Counter[str] = Counter()
    for use in report.collectives:
        if use.purpose in purposes and axes in (None, use.axes):
            found[use.op] += use.count
    return found
