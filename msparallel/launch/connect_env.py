"""Which environment variables go to the nodes of a job.

In: a Plan, what --env names, this process's environment. Out: names and values; never a password or a key.

A login without a terminal reads no profile, so what CANN's set_env.sh sets is often missing there: for Ascend those
variables go along where they are set here. On a processor none but PYTHONPATH does.

>>> exports(plan, ["HCCL_CONNECT_TIMEOUT=600"], {"PYTHONPATH": "/job"})
{'PYTHONPATH': '/job', 'HCCL_CONNECT_TIMEOUT': '600'}
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from msparallel.errors import UserError, printable, short
from msparallel.plan import Plan

CANN = (
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_HOME_PATH",
    "ASCEND_AICPU_PATH",
    "ASCEND_OPP_PATH",
    "TOOLCHAIN_HOME",
    "LD_LIBRARY_PATH",
)
"""What CANN's set_env.sh exports beside PATH and PYTHONPATH."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_SECRET = re.compile(r"token|secret|passw|credential|private|(?:^|_)key(?:$|_)|apikey", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|^(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|AKIA|LTAI|xox[abp]-)[\w-]{8,}$"
)
"""A URL with a password in it, as a proxy's can be; tokens of the most common services."""
_OF_ONE_NODE = ("HCCL_IF_IP", "MS_WORKER_IP", "MS_NODE_ID", "RANK_ID", "DEVICE_ID", "HOSTNAME")
"""Different on every node; one value for all is wrong."""


def exports(plan: Plan, asked: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for every node.

    Args:
        asked: NAME (its value here) or NAME=VALUE.

    Raises:
        UserError: all of these at once: a name that is none, that is not set, that differs by node; a name or a value
            that looks like a secret's.
    """
    wanted = ("PYTHONPATH", *(CANN if plan.hardware.target != "CPU" else ()))
    values = {name: environ[name] for name in wanted if environ.get(name)}
    if path := values.get("PYTHONPATH"):  # relative to the folder here, which need not be the one there
        values["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in path.split(os.pathsep) if part)
    problems = [problem for word in asked if (problem := _problem(word, environ))]
    if problems:
        raise UserError("\n".join(problems))
    for word in asked:
        name, equals, value = word.partition("=")
        values[name] = value if equals else environ[name]
    for name, value in values.items():
        if value != printable(value) or "\n" in value:
            raise UserError(f"{name} holds a control character: {printable(short(value, 60))}")
    return values


def _problem(word: str, environ: Mapping[str, str]) -> str:
    """Why a variable does not go along; empty where it does."""
    name, equals, value = word.partition("=")
    if not _NAME.fullmatch(name):
        return (f"--env {short(name, 60)!r} is no name of a variable. It is NAME or NAME=VALUE, for example "
                "HCCL_CONNECT_TIMEOUT=600.")  # fmt: skip
    if _SECRET.search(name):
        return (f"--env {name}: this looks like a secret's name. Everybody on a node can read the environment and the "
                "command line of a job; put it into a file that only the job's user reads.")  # fmt: skip
    if name in _OF_ONE_NODE:
        return (f"--env {name}: this is different on every node, and one value would go to all. Set it in the node's "
                "own shell start file.")  # fmt: skip
    if not equals and name not in environ:
        return f"--env {name}: it is not set here. Give its value: {name}=VALUE."
    if _SECRET_VALUE.search(value if equals else environ[name]):
        return (f"--env {name}: its value looks like a password or a token. Everybody on a node can read the "
                "environment and the command line of a job; set it in the node's own shell start file.")  # fmt: skip
    return ""
