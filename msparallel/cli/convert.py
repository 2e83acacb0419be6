"""`msparallel convert`: weights between Hugging Face and checkpoints, and checkpoints between plans."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msparallel.cli.numbers import Number

if TYPE_CHECKING:
    from msparallel.plan import Plan
    from msparallel.weights.checkpoint import TrainedCheckpoint


@click.command(epilog="""\b
Examples:
  $ msparallel convert output/quickstart --to hugging-face -o models/mine
  $ msparallel convert output/llama2_7b_dp2_tp2_pp2 --to hugging-face -o models/mine --dtype bfloat16
  $ msparallel convert output/llama2_7b_dp2_tp2_pp2 --to llama2_7b_dp8_zero1
  $ msparallel convert models/Qwen3-8B --to qwen3_8b_dp2_tp4
""")  # fmt: skip
@click.argument("source", metavar="SOURCE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--to", "target", metavar="hugging-face|RECIPE", required=True,
              help="What to write, or which recipe is to go on from it.")  # fmt: skip
@click.option("-o", "--output", metavar="FOLDER", help="Where. For a recipe by default where its run looks.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True,
              help="Of weights for Hugging Face.")  # fmt: skip
@click.option("--max-shard-gb", type=Number(0, 1_000_000, min_open=True),
              help="Largest file for Hugging Face, in 10^9 bytes.  [default: 5]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    source: str, overrides: tuple[str, ...], target: str, output: str | None, dtype: str, max_shard_gb: float | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the weights of SOURCE in another form.

    SOURCE is a Hugging Face folder, a run's folder (its newest checkpoint), or a checkpoint. Values pass exactly, but
    for a narrower --dtype. A checkpoint for another recipe keeps step, optimizer state and place in the data; the two
    recipes must describe the same run but for how it is cut over devices.
    """
    from tqdm import tqdm

    from msparallel.weights.source import open_source

    opened = open_source(source)
    with opened, tqdm(unit="B", unit_scale=True, desc="convert", delay=2) as bar:
        if target == "hugging-face":
            if output is None:
                raise click.UsageError("--to hugging-face needs -o FOLDER.")
            if overrides:
                raise click.UsageError("section.key=value changes a recipe; hugging-face is none.")
            written = _to_hugging_face(opened, Path(output), dtype, max_shard_gb, bar.update)
        else:
            if dtype != "float32":
                raise click.UsageError("--dtype is of Hugging Face's weights; a checkpoint has float32.")
            if max_shard_gb is not None:
                raise click.UsageError("--max-shard-gb is of Hugging Face's files; a checkpoint has two for each rank.")
            written = _to_recipe(opened, _plan(target, overrides), output, bar.update)
    if as_json:
        click.echo(json.dumps({"source": str(opened.path), "written": str(written)}))
    else:
        click.echo(f"Written to {written}.")
        if output is None:
            click.echo(f"Next: msparallel run {' '.join([target, *overrides])}")


def _to_hugging_face(opened, output: Path, dtype: str, max_shard_gb: float | None, progress) -> Path:
    from msparallel.errors import UserError
    from msparallel.weights.checkpoint import TrainedCheckpoint, shape_of_checkpoint
    from msparallel.weights.to_hugging_face import MOST_SHARD_BYTES, to_hugging_face

    if not isinstance(opened, TrainedCheckpoint):
        raise UserError(f"{opened.path}\n  This is a Hugging Face folder already.")
    most_bytes = MOST_SHARD_BYTES if max_shard_gb is None else round(max_shard_gb * 10**9)
    return to_hugging_face(opened, shape_of_checkpoint(opened), output, dtype=dtype, companions=_companions(opened),
                           most_bytes=most_bytes, progress=progress)  # fmt: skip


def _companions(opened: TrainedCheckpoint) -> Path | None:
    """The run's folder, where it keeps its tokenizer."""
    run = opened.path.parent.parent
    return run if (run / "tokenizer.json").is_file() else None


def _plan(name: str, overrides: tuple[str, ...]) -> Plan:
    from msparallel.errors import UserError
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe

    plan = resolve(load_recipe(name, overrides))
    if plan.recipe.train is None:
        raise UserError(f"{plan.recipe.path}\n  The recipe has no `train` section: it needs no checkpoint. A server "
                        "takes the folder itself: serve.weights=FOLDER.")  # fmt: skip
    return plan


def _to_recipe(opened, plan: Plan, output: str | None, progress) -> Path:
    from msparallel.train.run import run_dir
    from msparallel.weights.hugging_face import HuggingFaceFolder
    from msparallel.weights.source import check_same_model
    from msparallel.weights.to_checkpoint import to_checkpoint
    from msparallel.weights.to_hugging_face import COMPANIONS

    if isinstance(opened, HuggingFaceFolder):
        check_same_model(plan.shape, opened.shape, opened.path)
    if output is not None:
        return to_checkpoint(opened, plan, Path(output), progress)
    run = run_dir(plan)
    written = to_checkpoint(opened, plan, run / "checkpoints", progress)
    # So that the checkpoint can be served before the run goes on; the run writes its own tokenizer when it begins.
    source = opened.path if isinstance(opened, HuggingFaceFolder) else opened.path.parent.parent
    if not (run / COMPANIONS[0]).exists():
        for name in COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, run / name)
    return written
