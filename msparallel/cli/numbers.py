"""Numbers on a command line.

>>> Number(0, 10).convert("2.5", None, None)
2.5
"""

from __future__ import annotations

from typing import Any

import click


class Number(click.FloatRange):
    """A range of finite numbers: click's own lets nan pass, since it is neither below nor above, and inf where one end
    is open."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if number != number or abs(number) == float("inf"):
            self.fail(f"{value!r} is not in the range {self._describe_range()}.", param, ctx)
        return number
