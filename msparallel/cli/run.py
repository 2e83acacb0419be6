"""`msparallel run`: train a recipe, alone, by local workers, or as one node of several."""

from __future__ import annotations

import json
import shlex

import click


@click.command(
    epilog="""\b
Examples:
  $ msparallel run quickstart
  $ msparallel run quickstart train.steps=400          goes on from the checkpoint
  $ msparallel run gpt_tiny_dp2_cpu                    two local workers
  $ msparallel run llama2_13b_dp8_tp4_pp2 --node-rank 3 --master-addr 10.0.0.1 --master-port 8118
"""
)
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--fresh", is_flag=True, help="Start over: the old output is moved aside, not deleted.")
@click.option("--node-rank", type=click.IntRange(min=0), help="Which of several machines this is.")
@click.option("--master-addr", help="Address of machine 0.")
@click.option("--master-port", type=click.IntRange(1024, 65535), help="Port of machine 0. Left out: a free one.")
@click.option("--print-command", is_flag=True, help="Only print the msrun command of this machine.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    recipe_name: str,
    overrides: tuple[str, ...],
    fresh: bool,
    node_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
    print_command: bool,
    as_json: bool,
) -> None:
    """Train RECIPE, or go on from its last checkpoint."""
    from msparallel.errors import UserError
    from msparallel.launch.devices import check_devices, check_mindspore
    from msparallel.launch.msrun import launch, msrun_command
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.train.prepare import prepare
    from msparallel.train.run import check_no_run, closing_text, move_aside, notice, run_dir, run_recipe, sole_run

    plan = resolve(load_recipe(recipe_name, overrides))
    if plan.recipe.train is None:
        raise UserError(f"{plan.recipe.path}\n  The recipe has no `train` section: there is nothing to train.")
    several = plan.nodes > 1
    if several and (node_rank is None or master_addr is None or master_port is None):
        raise UserError(
            f"{plan.recipe.name} runs on {plan.nodes} machines. On each of them, with its own number:\n"
            f"  msparallel run {recipe_name} --node-rank 0..{plan.nodes - 1} --master-addr ADDRESS_OF_MACHINE_0 "
            f"--master-port 8118\n"
            f"Or all of them from one: msparallel launch {recipe_name} --hosts FILE"
        )
    if not several and (node_rank is not None or master_addr is not None):
        given = "--node-rank" if node_rank is not None else "--master-addr"
        raise UserError(f"{given}: {plan.recipe.name} runs on one machine; leave it out: msparallel run {recipe_name}")
    address, port = master_addr or "127.0.0.1", master_port
    if print_command:
        argv = msrun_command(plan, node_rank=node_rank or 0, master_addr=address, master_port=port or 8118)
        check_no_run(plan, node_rank or 0)  # msrun would empty the logs of a run that is going on
        click.echo(json.dumps({"argv": argv}) if as_json else shlex.join(argv))
        return
    check_devices(plan)
    check_mindspore()
    if fresh and several:
        raise UserError(
            f"--fresh with {plan.nodes} machines: each would move the others' new output aside. Rename "
            f"{run_dir(plan)} once, then start without --fresh."
        )
    with sole_run(plan, node_rank or 0):
        if fresh:
            prepare(plan, None)  # what is wrong with the data shows before anything moves
            if aside := move_aside(plan):
                notice(f"The old output is now {aside}.")
        if plan.world_size == 1:
            result = run_recipe(plan)
        else:
            result = launch(plan, node_rank=node_rank or 0, master_addr=address, master_port=port)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        click.echo(closing_text(plan, result))
