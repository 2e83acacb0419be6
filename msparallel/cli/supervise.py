"""`msparallel supervise`: run a job to its end, whatever happens on the way."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from msparallel.supervise.watch import Place


@click.command(epilog="""\b
Examples:
  $ msparallel supervise gpt_tiny_dp2_cpu train.checkpoint_interval=5
  $ msparallel supervise my.yaml --hosts hosts.txt                   hosts beyond the nodes are spares
  $ msparallel supervise my.yaml supervise.max_restarts=100 supervise.hang_timeout_s=1200.0
  $ msparallel supervise my.yaml --json > supervised.json
""")  # fmt: skip
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--hosts", "hosts_file", metavar="FILE",
              help="Hosts in the order of their ranks: NAME [ADDRESS] a line; more than nodes are spares. Left out: "
              "this machine.")
@click.option("--master-port", type=click.IntRange(1024, 65535),
              help="Port of MindSpore's scheduler on node 0, and no other. Left out: one that is free.")
@click.option("--remote-shell", metavar="PROGRAM",
              help="Program and arguments that take HOST and a command line. Left out: ssh.")
@click.option("--python", metavar="PATH", help="Python of the nodes. Left out: this one.")
@click.option("--workdir", metavar="PATH", help="Folder on the nodes to start in. Left out: this one.")
@click.option("--env", "variables", metavar="NAME[=VALUE]", multiple=True, help="A variable that goes to every node.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    recipe_name: str, overrides: tuple[str, ...], hosts_file: str | None, master_port: int | None,
    remote_shell: str | None, python: str | None, workdir: str | None, variables: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Train RECIPE to its end: watch it, and start it again from its newest whole checkpoint after a fault.

    A fault is a process that is killed, a rank that stands still, a node that is lost or ill, a port that is taken, a
    checkpoint that is damaged. Its logs are kept in output_dir/NAME/incidents. The recipe's section `supervise` says
    how often and how patiently. It gives up (exit code 1) where a person must do something first: the disk is full, the
    same failure came twice at the same step. Wrong input is exit code 2. Ended itself, by whatever signal, it leaves no
    process behind; started again, it goes on.
    """
    from msparallel.cli.launch_text import Follower
    from msparallel.cli.node_options import python_of, shared_output, workdir_of
    from msparallel.cli.supervise_text import closing_text
    from msparallel.cluster.hosts import read_hosts
    from msparallel.errors import UserError, printable
    from msparallel.launch.connect import remote_shell as reach
    from msparallel.launch.connect_env import exports
    from msparallel.launch.devices import check_devices, check_mindspore
    from msparallel.launch.hosts import DEFAULT_PORT, lay_out
    from msparallel.launch.msrun import free_port
    from msparallel.launch.preflight_ask import Asking
    from msparallel.launch.processes import interruptible
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.supervise.supervise import supervise

    plan = resolve(load_recipe(recipe_name, overrides))
    if plan.recipe.train is None:
        raise UserError(f"{plan.recipe.path}\n  The recipe has no `train` section: there is nothing to train.")
    hosts = read_hosts(hosts_file) if hosts_file else None
    if hosts is None and plan.nodes == 1:
        check_devices(plan)
        check_mindspore()
    port = master_port or (DEFAULT_PORT if plan.nodes > 1 else free_port())
    layout = lay_out(plan, hosts, hosts_file or "", port)
    folder = workdir_of(workdir)
    shared_output(folder, plan.recipe.train.output_dir)
    asking = Asking(
        recipe=recipe_name,
        overrides=overrides,
        python=python_of(python),
        workdir=folder,
        env=exports(plan, variables, os.environ),
        shell=reach(remote_shell, [host.name for host in (*layout.nodes, *layout.spares)]),
    )
    with Follower(plan) as follower, interruptible():

        def show(place: Place) -> None:
            follower.show(place.phase, place.step, place.loss)

        def say(text: str) -> None:
            from tqdm import tqdm

            tqdm.write(printable(text), file=sys.stderr)
            sys.stderr.flush()

        found = supervise(plan, layout, asking, port_given=master_port is not None, say=say, show=show)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    elif found.gave_up is None:
        click.echo(closing_text(plan, found))
    else:
        click.echo(printable(closing_text(plan, found)), err=True)
    return found.exit_code
