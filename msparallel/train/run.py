"""A recipe's training run, from an empty folder or from its last checkpoint to its last step.

In: a Plan and this process's rank. Out: a RunResult, and in `output_dir/NAME`: `log.jsonl`, `loss.png`, `checkpoints/`,
`tokenizer.json`, on request `tensorboard/`.

>>> run_recipe(resolve(load_recipe("quickstart"))).losses[-1]
4.4
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msparallel.errors import RunError
from msparallel.plan import Plan
from msparallel.recipe.library import shipped_recipes
from msparallel.train.checkpoint import CheckpointStore
from msparallel.train.curve import draw_curve
from msparallel.train.log import perplexity


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The fields of `run --json`.

    Attributes:
        losses: of each optimizer step since the first, also those of earlier parts of a resumed run (None where the log
            of an earlier part is lost).
        eval_losses: [{step, loss}], step 0 is before training.
        tokens_per_s: of this process's part of the run over all ranks, compilation and evaluation left out; 0.0 where
            nothing was left to train.
        checkpoint: path of the last one.
        resumed_from: step that this part went on from, None where it began at the start.
    """

    world_size: int
    losses: list[float | None]
    eval_losses: list[dict[str, float]]
    tokens_per_s: float
    checkpoint: str
    resumed_from: int | None
    finished_before: bool = False
    sample: str = ""

    def to_json(self) -> dict[str, Any]:
        """One JSON document."""
        return asdict(self)


def run_dir(plan: Plan) -> Path:
    """Folder of everything that the run writes."""
    assert plan.recipe.train is not None, "only recipes with a train section are trained"
    return Path(plan.recipe.train.output_dir) / plan.recipe.name


def store(plan: Plan, **options: Any) -> CheckpointStore:
    """The run's checkpoints."""
    assert plan.recipe.train is not None, "only recipes with a train section are trained"
    return CheckpointStore(
        run_dir(plan) / "checkpoints",
        keep=plan.recipe.train.keep_checkpoints,
        ranks=plan.world_size if plan.shards else 0,
        notice=notice,
        **options,
    )


def notice(text: str) -> None:
    """One line for the person at the terminal; stdout belongs to the result."""
    print(text, file=sys.stderr, flush=True)


def reporting_rank(plan: Plan) -> int:
    """The rank that knows the loss and tells of it: the first of the last pipeline stage."""
    return plan.mesh.rank(pp=plan.mesh.pp - 1)


def move_aside(plan: Plan) -> Path | None:
    """Rename the run's folder so that a fresh run can start; its new path, None where there was none.

    Raises RunError where it cannot be renamed.
    """
    folder = run_dir(plan)
    if not folder.exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    try:
        return folder.rename(aside)
    except OSError as error:
        raise RunError(f"{folder}\n  The old output cannot be moved aside: {error}.") from error


@contextmanager
def sole_run(plan: Plan, part: int | str = 0, doing: str = "training") -> Iterator[None]:
    """Hold the run's folder for this machine's part (its node rank, or a word for another kind of holder): two runs in
    it would cut each other's log and checkpoints.

    Raises RunError where another process holds it, or where output_dir cannot be written.
    """
    import fcntl  # not on Windows, where nothing trains

    folder, path = run_dir(plan), _lock_file(plan, part)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise RunError(f"{path}\n  It cannot be written: {error}. Set train.output_dir to another place.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"{folder}\n  Another process is {doing} here. Wait for it, or set another train.output_dir."
            ) from error
        except OSError:  # a file system without locks
            notice(f"{path.parent} has no file locks: start no second run of {plan.recipe.name} there.")
        yield


def check_no_run(plan: Plan, part: int | str = 0) -> None:
    """Raise RunError where a process holds the run's folder for this part; nothing is written or held."""
    import fcntl

    try:
        file = _lock_file(plan, part).open("r")
    except OSError:  # nobody ever held it, or it cannot be looked at
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"{run_dir(plan)}\n  Another process is training here. Wait for it, or set another "
                           "train.output_dir.") from error  # fmt: skip
        except OSError:  # a file system without locks
            return


