"""`msparallel launch`: start all nodes of a job from one place."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from msparallel.errors import RecipeError, UserError, printable

if TYPE_CHECKING:
    from msparallel.launch.hosts import Layout
    from msparallel.launch.preflight_ask import Asking
    from msparallel.launch.preflight_rules import Checked
    from msparallel.plan import Plan
    from msparallel.train.run import RunResult


@click.command(epilog="""\b
Examples:
  $ msparallel launch gpt_tiny_dp2_cpu                              this machine
  $ msparallel launch my.yaml --hosts hosts.txt --check             are all nodes ready?
  $ msparallel launch my.yaml --hosts hosts.txt
  $ msparallel launch my.yaml --hosts hosts.txt --print             the command of each node
  $ msparallel launch my.yaml --hosts hosts.txt --remote-shell "ssh -p 2222" --python /opt/venv/bin/python
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--hosts", "hosts_file", metavar="FILE",
              help="Hosts in the order of their ranks: NAME [ADDRESS] a line. Left out: this machine.")
@click.option("--print", "only_print", is_flag=True, help="Only print the command of each node.")
@click.option("--check", "only_check", is_flag=True, help="Only ask the nodes whether they are ready.")
@click.option("--master-port", type=click.IntRange(1024, 65535),
              help="Port of MindSpore's scheduler on node 0. Left out: 8118; on this machine alone a free one.")
@click.option("--remote-shell", metavar="PROGRAM",
              help="Program and arguments that take HOST and a command line. Left out: ssh.")
@click.option("--python", metavar="PATH", help="Python of the nodes. Left out: this one.")
@click.option("--workdir", metavar="PATH", help="Folder on the nodes to start in. Left out: this one.")
@click.option("--env", "variables", metavar="NAME[=VALUE]", multiple=True, help="A variable that goes to every node.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout: the fields of `run --json`.")
def command(
    recipe_name: str, overrides: tuple[str, ...], hosts_file: str | None, only_print: bool, only_check: bool,
    master_port: int | None, remote_shell: str | None, python: str | None, workdir: str | None,
    variables: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Train RECIPE on the hosts of a list, or on this machine.

    First all nodes are asked at once whether they are ready: one table, every problem, and nothing is started where
    there is one (exit code 2). Then each node's part runs until its end; the first failure is told with its node (exit
    code 1) and stops all nodes, as Ctrl-C does. A node that loses its connection stops by itself.
    """
    from msparallel.cli.node_options import python_of, workdir_of
    from msparallel.cluster.hosts import read_hosts
    from msparallel.launch.connect import remote_shell as reach
    from msparallel.launch.connect_env import exports
    from msparallel.launch.hosts import DEFAULT_PORT, lay_out
    from msparallel.launch.nodes_print import node_lines
    from msparallel.launch.preflight_ask import Asking
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe

    if only_print and only_check:
        raise click.UsageError("--print asks no node, --check prints no command: give one of the two.")
    plan = resolve(load_recipe(recipe_name, overrides))
    if plan.recipe.train is None:
        raise UserError(f"{plan.recipe.path}\n  The recipe has no `train` section: there is nothing to train.")
    hosts = read_hosts(hosts_file) if hosts_file else None
    layout = lay_out(plan, hosts, hosts_file or "", master_port or DEFAULT_PORT)
    asking = Asking(
        recipe=recipe_name,
        overrides=overrides,
        python=python_of(python),
        workdir=workdir_of(workdir),
        env=exports(plan, variables, os.environ),
        shell=reach(remote_shell, [] if only_print else [host.name for host in layout.nodes]),
    )
    if only_print:
        from msparallel.cli.launch_text import print_json, print_text

        lines = node_lines(plan, layout, env=asking.env, python=asking.python, workdir=asking.workdir)
        click.echo(print_json(layout, lines) if as_json else print_text(plan, layout, lines))
        return 0
    if hosts is None and master_port is None:
        from dataclasses import replace

        from msparallel.launch.msrun import free_port

        layout = replace(layout, master_port=free_port())
    checked = _preflight(layout, asking, plan, quiet=only_check and as_json)
    if checked.problems and not as_json:
        raise RecipeError(checked.problems)
    if checked.problems or (only_check and as_json):
        problems = RecipeError(checked.problems).problems
        click.echo(json.dumps({"problems": [one.to_json() for one in problems],
                               "warnings": [one.to_json() for one in checked.warnings]}, indent=2))  # fmt: skip
        return 2 if problems else 0
    if only_check:
        click.echo(f"Ready: {len(layout.nodes)} node{'s' * (len(layout.nodes) > 1)}, nothing was started.")
        return 0
    result = _run(plan, layout, asking)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        from msparallel.cli.launch_text import closing_text

        given = {"--hosts": hosts_file, "--remote-shell": remote_shell, "--python": python, "--workdir": workdir}
        options = [word for name, value in given.items() if value is not None for word in (name, value)]
        options += [word for name in variables for word in ("--env", name)]
        click.echo(closing_text(plan, result, options))
    return 0


def _preflight(layout: Layout, asking: Asking, plan: Plan, quiet: bool) -> Checked:
    """Ask all nodes; the table and what is odd go to stderr."""
    from tqdm import tqdm

    import msparallel
    from msparallel.cli.columns import terminal_width
    from msparallel.cli.launch_text import table_text
    from msparallel.launch.preflight import recipe_digest, source_digest
    from msparallel.launch.preflight_ask import ask_all
    from msparallel.launch.preflight_needs import needs_of
    from msparallel.launch.preflight_rules import Job, check
    from msparallel.launch.processes import interruptible

    job = Job(
        layout=layout,
        recipe=asking.recipe,
        recipe_sha256=recipe_digest(asking.recipe),
        msparallel=msparallel.__version__,
        source=source_digest(),
        needs=needs_of(plan),
        needs_cann=plan.hardware.target != "CPU",
    )
    bar = tqdm(total=len(layout.nodes), desc="pre-flight", unit="node", delay=2, leave=False, disable=None)
    with bar, interruptible():
        answers = ask_all(layout, asking, bar.update)
    checked = check(answers, job)
    if not quiet:
        click.echo(printable(table_text(layout, answers, checked, terminal_width())), err=True)
        for warning in checked.warnings:
            click.echo(f"\nNote: {printable(str(warning))}", err=True)
        if checked.warnings or checked.problems:
            click.echo(err=True)
    return checked


def _run(plan: Plan, layout: Layout, asking: Asking) -> RunResult:
    """Start the nodes; a bar, or a line now and then, tells where the job is."""
    from msparallel.cli.launch_text import Follower
    from msparallel.launch.nodes import run_nodes
    from msparallel.launch.processes import interruptible

    with Follower(plan) as follower, interruptible():
        return run_nodes(plan, layout, asking, tell=lambda now: follower.show(now.phase, now.step, now.loss))
