"""Everything of a run that can be wrong before MindSpore is needed: data, tokenizer, checkpoint.

In: a Plan and its newest checkpoint. Out: the opened data, or the result of a run that has nothing left to do.

>>> prepare(plan, store(plan).newest()).data.train_tokens
2841012
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.data.dataset import Dataset, open_dataset
from msparallel.data.loader import TrainLoader
from msparallel.plan import Plan
from msparallel.train.checkpoint import Checkpoint
from msparallel.train.log import evaluations_of, losses_of, read_records
from msparallel.train.resume import check_data, check_matches
from msparallel.train.run import RunResult, run_dir


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Attributes:
    checkpoint: to go on from; it fits plan and data.
    changes: what the recipe changes from here on, as lines of text.
    """

    data: Dataset
    loader: TrainLoader
    checkpoint: Checkpoint | None
    changes: tuple[str, ...]


def prepare(plan: Plan, checkpoint: Checkpoint | None) -> Prepared:
    """Open the data, and check the checkpoint against plan and data. Raises UserError for what does not fit."""
    recipe, train = plan.recipe, plan.recipe.train
    assert train is not None, "only recipes with a train section are trained"
    changes = check_matches(checkpoint, plan) if checkpoint else []
    data = open_dataset(
        source=recipe.data.corpus,
        tokenizer=recipe.data.tokenizer,
        vocab_size=plan.shape.vocab_size,
        seq_length=train.seq_length,
        seed=train.seed,
        eval_fraction=recipe.data.eval_fraction,
        cache_dir=recipe.data.cache_dir,
        text_field=recipe.data.text_field or "text",
    )
    loader = data.train_loader(global_batch_size=plan.global_batch_size)
    if checkpoint:
        check_data(checkpoint, data.fingerprint)
    return Prepared(data=data, loader=loader, checkpoint=checkpoint, changes=tuple(changes))


def finished(plan: Plan, checkpoint: Checkpoint | None) -> RunResult | None:
    """Result of a run that has nothing left to do, None where there is."""
    train = plan.recipe.train
    assert train is not None, "only recipes with a train section are trained"
    if checkpoint is None or checkpoint.step < train.steps:
        return None
    check_matches(checkpoint, plan)
    records = [r for r in read_records(run_dir(plan) / "log.jsonl") if r.get("step", 0) <= checkpoint.step]
    return RunResult(
        world_size=plan.world_size,
        losses=losses_of(records, checkpoint.step),
        eval_losses=[{"step": step, "loss": loss} for step, loss in evaluations_of(records)],
        tokens_per_s=0.0,
        checkpoint=str(checkpoint.path),
        resumed_from=checkpoint.step,
        finished_before=True,
    )
