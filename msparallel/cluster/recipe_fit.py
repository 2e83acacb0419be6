"""Does a rank table have the ranks of the recipe that it is for, on machines of the same size?

In: a RankTable, a Plan. Out: a Problem where the number of ranks differs, with a change of the recipe that was tried
and works; advice where ranks are as many and servers are not.

>>> from msparallel.cluster.rank_table import Device, Server
>>> shape_of(RankTable(version="1.0", servers=(Server(server_id="a", devices=(Device(rank_id=0, device_id=0),)),)))
'1 x 1'
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msparallel.cluster.rank_table import RankTable
from msparallel.errors import Problem, UserError

if TYPE_CHECKING:
    from msparallel.plan import Plan


def shape_of(table: RankTable) -> str:
    """Servers x devices; devices of each where they are not as many."""
    counts = [len(server.devices) for server in table.servers]
    if len(set(counts)) == 1:
        return f"{len(counts)} x {counts[0]}"
    return " + ".join(map(str, counts[:16])) + (f" + ... ({len(counts)} servers)" if len(counts) > 16 else "")


def fit_problems(table: RankTable, plan: Plan, hosts: str = "") -> list[Problem]:
    """Args:
    hosts: the host list that the table was made of, where it was not read.
    """
    if table.size == plan.world_size:
        return []
    key = "hosts" if hosts else "rank_list" if table.form == "ranks" else "server_list"
    shape = f" ({shape_of(table)})" if table.servers else ""
    wanted = f"{plan.nodes} x {plan.devices_per_node}"
    found = _suggestion(table, plan)
    return [Problem(
        key=key, value=f"{table.size} ranks{shape}", rule="recipe_fits", file=hosts or table.file, suggestion=found,
        message=f"The table has {table.size} ranks, the recipe {plan.mesh} needs {plan.world_size}: {wanted} (servers "
        f"x devices). Make a table of these, or change the recipe{'.' if found else '; the product of its degrees is '}"
        f"{'' if found else 'its number of ranks.'}",
    )]  # fmt: skip


def fit_advice(table: RankTable, plan: Plan) -> list[Problem]:
    """Ranks that are as many, on other servers than the recipe's: what it says of axes inside a server is not so."""
    counts = {len(server.devices) for server in table.servers}
    wanted = f"{plan.nodes} x {plan.devices_per_node}"
    if table.size != plan.world_size or not counts or shape_of(table) == wanted:
        return []
    alike = f"cluster.nodes={len(table.servers)} cluster.devices_per_node={max(counts)}" if len(counts) == 1 else ""
    message = (f"The table is {shape_of(table)} (servers x devices), the recipe {wanted}: as many ranks, and others "
               "of them share a server. What stays inside a server is told of the table.")  # fmt: skip
    if alike:
        message += f" The recipe for it: {alike}."
    return [Problem(key="server_list", value=shape_of(table), rule="recipe_shape", file=table.file, message=message,
                    suggestion=alike)]  # fmt: skip


def _suggestion(table: RankTable, plan: Plan) -> str:
    """Overrides with which the recipe fits the table; empty where data parallelism alone does not make it fit."""
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe

    counts = {len(server.devices) for server in table.servers}
    rest = plan.world_size // plan.mesh.dp
    for change in _changes(table, len(counts) == 1, rest):
        try:
            if resolve(load_recipe(plan.recipe.path, (*plan.recipe.overrides, *change))).world_size == table.size:
                return " ".join(change)
        except UserError:
            continue
    return ""


def _changes(table: RankTable, alike: bool, rest: int) -> Iterator[tuple[str, ...]]:
    if table.size % rest or not table.size:
        return
    degree = f"parallel.data_parallel={table.size // rest}"
    if alike and table.servers:
        yield degree, f"cluster.nodes={len(table.servers)}", f"cluster.devices_per_node={len(table.servers[0].devices)}"
    yield (degree,)
