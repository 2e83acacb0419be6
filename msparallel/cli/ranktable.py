"""`msparallel ranktable`: make, check and compare rank tables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msparallel.cli.numbers import Number
from msparallel.errors import RecipeError, RunError, UserError, printable, short

if TYPE_CHECKING:
    from msparallel.cluster.rank_table import RankTable
    from msparallel.plan import Plan


class _Chip(click.Choice):
    """Chips under the rank table's words; what a product is called elsewhere is told its word."""

    _OTHER = (("910c", "A3"), ("910b", "A2"), ("950", "A5"), ("910", "910A"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            written = str(value).lower()
            meant = next((word for name, word in self._OTHER if name in written or word.lower() in written), None)
            if meant:
                error.message += f" {short(value, 40)} is {meant}."
            raise


@click.group(name="ranktable", epilog="""\b
Examples:
  $ msparallel ranktable make --hosts hosts.txt --hccn cards -o hccl.json
  $ msparallel ranktable check hccl.json --recipe llama2_13b_dp4_tp4_pp2
  $ msparallel ranktable diff old.json hccl.json
""")  # fmt: skip
def command() -> None:
    """Make, check and compare rank tables: which device of which server has which rank.

    msrun needs none. Jobs that MindCluster or MindIE start do.
    """


@command.command("make", epilog="""\b
Examples:
  $ msparallel ranktable make --hosts hosts.txt --hccn cards -o hccl.json
  $ msparallel ranktable make --hosts hosts.txt --hccn cards --chip A3 --recipe my.yaml --inside tp,dp
  $ msparallel ranktable make node_0.json node_1.json -o hccl.json
""")  # fmt: skip
@click.argument("tables", metavar="[TABLE.json...]", nargs=-1)
@click.option("--hosts", metavar="FILE",
              help="Hosts in the order of their ranks: NAME [ADDRESS] [super_pod=ID] a line.")
@click.option("--hccn", metavar="FOLDER|FILE",
              help="What hosts know of their cards: HOST.conf (/etc/hccn.conf), HOST.txt (hccn_tool's output), or "
              "on A5 HOST.json (/etc/hccl_rootinfo.json).")
@click.option("--chip", type=_Chip(["910A", "A2", "A3", "A5"]), help="By default the recipe's, else A2.")
@click.option("--devices", metavar="0-7", help="Physical devices of each host; by default all it knows of.")
@click.option("--recipe", "recipe_name", metavar="RECIPE", help="The job: says which axis stays inside a server.")
@click.option("--inside", metavar="AXIS,...", help="Axes that should stay inside a server: tp, cp, dp, pp.")
@click.option("-o", "--output", metavar="FILE", help="Write the table here instead of printing it.")
@click.option("--force", is_flag=True, help="Overwrite an existing file that differs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def make(
    tables: tuple[str, ...], hosts: str | None, hccn: str | None, chip: str | None, devices: str | None,
    recipe_name: str | None, inside: str | None, output: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make a rank table of a host list, or of the tables of single hosts.

    Ranks go over hosts in the order of the list, over tables as they are named (or, with --hosts, in that order). The
    result passes every rule of check, or nothing is written. Exit code 2 where that cannot be.
    """
    from msparallel.cli.output_file import write_output
    from msparallel.cluster.check_table import check
    from msparallel.cluster.recipe_fit import fit_advice, fit_problems

    if bool(tables) == bool(hccn) or (hccn and not hosts) or (tables and devices):
        raise click.UsageError("Give --hosts and --hccn (and --devices), or the tables of single hosts.")
    if inside and not recipe_name:
        raise click.UsageError("--inside asks about a recipe's axes: name it with --recipe.")
    plan = _plan(recipe_name) if recipe_name else None
    chip = chip or (_chip_of(plan) if plan else None)
    if tables:
        made = _merged(tables, hosts)
    else:
        assert hosts is not None and hccn is not None
        made = _from_hosts(hosts, hccn, chip or "A2", _device_ids(devices))
    checked = check(made, chip)
    problems = [*checked.problems, *(fit_problems(made, plan, hosts or "") if plan else [])]
    advice = (*checked.advice, *(fit_advice(made, plan) if plan else []))
    if problems:
        raise RecipeError(problems)
    told = _placement(made, plan, inside) if plan else {}
    text = json.dumps(made.to_json(), indent=2) + "\n"
    if output:
        write_output(output, text, force)
    if as_json:
        click.echo(json.dumps({"output": output, "table": made.to_json(), "placement": told,
                               "advice": [item.to_json() for item in advice]}, indent=2))  # fmt: skip
        return
    if not output:
        click.echo(text, nl=False)
    lines = [*_summary(made, checked.chip), *_placement_lines(told), *_advice_lines(advice)]
    if output:
        lines.append(f"Written to {output}.")
    click.echo(printable("\n".join(lines)), err=not output)


@command.command("check", epilog="""\b
Examples:
  $ msparallel ranktable check hccl.json
  $ msparallel ranktable check hccl.json --recipe llama2_13b_dp4_tp4_pp2
  $ msparallel ranktable check /user/serverid/devindex/config/hccl.json --wait 600
""")  # fmt: skip
@click.argument("path", metavar="TABLE.json")
@click.option("--chip", type=_Chip(["910A", "A2", "A3", "A5"]),
              help="By default the recipe's, else what the table tells.")
@click.option("--recipe", "recipe_name", metavar="RECIPE", help="The job that the table is for.")
@click.option("--roce", is_flag=True, help="The job runs with HCCL_INTRA_ROCE_ENABLE=1.")
@click.option("--wait", "wait_s", type=Number(0, 86_400), metavar="SECONDS",
              help="Wait so long for a table that is still being written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def check_command(
    path: str, chip: str | None, recipe_name: str | None, roce: bool, wait_s: float | None, as_json: bool
) -> int:
    """Check TABLE.json against every rule; all problems at once.

    Exit code 0 where all hold, 2 where one does not, 1 where the table is still being written.
    """
    from msparallel.cluster.check_table import check
    from msparallel.cluster.read_table import read_rank_table
    from msparallel.cluster.recipe_fit import fit_advice, fit_problems
    from msparallel.cluster.wait_table import wait_for_table

    plan = _plan(recipe_name) if recipe_name else None
    table = read_rank_table(path) if wait_s is None else wait_for_table(path, wait_s)
    checked = check(table, chip or (_chip_of(plan) if plan else None), roce=roce)
    unready = table.status in ("initializing", "unknown")
    problems = [*checked.problems, *(fit_problems(table, plan) if plan and not unready else [])]
    advice = (*checked.advice, *(fit_advice(table, plan) if plan and not problems else []))
    told = _placement(table, plan, None) if plan and not problems else {}
    if as_json:
        ordered = RecipeError(problems).problems
        click.echo(json.dumps({
            "file": path, "chip": checked.chip, "version": table.version, "status": table.status, "ranks": table.size,
            "problems": [item.to_json() for item in ordered], "advice": [item.to_json() for item in advice],
            "placement": told,
        }, indent=2))  # fmt: skip
    elif unready and len(problems) == 1:
        raise RunError(str(problems[0]))
    elif problems:
        raise RecipeError(problems)
    else:
        click.echo(printable("\n".join([
            *_summary(table, checked.chip), *_placement_lines(told), *_advice_lines(advice),
            "Every rule holds.",
        ])))  # fmt: skip
    return (1 if unready and len(problems) == 1 else 2) if problems else 0


@command.command("diff", epilog="""\b
Examples:
  $ msparallel ranktable diff old.json new.json
""")  # fmt: skip
@click.argument("old", metavar="OLD.json")
@click.argument("new", metavar="NEW.json")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def diff(old: str, new: str, as_json: bool) -> int:
    """Say what is different between two rank tables.

    Exit code 0 where they say the same, 1 where not, 2 where one is no rank table.
    """
    from msparallel.cluster.diff_table import difference
    from msparallel.cluster.read_table import read_rank_table

    lines = difference(read_rank_table(old), read_rank_table(new))
    if as_json:
        click.echo(json.dumps({"old": old, "new": new, "differences": lines}, indent=2))
    else:
        click.echo(printable("\n".join(lines or ["The two tables say the same."])))
    return 1 if lines else 0


def _plan(name: str) -> Plan:
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe

    return resolve(load_recipe(name))


def _chip_of(plan: Plan) -> str:
    """The rank table's word for a profile's chip."""
    from msparallel.cluster.table_rules import CHIP_OF_PROFILE

    chip = CHIP_OF_PROFILE.get(plan.hardware.chip)
    if chip is None:
        raise UserError(f"The recipe is for {plan.hardware.chip}, which has no rank table. Those of "
                        f"{', '.join(CHIP_OF_PROFILE)} have one.")  # fmt: skip
    return chip


def _merged(tables: tuple[str, ...], hosts: str | None) -> RankTable:
    from msparallel.cluster.hosts import read_hosts
    from msparallel.cluster.make_table import in_order_of, merge_tables
    from msparallel.cluster.read_table import read_rank_table

    read = [read_rank_table(path) for path in tables]
    for table in read:
        if table.status != "completed":
            raise RunError(f"{table.file}: status is {short(table.status, 40)}, not completed. Wait for it: "
                           f"msparallel ranktable check {table.file} --wait 600")  # fmt: skip
    return merge_tables(in_order_of(read, read_hosts(hosts)) if hosts else read)


def _from_hosts(hosts: str, hccn: str, chip: str, devices: tuple[int, ...]) -> RankTable:
    from msparallel.cluster.hosts import hccn_file, read_hccn, read_hosts
    from msparallel.cluster.make_table import make_rank_list, make_table

    listed = read_hosts(hosts)
    if not os.path.exists(hccn):
        raise UserError(f"--hccn {short(hccn)}: there is no such folder or file. It is a folder with a file for each "
                        f"host, for example {listed[0].name}.conf, the host's /etc/hccn.conf.")  # fmt: skip
    if not Path(hccn).is_dir() and len(listed) > 1:
        raise UserError(f"--hccn {hccn}: {len(listed)} hosts need a folder with a file for each, for example "
                        f"{listed[0].name}.conf.")  # fmt: skip
    if chip == "A5":
        return make_rank_list([_rootinfo(hccn, host.name) for host in listed], devices)
    cards = [read_hccn(hccn_file(Path(hccn), host.name) if Path(hccn).is_dir() else hccn) for host in listed]
    return make_table(listed, cards, chip, devices, file=hosts)


def _rootinfo(hccn: str, host: str) -> RankTable:
    """What an A5 host tells of its devices, from HOST.json of the folder, or the one file."""
    from msparallel.cluster.check_table import check
    from msparallel.cluster.read_table import read_rootinfo

    path = Path(hccn) / f"{host}.json" if Path(hccn).is_dir() else Path(hccn)
    if not path.is_file():
        raise UserError(f"{path}: not there. Copy the host's /etc/hccl_rootinfo.json there; where a host has none: "
                        "mindcluster-tools rootinfo --output /etc/hccl_rootinfo.json")  # fmt: skip
    info = read_rootinfo(path)
    problems = check(info, "A5").problems
    if problems:
        raise RecipeError(problems)
    return info


def _device_ids(text: str | None) -> tuple[int, ...]:
    """`0-3,6` as numbers. Raises UserError."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        low, dash, high = part.strip().partition("-")
        ends = [low, high] if dash else [low, low]
        if not all(end.isascii() and end.isdigit() and int(end[:4]) <= 63 and len(end) <= 2 for end in ends):
            raise UserError(f"--devices {short(text, 40)}: physical numbers from 0 to 63, for example 0-7 or 0,1,4.")
        found += range(int(ends[0]), int(ends[1]) + 1)
    if text and (not found or len(set(found)) != len(found)):
        raise UserError(f"--devices {short(text, 40)}: each device once, ranges upwards, for example 0-7 or 0,1,4.")
    return tuple(found)


def _placement(table: RankTable, plan: Plan, inside: str | None) -> dict[str, Any]:
    """Which axes stay inside a server, and a super pod. Raises UserError for a wish that cannot be had."""
    from msparallel.cluster.rank_order import axes_inside, units_of, wish
    from msparallel.mesh import AXES

    if inside:
        names = tuple(dict.fromkeys(part.strip() for part in inside.split(",")))
        unknown = [name for name in names if name not in AXES]
        if unknown:
            raise UserError(f"--inside {short(inside, 40)}: {short(unknown[0], 20)!r} is no axis; axes are "
                            f"{', '.join(AXES)}.")  # fmt: skip
        counts = {len(server.devices) for server in table.servers}
        per_node = min(counts) if counts else plan.devices_per_node
        found = wish(plan.mesh, per_node, names)
        if not found.possible:
            raise UserError(f"--inside {inside}: {found.reason}")
    servers, pods = units_of(table)
    told: dict[str, Any] = {"mesh": str(plan.mesh), "inside_server": axes_inside(plan.mesh, servers)}
    if len(set(pods)) > 1:
        told["inside_super_pod"] = axes_inside(plan.mesh, pods)
    return told


def _placement_lines(told: dict[str, Any]) -> list[str]:
    from msparallel.cluster.rank_order import NAMES

    lines = [f"Mesh: {told['mesh']}"] if told else []
    for key, what in (("inside_server", "server"), ("inside_super_pod", "super pod")):
        for axis, stays in reversed(told.get(key, {}).items()):
            lines.append(f"  {axis} ({NAMES[axis]} parallel): {'stays inside a' if stays else 'crosses'} {what}"
                         f"{'' if stays else 's'}")  # fmt: skip
    return lines


def _summary(table: RankTable, chip: str) -> list[str]:
    from msparallel.cluster.table_rules import spans

    if table.form == "ranks":
        return [f"{table.size} ranks, version {table.version} ({chip})"]
    count = len(table.servers)
    version = table.version or "(template 2)"
    lines = [f"{table.size} ranks on {count} server{'s' * (count > 1)}, version {version} ({chip})"]
    for server in table.servers[:16]:
        ranks = spans(sorted(device.rank_id for device in server.devices))
        devices = spans(sorted(device.device_id for device in server.devices))
        lines.append(f"  {short(server.server_id, 64)}: rank {ranks} on device {devices}")
    return lines + [f"  ... {count - 16} more"] * (count > 16)


def _advice_lines(advice: tuple[Any, ...]) -> list[str]:
    return [f"Note: {item.key}: {item.message}" for item in advice]
