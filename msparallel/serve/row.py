"""One request in a step of decoding, as engines take it. Pure.

>>> Row(slot=0, position=2, token=104)
Row(slot=0, position=2, token=104)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`token` stands at `position` of its slot."""

    slot: int
    position: int
    token: int
