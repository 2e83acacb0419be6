"""What rules of manifests share: the words for values that a manifest may have in any shape.

In: a value of anybody's. Out: a number, or text, or None; which rules are advice.

>>> whole("8"), whole(8.0), whole("8Gi"), whole(True)
(8, 8, None, None)
"""

from __future__ import annotations

import re
from typing import Any

ADVICE = frozenset((
    "gang_partial", "restart_policy_always", "scheduler_has_devices", "msjob_devices", "privileged", "no_preemption",
    "overcommit_blocks_reclaim", "proportion_caps", "gang_keeps_last", "scheduler_name", "secret_in_manifest",
    "dns_policy", "namespace_ignored",
))  # fmt: skip
"""Rules whose breach works and is seldom meant."""
_QUANTITY = re.compile(r"\+?(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)(?P<unit>[EPTGMk]i?|Ki|m)?")
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
          **{f"{letter}i": 1024.0 ** (at + 1) for at, letter in enumerate("KMGTPE")}}  # fmt: skip


def whole(value: Any) -> int | None:
    """An integer, also as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    return None


def number(value: Any) -> int | None:
    """An integer where the API takes an integer and no text."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def quantity(value: Any) -> float | None:
    """A Kubernetes quantity, such as 500m or 64Gi; None for anything else."""
    found = _QUANTITY.fullmatch(str(value)) if isinstance(value, (int, float, str)) else None
    if found is None or isinstance(value, bool):
        return None
    return float(found["number"]) * _UNITS.get(found["unit"] or "", 1.0)
