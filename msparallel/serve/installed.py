"""Whether the packages of the `serve` extra are here, before anything imports them.

>>> check_installed("generate")
"""

from __future__ import annotations

from importlib.util import find_spec

from msparallel.errors import UserError

_EXTRA = {"serve": ("fastapi", "uvicorn", "jinja2"), "generate": ("jinja2",), "bench-serve": ("httpx",)}


def check_installed(verb: str) -> None:
    """Raises UserError with what is missing and how to get it."""
    missing = [name for name in _EXTRA[verb] if find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: "
                        "`pip install 'msparallel[serve]'`.")  # fmt: skip
