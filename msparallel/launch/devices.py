"""Whether this machine has what a plan needs: MindSpore, and the devices.

In: a Plan. Out: nothing, or a UserError that names what is missing and what can be done here all the same.

>>> check_devices(resolve(load_recipe("llama2_7b_dp2_tp2_pp2")))
Traceback (most recent call last):
msparallel.errors.UserError: llama2_7b_dp2_tp2_pp2 needs 8 Ascend 910B on this machine and none is here ...
"""

from __future__ import annotations

import platform
import re
from importlib.util import find_spec
from pathlib import Path

from msparallel.errors import UserError
from msparallel.plan import Plan


def check_mindspore() -> None:
    """Raise UserError where MindSpore is not installed; nothing is imported."""
    if find_spec("mindspore") is None:
        raise UserError(
            f"MindSpore is not installed for this Python ({platform.python_version()} on {platform.system()}). It has "
            f"wheels for Linux with Python 3.10 to 3.12: `pip install 'mindspore>=2.9,<2.11'`.\n"
            f"  Without it recipes can be listed, copied, checked and shown: `msparallel ls`, `cp`, `validate`, `show`."
        )


def ascend_devices(dev: Path = Path("/dev")) -> int:
    """NPUs that the driver shows: it makes a file /dev/davinciN for each."""
    return sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in dev.glob("davinci*"))


def check_devices(plan: Plan, dev: Path = Path("/dev")) -> None:
    """Raise UserError where the plan's hardware is not here."""
    if plan.hardware.target == "CPU":
        return
    found = ascend_devices(dev)
    if found >= plan.devices_per_node:
        return
    name, needed = plan.recipe.name, plan.devices_per_node
    number = f"only {found} {'is' if found == 1 else 'are'}" if found else "none is"
    raise UserError(
        f"{name} needs {needed} x {plan.hardware.chip} on this machine and {number} here (no /dev/davinci{found}).\n"
        f"  Without them one can check it: `msparallel validate {plan.recipe.path}` (every rule), "
        f"`msparallel show {plan.recipe.path} --context` (what MindSpore is told).\n"
        f"  A recipe that trains on this processor: `msparallel run quickstart`."
    )
