"""A recipe from its file: strict, with every problem at once.

In: a path or the name of a shipped recipe, and overrides. Out: a Recipe that passed every rule, or one RecipeError that
holds what YAML, schema and rules found.

>>> load_recipe("quickstart", ["train.steps=10"]).train.steps
10
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msparallel.errors import Problem, RecipeError
from msparallel.interop.mindformers_sections import looks_like_mindformers, top_level_keys
from msparallel.recipe.library import closest_recipe, shipped_recipes
from msparallel.recipe.override import build_sections, read_overrides, section_values, with_values
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules import find_problems, with_working_suggestions
from msparallel.recipe.values import check_values, missing, missing_problem
from msparallel.recipe.yaml_source import MAX_BYTES, read_source


def load_recipe(source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read, check and return a recipe.

    Args:
        source: path of a YAML file, or name of a shipped recipe.
        overrides: `section.key=value`; `=null` gives the key its default.

    Raises:
        RecipeError: all problems of text, values, overrides and rules.
    """
    path = find_recipe(source)
    text = read_text(path)
    return load_text(text, str(path), overrides)


def load_text(text: str, path: str, overrides: Sequence[str] = ()) -> Recipe:
    """`load_recipe` for text that is already in memory; `path` names it in problems. Raises RecipeError."""
    if looks_like_mindformers(top_level_keys(text)):
        command = f"msparallel import {shlex.quote(path)} -o recipe.yaml"
        raise _refused("mindformers_file", path, f"This is a MindFormers YAML, not a recipe. `{command}` makes one.")
    source = read_source(text, path)
    typed, refused, override_problems = read_overrides(overrides)
    if "" in source.broken:  # not YAML at all: nothing more can be said
        raise RecipeError(source.problems + override_problems)
    values = check_values(source, path)
    broken = frozenset(source.broken)
    written = Recipe(name=Path(path).stem, path=path, sections=build_sections(values, broken), lines=source.lines,
                     broken=broken)  # fmt: skip
    recipe = replace(with_values(written, typed), overrides=tuple(overrides))
    values = section_values(recipe)
    if refused:
        broken = recipe.broken | refused
        recipe = replace(recipe, sections=build_sections(values, broken), broken=broken)
    problems = [problem for problem in source.problems if problem.key not in typed] + override_problems
    told = {problem.key.partition(".")[0] for problem in problems}  # sections that are there, with something wrong
    absent = [
        name
        for name in missing(values)
        if name not in recipe.broken | told and name.partition(".")[0] not in recipe.broken
    ]
    problems += [missing_problem(name, path, source.lines.get(name.partition(".")[0])) for name in absent]
    problems = with_working_suggestions(recipe, problems) + find_problems(recipe)
    if problems:
        raise RecipeError(problems)
    return recipe


def find_recipe(source: str | os.PathLike[str]) -> Path:
    """Path of a recipe given by path or by shipped name. Raises RecipeError for a name that is neither."""
    text = os.fspath(source)
    looks_like_path = os.sep in text or text.endswith((".yaml", ".yml")) or isinstance(source, os.PathLike)
    shipped = shipped_recipes()
    if not looks_like_path and text in shipped:
        return _from_here(shipped[text])
    if looks_like_path or os.path.isfile(text):
        return Path(text)
    close = closest_recipe(text)
    told = f"Did you mean `{close}`?" if close else "`msparallel ls` lists them; a path ends in .yaml."
    raise _refused("unknown_recipe", text, f"There is no shipped recipe of this name. {told}")


def _from_here(path: Path) -> Path:
    """A path as seen from the working directory where it lies below it."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the working directory was deleted
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def read_text(path: Path) -> str:
    """Text of a recipe file. Raises RecipeError where it cannot be read as text."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        close = closest_recipe(path.stem)
        told = f" The shipped recipe `{close}` goes by its name, without a path." if close else ""
        raise _refused("no_file", str(path), f"There is no such file.{told}") from None
    except IsADirectoryError:
        raise _refused("no_file", str(path), "This is a folder; a recipe is one YAML file.") from None
    except (OSError, ValueError) as error:  # no permission; a name that is too long or holds a zero byte
        raise _refused("no_file", str(path), f"The file cannot be read: {error}.") from None
    if len(data) > MAX_BYTES:
        raise _refused("too_large", str(path), f"The file has more than {MAX_BYTES // 1024} KiB; this is not a recipe.")
    if b"\0" in data:
        raise _refused("not_text", str(path), "The file holds zero bytes: it is binary, or not in UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"Byte {data[error.start]:#04x} is not UTF-8. Save the file as UTF-8."
        raise _refused("not_text", str(path), message, line) from None


def _refused(rule: str, path: str, message: str, line: int | None = None) -> RecipeError:
    return RecipeError([Problem(key="recipe", value=None, rule=rule, message=message, file=path, line=line)])
