"""Every relation between the values of a recipe, one small function each.

In: a Recipe. Out: all problems, each with overrides that mend it where such values exist. A rule's docstring is its
statement; the reference in docs is made from it.

>>> from msparallel.recipe.load import load_text
>>> load_text("model: {preset: gpt_tiny}\\ntrain: {global_batch_size: 3, micro_batch_size: 2}", "r.yaml")
Traceback (most recent call last):
msparallel.errors.RecipeError: ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from msparallel.errors import Problem, RecipeError
from msparallel.recipe.override import format_override, read_overrides, with_possible_values, with_values
from msparallel.recipe.recipe import BrokenValue, Recipe
from msparallel.recipe.rules import (
    batch,
    cutting,
    devices,
    effect,
    hardware,
    mode,
    optimizer_shard,
    pipeline,
    running,
    shape,
)
from msparallel.recipe.rules.finding import Changes, Finding, Rule

RULES: tuple[Rule, ...] = (
    *running.RULES,
    *shape.RULES,
    *hardware.RULES,
    *mode.RULES,
    *devices.RULES,
    *cutting.RULES,
    *pipeline.RULES,
    *batch.RULES,
    *optimizer_shard.RULES,
    *effect.RULES,
)
"""All rules, in the order in which a person would check them."""

Name = tuple[str, str]
"""Rule and key: what makes a finding the same after a change."""
_MOST_TRIES = 300
_TRIES_AFTER_SUCCESS = 40


def find_problems(recipe: Recipe) -> list[Problem]:
    """Problems of all rules, with suggestions. A rule that needs a refused value is left out."""
    found = list(_findings(recipe))
    names = {_name(rule, finding) for rule, finding in found}
    mended: list[tuple[set[Name], Changes]] = []  # what is left after a change that was found to work
    problems = []
    for rule, finding in found:
        changes = _best_change(recipe, _name(rule, finding), finding, names, mended)
        typed = [pair for pair in changes.items() if pair[1] is not None or recipe.stated(pair[0])]
        suggestion = " ".join(format_override(key, value) for key, value in typed)
        problems.append(recipe.problem(rule.__name__, finding.key, finding.message, suggestion))
    return problems


def check(recipe: Recipe) -> None:
    """Raises RecipeError where a rule does not hold."""
    problems = find_problems(recipe)
    if problems:
        raise RecipeError(problems)


def with_working_suggestions(recipe: Recipe, problems: list[Problem]) -> list[Problem]:
    """Problems of single values, without the suggestions that would break a rule."""
    names = {_name(rule, finding) for rule, finding in _findings(recipe)}
    kept = []
    for problem in problems:
        changes, refused, _ = read_overrides(problem.suggestion.split())
        works = not refused and {_name(*pair) for pair in _findings(with_values(recipe, changes))} <= names
        kept.append(problem if works else replace(problem, suggestion=""))
    return kept


def _findings(recipe: Recipe) -> Iterator[tuple[Rule, Finding]]:
    for rule in RULES:
        try:
            for finding in rule(recipe):
                recipe.value(finding.key)  # raises where the finding is about a refused value
                yield rule, finding
        except BrokenValue:
            continue


def _name(rule: Rule, finding: Finding) -> Name:
    return rule.__name__, finding.key


def _best_change(
    recipe: Recipe, name: Name, finding: Finding, names: set[Name], mended: list[tuple[set[Name], Changes]]
) -> Changes:
    """The change that mends a finding, breaks no other rule and leaves the fewest of the other findings; of equals the
    nearest. Changes found for earlier findings are looked at first: one slip often breaks several rules."""
    best = min((pair for pair in mended if name not in pair[0]), key=lambda pair: len(pair[0]), default=None)
    since_success = 0
    for changes in _tries(finding):
        if best is not None and (not best[0] or since_success > _TRIES_AFTER_SUCCESS):
            break
        since_success += best is not None
        changed = with_possible_values(recipe, changes)
        left = None if changed is None else _left(changed, names - {name})
        if left is not None and (best is None or len(left) < len(best[0])):
            best = (left, changes)
    if best is None:
        return {}
    mended.append(best)
    return best[1]


def _left(changed: Recipe, allowed: set[Name]) -> set[Name] | None:
    """Findings of a changed recipe; None as soon as one is not among the allowed."""
    left = set()
    for rule, finding in _findings(changed):
        if _name(rule, finding) not in allowed:
            return None
        left.add(_name(rule, finding))
    return left


def _tries(finding: Finding) -> Iterator[Changes]:
    """Changes as far as they can be made: those that build on a refused value are left out."""
    try:
        yield from itertools.islice(finding.tries, _MOST_TRIES)
    except BrokenValue:
        return
