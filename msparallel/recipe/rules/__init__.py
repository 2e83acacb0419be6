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
from msparallel.recipe.override import format_override, read_overrides, with_values
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

_MOST_TRIES = 300


def find_problems(recipe: Recipe) -> list[Problem]:
    """Problems of all rules, with suggestions. A rule that needs a refused value is left out."""
    found = list(_findings(recipe))
    names = {_name(rule, finding) for rule, finding in found}
    problems = []
    for rule, finding in found:
        changes = _change_that_works(recipe, rule, finding, names)
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
                recipe.problem(rule.__name__, finding.key, "")  # a finding about a refused value is no finding
                yield rule, finding
        except BrokenValue:
            continue


def _name(rule: Rule, finding: Finding) -> tuple[str, str]:
    return rule.__name__, finding.key


def _change_that_works(recipe: Recipe, rule: Rule, finding: Finding, names: set[tuple[str, str]]) -> Changes:
    """First change after which no rule is broken; otherwise the first that mends this one and breaks no other."""
    others = names - {_name(rule, finding)}
    second_best: Changes = {}
    for changes in _tries(finding):
        changed = with_values(recipe, changes)
        left = set()
        for pair in _findings(changed):
            left.add(_name(*pair))
            if second_best or not left <= others:
                break
        if not left:
            return changes
        if not second_best and left <= others:
            second_best = changes
    return second_best


def _tries(finding: Finding) -> Iterator[Changes]:
    """Changes as far as they can be made: those that build on a refused value are left out."""
    try:
        yield from itertools.islice(finding.tries, _MOST_TRIES)
    except BrokenValue:
        return