def _lock_file(plan: Plan, part: int | str) -> Path:
    """Beside the run's folder, since --fresh moves that."""
    folder = run_dir(plan)
    return folder.with_name(f".{folder.name}.{part}.lock")


def versions() -> dict[str, str]:
    """What could change numbers from one machine to the next."""
    packages = ("msparallel", "mindspore", "numpy", "tokenizers", "safetensors")
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            continue
    return found


def no_beat(step: int, phase: str, step_s: float | None = None, loss: float | None = None) -> None:
    """Nobody watches this run."""


def run_recipe(plan: Plan, rank: int = 0, beat: Callable[..., None] = no_beat) -> RunResult:
    """Train, or go on training. Every rank of the plan calls this in a process of its own.

    Args:
        beat: told where the rank is, as `no_beat` takes it: step, phase, seconds of the last step, its loss.

    Raises:
        UserError: data, tokenizer or checkpoint do not fit the recipe.
        RunError: disk full, loss not finite, and other failures outside the recipe.
    """
    from msparallel.train.prepare import finished, prepare

    checkpoint = store(plan, rank=rank).newest()
    if done := finished(plan, checkpoint):
        if not (curve := run_dir(plan) / "loss.png").exists():  # killed between the last checkpoint and the curve
            evaluations = [(int(e["step"]), e["loss"]) for e in done.eval_losses]
            draw_curve(curve, done.losses, evaluations, title=plan.recipe.name)
        return done
    # MindSpore reads these when loaded: no warnings for its developers; dumps of a failed compilation in our logs.
    os.environ.setdefault("GLOG_v", "3")
    os.environ.setdefault("MS_OM_PATH", str(run_dir(plan) / "logs"))
    prepared = prepare(plan, checkpoint)  # what is wrong with the data is said before MindSpore is loaded
    from msparallel.train.loop import Training

    return Training(plan, rank, prepared, beat).run()


def evaluation_lines(result: RunResult) -> list[str]:
    """How far the evaluation loss came; no line without evaluations."""
    if not result.eval_losses:
        return []
    first, last = result.eval_losses[0], result.eval_losses[-1]
    return [
        f"Evaluation loss {first['loss']:.3f} (step {first['step']}) -> {last['loss']:.3f} (step {last['step']}), "
        f"perplexity {perplexity(first['loss']):,.0f} -> {perplexity(last['loss']):,.0f}"
    ]


def closing_text(plan: Plan, result: RunResult) -> str:
    """What a person reads at the end: what came out, where it is, what to try next."""
    train = plan.recipe.train
    assert train is not None, "only recipes with a train section are trained"
    if not result.checkpoint:
        machine = reporting_rank(plan) // plan.devices_per_node
        return f"This machine's part of {plan.recipe.name} is done; machine {machine} tells of the losses."
    folder, more = run_dir(plan), 2 * train.steps
    shipped = shipped_recipes().get(plan.recipe.name)
    is_shipped = shipped is not None and shipped.resolve() == Path(plan.recipe.path).resolve()
    name = plan.recipe.name if is_shipped else plan.recipe.path
    kept = [override for override in plan.recipe.overrides if not override.startswith("train.steps=")]
    again = shlex.join(["msparallel", "run", name, *kept])
    lines = []
    if result.finished_before:
        lines.append(f"{plan.recipe.name} was already trained to step {result.resumed_from}; nothing was done.")
    if result.sample:
        lines += ["Sample:", *(f"  | {line}" for line in result.sample.splitlines()), ""]
    lines += evaluation_lines(result)
    if result.tokens_per_s:
        lines.append(
            f"Speed           {result.tokens_per_s:,.0f} tokens/s on {result.world_size} "
            f"{'device' if result.world_size == 1 else 'devices'}"
        )
    lines += [
        f"Loss curve      {folder / 'loss.png'}",
        f"Log             {folder / 'log.jsonl'}",
        f"Checkpoint      {result.checkpoint}",
        "",
        "Next:",
        f"  {again} train.steps={more}    goes on from the checkpoint",
        f"  {again} --fresh    starts over (this output is moved aside)",
        f"  msparallel show {name} --context    what the recipe tells MindSpore",
    ]
    return "\n".join(lines)
