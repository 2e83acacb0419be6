"""The recipes that come with msparallel.

In: a name. Out: the file. They lie in `recipes/` beside the package in a clone, inside the package in a wheel.

>>> shipped_recipes()["quickstart"].name
'quickstart.yaml'
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import msparallel

_PACKAGE = Path(msparallel.__file__).parent
_PLACES = (_PACKAGE / "_recipes", _PACKAGE.parent / "recipes")


def shipped_recipes() -> dict[str, Path]:
    """Name -> file, by name."""
    folder = next((place for place in _PLACES if place.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))} if folder else {}


def closest_recipe(name: str) -> str | None:
    """Shipped recipe that a misspelt name stands for."""
    return next(iter(get_close_matches(name, shipped_recipes(), n=1, cutoff=0.6)), None)


def summary(path: Path) -> str:
    """First line of a recipe's header comment."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and line.strip("# "):
            return line.strip("# ").rstrip()
        if line.strip() and not line.startswith("#"):
            break
    return ""
