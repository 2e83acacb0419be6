"""A MindFormers training YAML -> a recipe, and what it could not carry.

In: the YAML's path, and a model config where the YAML has none. Out: an `Imported`: the recipe's text, which passes
every rule, and each key that is not in it, with its line, one of four kinds and why. What no recipe can say at all
(text generation, legacy models, blocks that we do not have) is an error with one message.

>>> import_mindformers("qwen3.yaml").recipe.parallel.pipeline_stages  # doctest: +SKIP
4
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from msparallel.errors import Problem, RecipeError, short
from msparallel.interop.draft import Draft
from msparallel.interop.import_sections import fill_model_and_parallel
from msparallel.interop.import_training import fill_training
from msparallel.interop.mindformers import MindFormersConfig, read_mindformers
from msparallel.interop.mindformers_keys import KINDS, MODEL, why_left
from msparallel.interop.model_names import FOREIGN, KNOWN, Why, missing_blocks
from msparallel.interop.yaml_tree import Tree
from msparallel.recipe.load import load_text
from msparallel.recipe.override import format_override, read_overrides, section_values, yaml_float
from msparallel.recipe.recipe import COMMAND_LINE, Recipe
from msparallel.recipe.schema import SECTIONS


@dataclass(frozen=True, kw_only=True)
class NotCarried:
    """A key of the YAML that is not in the recipe.

    Attributes:
        key, line, value: where it stands (line None: in another file, or nowhere) and what was written.
        kind: one of mindformers_keys.KINDS.
        reason: half a sentence.
    """

    key: str
    line: int | None
    value: Any
    kind: Why
    reason: str


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Attributes:
    text: the recipe as YAML, each line with the key it came from.
    recipe: the same, loaded; it passed every rule.
    carried: `section.key` of the recipe -> keys of the YAML that it says.
    not_carried: the weightiest kind first, then in the order of the file.
    absent: `key -> what it names`: side files and data sets that are not on this machine.
    config: what was read.
    """

    text: str
    recipe: Recipe
    carried: Mapping[str, tuple[str, ...]]
    not_carried: tuple[NotCarried, ...]
    absent: Mapping[str, str]
    config: MindFormersConfig

    @property
    def values(self) -> int:
        """Values that the recipe states."""
        return sum(len(keys) for keys in section_values(self.recipe).values())

    def to_json(self) -> dict[str, Any]:
        """The fields of `import --json`."""
        return {
            "recipe": self.text,
            "carried": {key: list(theirs) for key, theirs in self.carried.items()},
            "not_carried": [asdict(item) for item in self.not_carried],
            "absent": dict(self.absent),
            "model_source": self.config.model_source,
        }


