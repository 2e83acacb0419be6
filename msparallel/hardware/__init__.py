"""Machines by name.

In: the name of a profile (`cluster.hardware`). Out: what a node of it holds. One YAML file a profile in `profiles/`,
each number with its source in a comment.

>>> load_hardware("atlas_800t_a2").devices_per_node
8
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

_PROFILES = Path(__file__).parent / "profiles"


class Hardware(BaseModel):
    """Attributes:
    target: MindSpore's device target.
    chip: marketing name.
    devices_per_node: most devices that one machine has.
    memory_gib: memory of one device.
    dtypes: types that matrix products may use.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    target: Literal["CPU", "Ascend"]
    chip: str
    devices_per_node: int
    memory_gib: float
    dtypes: list[Literal["float32", "float16", "bfloat16"]]


def hardware_names() -> list[str]:
    """Names of all profiles."""
    return sorted(path.stem for path in _PROFILES.glob("*.yaml"))


@cache
def load_hardware(name: str) -> Hardware:
    """Read one profile. Raises KeyError for a name that has none."""
    if name not in hardware_names():
        raise KeyError(name)
    return Hardware(name=name, **yaml.safe_load((_PROFILES / f"{name}.yaml").read_text(encoding="utf-8")))
