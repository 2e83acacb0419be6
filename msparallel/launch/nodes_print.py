"""The commands that start a job's nodes, to be typed on each.

In: a Plan, a Layout, the variables that go along. Out: for every node a title and one line for its shell. Nothing is
started or asked.

>>> node_lines(plan, layout, env={}, python="/opt/venv/bin/python", workdir="/job")[0].command
"cd /job && export PATH=/opt/venv/bin:$PATH OMP_NUM_THREADS=... && msrun --worker_num 2 ..."
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from msparallel.launch.hosts import Layout
from msparallel.launch.msrun import local_ranks, msrun_command
from msparallel.plan import Plan


@dataclass(frozen=True, kw_only=True)
class NodeLine:
    """Attributes:
    argv: msrun's argument list.
    command: for a shell on that node: folder, variables, msrun.
    """

    node_rank: int
    host: str
    address: str | None
    ranks: range
    argv: list[str]
    command: str


def node_lines(plan: Plan, layout: Layout, *, env: Mapping[str, str], python: str, workdir: str) -> list[NodeLine]:
    """One for each node, in the order of their ranks."""
    lines = []
    for node_rank, host in enumerate(layout.nodes):
        argv = msrun_command(
            plan, node_rank=node_rank, master_addr=layout.master_addr, master_port=layout.master_port
        )
        lines.append(
            NodeLine(
                node_rank=node_rank,
                host=host.name,
                address=host.address,
                ranks=local_ranks(plan, node_rank),
                argv=argv,
                command=" && ".join(
                    filter(None, [f"cd {shlex.quote(workdir)}", _exports(plan, env, python), shlex.join(argv)])
                ),
            )
        )
    return lines


def _exports(plan: Plan, env: Mapping[str, str], python: str) -> str:
    words = []
    folder = str(PurePosixPath(python).parent)
    if folder != ".":
        words.append(f"PATH={shlex.quote(folder)}:$PATH")  # msrun starts the `python` that it finds there
    if plan.hardware.target == "CPU" and "OMP_NUM_THREADS" not in env:
        workers = plan.devices_per_node  # each would take all cores otherwise
        words.append(f'OMP_NUM_THREADS="$(( $(nproc) < {workers} ? 1 : $(nproc) / {workers} ))"')
    words += [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return "export " + " ".join(words) if words else ""
