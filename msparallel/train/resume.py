"""What a checkpoint must share with a recipe, and how it gets back into the model.

In: a plan and a checkpoint's state. Out: a UserError that says what differs, or parameters filled in.

What must stay, because the losses would mean something else: the model's shape, the seed, seq_length,
global_batch_size, dtype and the data; and loss_scale, whose value comes from the checkpoint. What may change:
`optimizer` and `steps` (the schedule is then the new one, read at the step reached: a longer cosine rises back to its
own curve), intervals, micro_batch_size, and data_parallel where one copy holds everything. Slices fit only the plan
that cut them.

>>> check_matches(checkpoint, plan)
>>> restore(checkpoint, parameters)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from msparallel.errors import UserError
from msparallel.plan import Plan
from msparallel.train.checkpoint import Checkpoint

if TYPE_CHECKING:
    from mindspore import Parameter

CUTTING = (
    "mode",
    "data_parallel",
    "model_parallel",
    "pipeline_stages",
    "context_parallel",
    "expert_parallel",
    "virtual_stages",
    "stage_layers",
    "optimizer_shard",
    "optimizer_shard_size",
    "optimizer_shard_threshold_kib",
    "vocab_parallel",
)
"""Keys of `parallel` that decide which rank holds which slice."""


def identity(plan: Plan) -> dict[str, Any]:
    """What must stay the same over a run's life, as `section.key` -> JSON value."""
    train = plan.recipe.train
    assert train is not None, "only recipes with a train section are trained"
    model = {f"model.{key}": value for key, value in asdict(plan.shape).items()}
    return {
        **model,
        "train.seed": train.seed,
        "train.seq_length": train.seq_length,
        "train.dtype": train.dtype,
        "train.loss_scale": (train.loss_scale or "dynamic") if train.dtype == "float16" else None,
        "train.global_batch_size": plan.global_batch_size,
    }


def free_choices(plan: Plan) -> dict[str, Any]:
    """What may change from one part of a run to the next."""
    train = plan.recipe.train
    assert train is not None, "only recipes with a train section are trained"
    return {
        **{f"optimizer.{key}": value for key, value in plan.recipe.optimizer.model_dump().items()},
        "train.steps": train.steps,
    }


def cutting(plan: Plan) -> dict[str, Any]:
    """What decides which rank holds what."""
    resolved = {
        "data_parallel": plan.mesh.dp,
        "model_parallel": plan.mesh.tp,
        "pipeline_stages": plan.mesh.pp,
        "context_parallel": plan.mesh.cp,
        "stage_layers": list(plan.stage_layers),
    }
    return {f"parallel.{key}": resolved.get(key, getattr(plan.recipe.parallel, key)) for key in CUTTING}


def check_matches(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """Raise UserError where the checkpoint is of another run; otherwise the changes that are worth a word."""
    stored = checkpoint.state
    if missing := {"identity", "free", "cutting"} - stored.keys():
        raise UserError(
            f"{checkpoint.path / 'state.json'}\n  It has no {', '.join(sorted(missing))}: not a file that a run wrote. "
            "Restore it, or start over with `--fresh`."
        )
    different = _differences(stored["identity"], identity(plan))
    if different:
        raise UserError(
            f"{checkpoint.path}\n  The checkpoint is of another run than the recipe describes:\n"
            + "\n".join(f"    {line}" for line in different)
            + "\n  Set these back to go on, or start over with `--fresh` (the old output is moved aside, not "
            "deleted), or set another train.output_dir."
        )
    changed = _differences(stored["cutting"], cutting(plan))
    if (checkpoint.ranks or plan.shards) and (changed or checkpoint.ranks != plan.world_size):
        raise UserError(
            f"{checkpoint.path}\n  {checkpoint.ranks or 'One copy, not'} ranks hold slices of this checkpoint; the "
            f"recipe's {plan.world_size} cut it in another way:\n"
            + "\n".join(f"    {line}" for line in changed or ["parallel.mode"])
            + "\n  Go on with the plan that wrote it."
        )
    return _differences(stored["free"], free_choices(plan)) + changed


def check_data(checkpoint: Checkpoint, fingerprint: str) -> None:
    """Raise UserError where the corpus, the tokenizer or the split is not the one that the checkpoint saw.

    At step 0, weights that came from elsewhere, it saw none.
    """
    if checkpoint.step == 0:
        return
    stored = checkpoint.state.get("data", {}).get("fingerprint")
    if stored != fingerprint and not (isinstance(stored, str) and all("=" in part for part in stored.split())):
        raise UserError(
            f"{checkpoint.path / 'state.json'}\n  It does not say which data it saw: not a file that a run wrote."
        )
    if stored != fingerprint:
        before, after = (dict(part.split("=", 1) for part in text.split()) for text in (stored, fingerprint))
        lines = _differences(before, after)
        raise UserError(
            f"{checkpoint.path}\n  The checkpoint was trained on other data:\n"
            + "\n".join(f"    {line}" for line in lines)
            + "\n  Restore the data to go on, or start over with `--fresh`."
        )


def restore(checkpoint: Checkpoint, weights: Iterable[Parameter], state: Iterable[Parameter]) -> None:
    """Fill weights from the checkpoint's model file, and the optimizer's state from the other.

    Raises UserError where a parameter is absent or has another shape.
    """
    from mindspore import Tensor

    for kind, parameters in (("model", weights), ("optimizer", state)):
        arrays = checkpoint.arrays(kind)
        for parameter in parameters:
            array = arrays.get(parameter.name)
            if array is None or array.shape != tuple(parameter.shape):
                found = "absent" if array is None else f"{array.shape} {array.dtype}"
                raise UserError(
                    f"{checkpoint.folder / kind}.safetensors\n  {parameter.name} is {found}; the model has "
                    f"{tuple(parameter.shape)} {parameter.dtype}."
                )
            parameter.set_data(Tensor(array))


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{key}: {before.get(key)} in the checkpoint, {after.get(key)} now"
        for key in [*after, *(key for key in before if key not in after)]
        if before.get(key) != after.get(key)
    ]
