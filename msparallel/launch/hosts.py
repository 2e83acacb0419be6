"""Which host is which node of a job, and which are spare.

In: a Plan and the hosts of a list, in the order of their ranks. Out: a Layout; or every problem with its line.

Node i takes ranks i * devices_per_node and on (msrun: rank = node_rank x local_worker_num + i). The first hosts are
nodes, the others spares. MindSpore's scheduler listens on node 0, at the address of its line, or else at what its name
means to every node.

>>> layout = lay_out(plan, parse_hosts("a 192.0.2.1\\nb 192.0.2.2\\nc 192.0.2.3\\n", "hosts.txt"), "hosts.txt")
>>> layout.master_addr, [host.name for host in layout.nodes], [host.name for host in layout.spares]
('192.0.2.1', ['a', 'b'], ['c'])
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from msparallel.cluster.hosts import Host
from msparallel.errors import Problem, RecipeError, UserError
from msparallel.plan import Plan

DEFAULT_PORT = 8118
"""msrun's own."""
LOOPBACK = "127.0.0.1"
THIS_MACHINE = Host(name="localhost", address=LOOPBACK)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Attributes:
    file: of the list; empty where there is none.
    nodes: in the order of their ranks, plan.nodes of them.
    spares: what the list has beyond them, for `supervise`.
    master_addr, master_port: where MindSpore's scheduler listens, on node 0.
    """

    file: str
    nodes: tuple[Host, ...]
    spares: tuple[Host, ...]
    master_addr: str
    master_port: int


def lay_out(plan: Plan, hosts: Sequence[Host] | None, file: str = "", master_port: int = DEFAULT_PORT) -> Layout:
    """Nodes of the plan. `hosts` None is this machine alone.

    Raises:
        UserError: the plan has several nodes and there is no list.
        RecipeError: too few hosts, an address twice, or one that the other nodes cannot reach.
    """
    if hosts is None:
        if plan.nodes > 1:
            raise UserError(
                f"{plan.recipe.name} runs on {plan.nodes} nodes: name them with --hosts FILE, a line each in the order "
                "of their ranks:\n  node_0 192.0.2.11\n  node_1 192.0.2.12"
            )
        hosts = [THIS_MACHINE]
    problems = _problems(plan, hosts, file)
    if problems:
        raise RecipeError(problems)
    first = hosts[0]
    # One node needs nobody else: its scheduler listens where nobody else can reach it.
    address = (first.address or first.name) if plan.nodes > 1 else LOOPBACK
    return Layout(
        file=file,
        nodes=tuple(hosts[: plan.nodes]),
        spares=tuple(hosts[plan.nodes :]),
        master_addr=address,
        master_port=master_port,
    )


def _problems(plan: Plan, hosts: Sequence[Host], file: str) -> list[Problem]:
    problems = []

    def note(host: Host, value: str, message: str) -> None:
        problems.append(
            Problem(key="host", value=value, rule="host_list", message=message, file=file, line=host.line or None)
        )

    if len(hosts) < plan.nodes:
        count = f"{len(hosts)} host{'s' * (len(hosts) > 1)}"
        problems.append(
            Problem(
                key="host",
                value=len(hosts),
                rule="host_list",
                file=file,
                message=f"{count} for the {plan.nodes} nodes of {plan.recipe.name} ({plan.mesh} over "
                f"{plan.nodes} x {plan.devices_per_node}). Add {plan.nodes - len(hosts)}, a line each, or change "
                "cluster.nodes and the degrees.",
            )
        )
    seen: dict[str, Host] = {}
    for host in hosts:
        where = host.address or host.name
        if where in seen:
            note(
                host, where, f"{seen[where].name} on line {seen[where].line} has this address too: one host, one line."
            )
        seen[where] = host
        if plan.nodes > 1 and host is hosts[0] and ":" in where:
            note(host, where, "Over IPv6 MindSpore's workers need MS_WORKER_IP, another one on each node, which is not "
                 f"set here; write node 0's IPv4 address, for example {host.name} 192.0.2.11.")  # fmt: skip
            continue
        if plan.nodes > 1 and (why := _unreachable(where)):
            note(host, where, f"{why}; write the one that the other nodes reach, for example {host.name} 192.0.2.11.")
    return problems


def _unreachable(address: str) -> str:
    """Why no other node can have this address for it; empty where one can."""
    if address == "localhost":
        return "This is every machine's name for itself"
    try:
        value = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if value.is_loopback:
        return "This is every machine's address for itself"
    return "This is no machine's address" if value.is_unspecified or value.is_multicast else ""
