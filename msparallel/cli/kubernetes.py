"""`msparallel kubernetes`: a recipe as a Kubernetes manifest, or a manifest against the rules."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click


@click.command(name="kubernetes", epilog="""\b
Examples:
  $ msparallel kubernetes llama2_13b_dp4_tp4_pp2 --pvc team-data --image reg.example/msp:1 -o job.yaml
  $ msparallel kubernetes my.yaml train.steps=1000 --kind ascendjob --pvc team-data --rank-table
  $ msparallel kubernetes qwen3_8b_serve_tp1 --queue stand-by --pvc team-data
  $ msparallel kubernetes --check job.yaml
  $ msparallel kubernetes --two-queues 32 -o queues.yaml
""")  # fmt: skip
@click.argument("arguments", metavar="RECIPE [SECTION.KEY=VALUE...]", nargs=-1)
@click.option(
    "--kind",
    type=click.Choice(["vcjob", "ascendjob", "msjob", "deployment"]),
    help="Volcano Job, MindCluster's AscendJob, MSJob, Deployment; by default vcjob, deployment to serve.",
)
@click.option("--name", help="Of the job; by default the recipe's, with dashes.")
@click.option("--image", help="Container image with msparallel, MindSpore and CANN.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--queue", default="default", show_default=True, help="Volcano queue.")
@click.option("--priority-class", help="PriorityClass of the job.")
@click.option("--with-queue", is_flag=True, help="Write the Queue and the PriorityClass too.")
@click.option("--pvc", help="PersistentVolumeClaim with data, models and output, shared by all pods.")
@click.option("--host-path", help="The same as a folder that all nodes share.")
@click.option("--host-network", is_flag=True, help="Pods have their node's network.")
@click.option("--rank-table", is_flag=True, help="Wait for MindCluster's rank table and read it.")
@click.option("--arch", type=click.Choice(["arm", "x86"]), default="arm", show_default=True, help="Of the nodes.")
@click.option("--cpu", type=click.IntRange(0, 4096), default=0, help="Cores of a pod; by default none are asked for.")
@click.option(
    "--retries",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How often a failed or evicted job starts again.",
)
@click.option("--check", "check_file", metavar="FILE", help="Check this manifest instead; - reads it from stdin.")
@click.option(
    "--two-queues",
    type=click.IntRange(1, 1_000_000),
    metavar="DEVICES",
    help="Write queues and priorities instead: training owns so many NPUs, inference borrows idle ones.",
)
@click.option("--scheduler-config", is_flag=True, help="Write the configuration of Volcano's scheduler that they need.")
@click.option("-o", "--output", metavar="FILE", help="Write the manifest here instead of printing it.")
@click.option("--force", is_flag=True, help="Overwrite an existing file that differs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    arguments: tuple[str, ...], kind: str | None, name: str | None, image: str | None, namespace: str, queue: str,
    priority_class: str | None, with_queue: bool, pvc: str | None, host_path: str | None, host_network: bool,
    rank_table: bool, arch: str, cpu: int, retries: int, check_file: str | None, two_queues: int | None,
    scheduler_config: bool, output: str | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Write the Kubernetes manifest of RECIPE, or check one.

    What Volcano, an operator or a node would refuse is refused here, with a value that works. --check knows the rules
    of Volcano's admission, of both operators and of pods with NPUs, for anybody's manifest. Exit code 2 where one is
    broken.
    """
    others = (check_file is not None) + (two_queues is not None) + scheduler_config
    if others > 1 or (others and arguments):
        raise click.UsageError("A recipe, --check, --two-queues or --scheduler-config: one of them.")
    if check_file is not None:
        return _check(check_file, as_json)
    if others:
        return _shared(two_queues, output, force, as_json)
    from dataclasses import replace
    from pathlib import Path

    from msparallel.cli.recipe_arguments import split_overrides
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe, read_text
    from msparallel.schedule.manifest import documents, head, notes
    from msparallel.schedule.request import Request, default_name

    recipes, overrides = split_overrides(arguments)
    if len(recipes) != 1:
        raise click.UsageError("Name one recipe, or a manifest with --check FILE.")
    recipe = load_recipe(recipes[0], overrides)
    plan = resolve(recipe)
    chosen = kind or ("vcjob" if recipe.train is not None else "deployment")
    request = Request(
        kind=chosen, name=name or default_name(recipe.name), namespace=namespace, queue=queue,
        priority_class=priority_class, claim=pvc, host_path=host_path, host_network=host_network,
        rank_table=rank_table, arch=arch, cpu=cpu, retries=retries, with_queue=with_queue,
    )  # fmt: skip
    request = replace(request, image=image) if image is not None else request
    made = documents(plan, request, read_text(Path(recipe.path)))
    facts = {"kind": chosen, "name": request.name, "pods": plan.nodes}
    told = notes(plan, request)
    return _write(made, head(plan, request), told, facts, output, force, as_json)


def _shared(devices: int | None, output: str | None, force: bool, as_json: bool) -> int:
    """Objects of the whole cluster."""
    from msparallel.schedule.queues import scheduler_config, two_queues

    if devices is None:
        made = [scheduler_config()]
        head = (
            "The configuration of Volcano's scheduler, for a Volcano that is not MindCluster's: that one's own has its "
            "plugin volcano-npu, which must stay in it."
        )
    else:
        made = two_queues("huawei.com/Ascend910", devices)
        head = f"Two queues of one cluster: training owns its {devices} NPUs, inference borrows those that are idle."
    return _write(made, head, [], {}, output, force, as_json)


def _write(
    made: list[Any], head: str, told: list[str], facts: dict[str, Any], output: str | None, force: bool, as_json: bool
) -> int:
    from msparallel.cli.output_file import write_output
    from msparallel.errors import printable
    from msparallel.schedule.yaml_text import dump_all, plain

    written = dump_all(made, head)
    path = None if output == "-" else output
    if path:
        write_output(path, written, force)
    if as_json:
        click.echo(json.dumps({**facts, "output": path, "documents": plain(made), "notes": told}, indent=2))
        return 0
    if not path:
        click.echo(written, nl=False)
    for note in told:
        click.echo(printable(f"Note: {note}"), err=True)
    if path:
        click.echo(printable(f"Written to {path}. Next: kubectl apply -f {shlex.quote(path)}"), err=True)
    return 0


def _check(path: str, as_json: bool) -> int:
    from msparallel.errors import RecipeError, printable
    from msparallel.schedule.check_manifest import check_file

    checked = check_file(path)
    if as_json:
        ordered = RecipeError(checked.problems).problems
        click.echo(json.dumps({"file": path, "objects": checked.objects, "problems": [p.to_json() for p in ordered],
                               "advice": [p.to_json() for p in checked.advice]}, indent=2))  # fmt: skip
        return 2 if checked.problems else 0
    if checked.problems:
        raise RecipeError(checked.problems)
    lines = [*checked.objects, *(f"Note: {printable(str(item))}" for item in checked.advice), "Every rule holds."]
    click.echo(printable("\n".join(lines)))
    return 0
