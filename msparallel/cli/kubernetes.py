"""`msparallel kubernetes`: a recipe as a Kubernetes manifest, or a manifest against the rules."""

from __future__ import annotations

import json

import click


@click.command(name="kubernetes", epilog="""\b
Examples:
  $ msparallel kubernetes llama2_13b_dp4_tp4_pp2 --pvc team-data --image reg.example/msp:1 -o job.yaml
  $ msparallel kubernetes my.yaml train.steps=1000 --kind ascendjob --pvc team-data --rank-table
  $ msparallel kubernetes qwen3_8b_serve_tp1 --queue stand-by --pvc team-data
  $ msparallel kubernetes --check job.yaml
""")  # fmt: skip
@click.argument("arguments", metavar="RECIPE [SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--kind", type=click.Choice(["vcjob", "ascendjob", "msjob", "deployment"]),
              help="Volcano Job, MindCluster's AscendJob, MSJob; by default vcjob, for a recipe that serves deployment.")
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
@click.option("--retries", type=click.IntRange(1, 1000), default=10, show_default=True,
              help="How often a failed or evicted job starts again.")
@click.option("--check", "check_file", metavar="FILE", help="Check this manifest instead; - reads it from stdin.")
@click.option("-o", "--output", metavar="FILE", help="Write the manifest here instead of printing it.")
@click.option("--force", is_flag=True, help="Overwrite an existing file that differs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    arguments: tuple[str, ...], kind: str | None, name: str | None, image: str | None, namespace: str, queue: str,
    priority_class: str | None, with_queue: bool, pvc: str | None, host_path: str | None, host_network: bool,
    rank_table: bool, arch: str, cpu: int, retries: int, check_file: str | None, output: str | None, force: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Write the Kubernetes manifest of RECIPE, or check one.

    What Volcano, an operator or a node would refuse is refused here, with a value that works. --check knows the rules of
    Volcano's admission, of both operators and of pods with NPUs, for anybody's manifest. Exit code 2 where one is broken.
    """
    from dataclasses import replace
    from pathlib import Path

    from msparallel.cli.output_file import write_output
    from msparallel.cli.recipe_arguments import split_overrides
    from msparallel.errors import printable
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe, read_text
    from msparallel.schedule.manifest import documents, head, notes
    from msparallel.schedule.request import Request, default_name
    from msparallel.schedule.yaml_text import dump_all, plain

    if check_file is not None:
        if arguments:
            raise click.UsageError("--check takes a manifest and no recipe.")
        return _check(check_file, as_json)
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
    told = notes(plan, request)
    written = dump_all(made, head(plan, request))
    if output and output != "-":
        write_output(output, written, force)
    if as_json:
        click.echo(json.dumps({"kind": chosen, "name": request.name, "pods": plan.nodes, "output": output,
                               "documents": plain(made), "notes": told}, indent=2))  # fmt: skip
        return 0
    lines = [f"Note: {note}" for note in told]
    if output and output != "-":
        lines.append(f"Written to {output}. Next: kubectl apply -f {output}")
    else:
        click.echo(written, nl=False)
    for line in lines:
        click.echo(printable(line), err=True)
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
