"""Everything that can be wrong with a recipe that serves, found before an engine starts.

In: a Plan. Out: its tokenizer, or a UserError; a bar for the engine's progress; for a recipe that only trains, one that
serves what it trained.

>>> prepare(resolve(load_recipe("serve_tiny_cpu"))).vocab_size
8192
"""

from __future__ import annotations

from pathlib import Path

import yaml
from tqdm import tqdm

from msparallel.errors import UserError
from msparallel.model.kernel_library import kernel_path
from msparallel.plan import Plan
from msparallel.recipe.load import load_recipe
from msparallel.recipe.recipe import Recipe
from msparallel.serve.installed import check_installed
from msparallel.serve.protocol import Loading
from msparallel.serve.text_tokenizer import TextTokenizer
from msparallel.weights.source import open_weights


def prepare(plan: Plan, needs: str = "serve") -> TextTokenizer:
    """Check weights and tokenizer, without reading the weights.

    Args:
        needs: `serve`, or `generate`, which needs no HTTP.

    Raises UserError.
    """
    serve = plan.recipe.serve
    if serve is None:
        raise UserError(f"{plan.recipe.path}\n  The recipe has no `serve` section: there is nothing to serve.\n"
                        "  Try: serve.weights=PATH, of a Hugging Face folder or of a training run")  # fmt: skip
    check_installed(needs)
    if plan.nodes > 1:
        raise UserError(f"{plan.recipe.path}\n  Serving runs on one machine, the recipe has {plan.nodes}.\n"
                        "  Try: cluster.nodes=1")  # fmt: skip
    if plan.mesh.size != plan.mesh.tp:
        raise UserError(f"{plan.recipe.path}\n  Serving cuts the model over model_parallel only; this recipe's mesh is "
                        f"{plan.mesh}.\n  Try: a recipe like qwen3_8b_serve_tp2 with this model and "
                        f"serve.weights={serve.weights}")  # fmt: skip
    if plan.hardware.target != "CPU" and plan.attention != "flash":
        raise UserError(f"{plan.recipe.path}\n  model.attention: plain serves on a processor only; its cache has one "
                        "device's form. On Ascend a server takes the fused kernels.\n"
                        "  Try: model.attention=auto")  # fmt: skip
    folder = open_weights(serve.weights, plan.shape).tokenizer
    vocab_size = plan.shape.vocab_size
    if folder is None:
        return TextTokenizer.bytes(vocab_size)
    tokenizer = TextTokenizer.open(folder)
    if tokenizer.vocab_size > vocab_size:
        raise UserError(f"{folder / 'tokenizer.json'}\n  It has {tokenizer.vocab_size:,} ids, the model has "
                        f"{vocab_size:,}: it belongs to another model.")  # fmt: skip
    return tokenizer


def build_kernels(plan: Plan) -> None:
    """What a processor needs to serve, built by the user's compiler where it is not there yet.

    Raises RunError as `kernel_path` does.
    """
    if plan.hardware.target == "CPU":
        kernel_path()


def of_training(recipe: Recipe, folder: Path) -> Recipe:
    """A recipe that serves the newest checkpoint of one that trains, alone on this machine's processor; written into
    `folder`, so that the engine's process can read it.

    Raises UserError where there is no checkpoint.
    """
    assert recipe.train is not None, "only recipes that train have checkpoints"
    run = Path(recipe.train.output_dir) / recipe.name
    if not any((run / "checkpoints").glob("step_*")):
        raise UserError(f"{run}\n  There is no checkpoint of {recipe.name} yet. `msparallel run {recipe.path}` makes "
                        "one.")  # fmt: skip
    model = recipe.sections.model
    document = {
        "model": {key: getattr(model, key) for key in sorted(model.model_fields_set)},
        "serve": {"weights": str(run), "max_length": recipe.train.seq_length, "max_concurrency": 4},
    }
    path = folder / f"{recipe.name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return load_recipe(path)


class LoadingBar:
    """Takes Loading and draws it on stderr: a bar for weights, one for graphs."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._what = ""

    def __call__(self, loading: Loading) -> None:
        """Further by what has come."""
        if self._bar is None or self._what != loading.what:
            self.close()
            self._what, self._bar = loading.what, tqdm(total=loading.total, desc=loading.what, unit="", disable=None)
        self._bar.update(loading.done - self._bar.n)

    def close(self) -> None:
        """Leave the line as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
