"""Which of a command's words are recipes and which are overrides.

>>> split_overrides(["quickstart", "train.steps=10", "steps=10"])
(['quickstart'], ['train.steps=10', 'steps=10'])
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def split_overrides(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """(recipes, overrides): an override has `=`, no path separator before it, and is not the name of a file."""
    recipes: list[str] = []
    overrides: list[str] = []
    for word in words:
        key, equals, _ = word.partition("=")
        is_override = equals and os.sep not in key and not os.path.exists(word)
        (overrides if is_override else recipes).append(word)
    return recipes, overrides