def import_mindformers(
    path: str | Path, model_config: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> Imported:
    """Read a YAML and write it as a recipe.

    Args:
        path: the YAML.
        model_config: see read_mindformers.
        overrides: `section.key=value` over the recipe that comes out.

    Raises:
        RecipeError: the file cannot be read, asks for what no recipe can say, or breaks a rule of recipes. Each problem
            stands at the YAML's own key and line.
    """
    config = read_mindformers(path, model_config)
    require_training(config)
    require_blocks(config)
    draft = Draft(config)
    fill_model_and_parallel(draft)
    fill_training(draft)
    draft.read.raise_problems()
    typed, _, wrong = read_overrides(overrides)
    if wrong:
        raise RecipeError(wrong)
    draft.override(typed)
    text = recipe_text(draft)
    name = f"{Path(path).stem}.yaml"
    try:
        recipe = load_text(text, name)
    except RecipeError as error:
        raise RecipeError([_at_home(problem, draft, typed) for problem in error.problems]) from None
    return Imported(text=text, recipe=recipe, carried=_carried(draft), not_carried=_not_carried(draft),
                    absent=config.absent, config=config)  # fmt: skip


def require_training(config: MindFormersConfig) -> None:
    """Raises RecipeError where a YAML is for anything but training with MindFormers' current models."""
    if config.run_mode not in ("train", "finetune"):
        what = "generates text" if config.run_mode.startswith("predict") else "does not train"
        told = f"This YAML {what}" if config.run_mode else "This YAML states no run_mode"
        message = f"{told}; recipes are made from those whose run_mode is train or finetune."
        raise RecipeError([config.problem("not_training", "run_mode", message)])
    if config.use_legacy:
        message = (
            "MindFormers' legacy models (use_legacy true, which is what it takes where the key is absent) are built "
            "otherwise: other names, other defaults. Files with use_legacy false are read."
        )
        raise RecipeError([config.problem("legacy", "use_legacy", message)])
    if not config.graph_mode:
        message = "PyNative mode has no strategies for operators; recipes are compiled as graphs (context.mode 0)."
        raise RecipeError([config.problem("pynative", "context.mode", message)])


def require_blocks(config: MindFormersConfig) -> None:
    """Raises RecipeError where the model is not known, or needs blocks that we do not have."""
    kind = config.model_type
    key = next((name for name in ("model_type", "architectures") if name in config.model), "model_type")
    if kind not in KNOWN:
        missing = missing_blocks(config.model)
        told = FOREIGN.get(kind or "") or ", ".join(block for _, block in missing)
        if kind in FOREIGN or missing:
            where, named = (key, f"model_type {kind} needs") if kind in FOREIGN else (missing[0][0], "This model needs")
            message = f"{named} {told}; msparallel has no such blocks."
            raise RecipeError([config.problem("architecture", MODEL + where, message)])
        if kind is None:
            raise RecipeError([_no_shape(config)])
        message = f"model_type {short(kind, 40)!r} is not among those that are read: {', '.join(KNOWN)}."
        raise RecipeError([config.problem("architecture", MODEL + key, message)])


def _no_shape(config: MindFormersConfig) -> Problem:
    folder = config.absent.get("pretrained_model_dir")
    if folder:
        told = f"The model's numbers stand in {folder}, which is not on this machine. "
        key = "pretrained_model_dir"
    else:
        told, key = "The file names no model: neither model_type nor architectures nor pretrained_model_dir. ", "model"
    example = "Name a Hugging Face config.json or a preset: --model-config qwen3_8b."
    return config.problem("no_shape", key, told + example)


def _at_home(problem: Problem, draft: Draft, typed: Mapping[str, Any]) -> Problem:
    """A problem of the recipe, told at the key of the YAML that the value came from."""
    if problem.key in typed:
        return replace(problem, file=COMMAND_LINE, line=None)
    key = draft.origin.get(problem.key, ("",))[0]
    file, line = draft.config.tree.place(key)
    known = line is not None or file != draft.config.path
    return replace(problem, key=key if known else problem.key, file=file, line=line)


def _carried(draft: Draft) -> Mapping[str, tuple[str, ...]]:
    tree = draft.config.tree
    found = {
        key: tuple(name for name in theirs if draft.in_file(name) and not isinstance(tree.get(name), dict))
        for key, theirs in draft.origin.items()
    }
    return {key: theirs for key, theirs in found.items() if theirs}


def _not_carried(draft: Draft) -> tuple[NotCarried, ...]:
    tree = draft.config.tree
    found = [NotCarried(key=key, line=tree.line(key) if draft.in_file(key) else None, value=_shown(tree.get(key)),
                        kind=kind, reason=reason)
             for key, (kind, reason) in draft.left.items()]  # fmt: skip
    for key, value in _left_over(tree, draft):
        kind, reason = _SAME if key in draft.read.read else why_left(key, value)
        found.append(NotCarried(key=key, line=tree.line(key), value=_shown(value), kind=kind, reason=reason))
    for key, lines in tree.repeated.items():
        told = f"stands on lines {', '.join(map(str, lines))}; MindFormers takes the last"
        found.append(NotCarried(key=key, line=lines[-1], value=None, kind="decided", reason=told))
    order = list(KINDS)
    return tuple(sorted(found, key=lambda item: (order.index(item.kind), item.line or 0, item.key)))


_SAME: tuple[Why, str] = ("same", "holds in every recipe, by default, or through other values")


def _left_over(tree: Tree, draft: Draft) -> Iterable[tuple[str, Any]]:
    """Keys that no value of the recipe came from. A second mention of the data set, an alias, is told once."""
    told = draft.left.keys() | {key for keys in draft.origin.values() for key in keys}
    copied = "train_dataset_task.dataset_config"
    again = isinstance(tree.get(copied), dict) and tree.get(copied) == tree.get("train_dataset")
    if again:
        yield copied, None
    for key, value in tree.leaves():
        if key not in told and key != "callbacks" and not (again and key.startswith(f"{copied}.")):
            yield key, value
    for at, item in enumerate(draft.callbacks):
        for name, value in item.items() if isinstance(item, dict) else ():
            if f"callbacks.{at}.{name}" not in told:
                yield f"callbacks.{at}.{name}", value


def _shown(value: Any) -> Any:
    """A value as it is reported: mappings and long lists in short."""
    return value if isinstance(value, (int, float, bool, type(None))) else short(value)


def recipe_text(draft: Draft) -> str:
    """The draft as YAML; each value with the key it came from."""
    name = Path(draft.config.path).name
    lines = [f"# From the MindFormers file {name if name.isprintable() else ascii(name)}."]
    for section, cls in SECTIONS.items():
        values = draft.values.get(section, {})
        if not values:
            continue
        lines += ["", f"{section}:"]
        for key in cls.model_fields:
            if key in values:
                origin = draft.origin.get(f"{section}.{key}")
                remark = f"   # {origin[0]}" if origin else ""
                lines.append(f"  {key}: {_yaml_value(key, values[key])}{remark}")
    return "\n".join(lines) + "\n"


def _yaml_value(key: str, value: Any) -> str:
    """A value on one line that reads back as itself, whatever the YAML held."""
    if isinstance(value, float):
        return yaml_float(value)
    if isinstance(value, (bool, int)) or (isinstance(value, list) and all(type(item) is int for item in value)):
        return format_override(key, value).partition("=")[2]
    text = value if isinstance(value, str) else str(value)
    style = None if text.isprintable() else '"'
    return yaml.safe_dump(text, width=2**20, allow_unicode=True, default_style=style).partition("\n")[0]
