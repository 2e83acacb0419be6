"""`msparallel queue-simulate`: a trace of jobs under the policies of a queue."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from msparallel.cli.numbers import Number
from msparallel.errors import UserError, short

if TYPE_CHECKING:
    from msparallel.schedule.queue.job import Cluster, Job
    from msparallel.schedule.queue.measure import Measures
    from msparallel.schedule.queue.replay import Replay
    from msparallel.schedule.queue.shares import QueueRule

POLICY_NAMES = ("fifo", "backfill", "priority", "preempt", "standby", "reclaim")
KIND_NAMES = ("training", "inference", "evaluation", "interactive")
_QUEUE = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,63})=(?P<weight>[0-9]{1,4})(?P<keep>,keep)?")


@click.command("queue-simulate", epilog="""\b
Examples:
  $ msparallel queue-simulate trace.csv --nodes 4 --devices-per-node 8
  $ msparallel queue-simulate --synthetic 1 --policy fifo --policy standby --plot queue.png
  $ msparallel queue-simulate --synthetic 1 --only training --policy fifo
""")  # fmt: skip
@click.argument("trace", metavar="[TRACE.csv]", required=False)
@click.option("--synthetic", "seed", metavar="SEED", type=click.IntRange(0, 2**31 - 1),
              help="A made-up trace of this seed instead of a file.")
@click.option("--load", type=Number(0.01, 4), help="Its training work, as a part of the cluster's; 0.45.")
@click.option("--standby-load", type=Number(0, 4), help="Its inference work, the same way; 0.35.")
@click.option("--days", type=click.IntRange(1, 366), help="In which its jobs are submitted; 14.")
@click.option("--nodes", type=click.IntRange(1, 65_536), default=8, show_default=True, help="Nodes of the cluster.")
@click.option("--devices-per-node", type=click.IntRange(1, 64), default=8, show_default=True, help="Devices of each.")
@click.option("--policy", "policies", type=click.Choice([*POLICY_NAMES, "all"]), multiple=True,
              help="May be given several times; all by default.")
@click.option("--only", type=click.Choice(KIND_NAMES), help="Replay the jobs of this class alone.")
@click.option("--queue", "queues", metavar="NAME=WEIGHT[,keep]", multiple=True,
              help="For reclaim: a queue's weight (1), and whether it keeps what it holds. May be repeated.")
@click.option("--checkpoint-interval", "interval_s", metavar="SECONDS", type=Number(0.001, 10**10),
              help="Of every job but inference, whatever the trace says.")
@click.option("--plot", metavar="FILE.png", help="Also draw devices in use over time, and waiting times.")
@click.option("--save-trace", metavar="FILE.csv", help="Also write the jobs that were replayed as a trace.")
@click.option("--force", is_flag=True, help="Overwrite a trace that is there and differs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    trace: str | None, seed: int | None, load: float | None, standby_load: float | None, days: int | None, nodes: int,
    devices_per_node: int, policies: tuple[str, ...], only: str | None, queues: tuple[str, ...],
    interval_s: float | None, plot: str | None, save_trace: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Replay TRACE.csv under policies, and tell utilisation, waiting, lost work and fairness.

    This is a simulation: what comes out holds for the trace, the policy and the costs that it is given, and is no
    measurement of a cluster. Columns of a trace: job, submit_s, devices, duration_s, and more that docs/24_queues.md
    lists. A job that the cluster can never run is refused with its line.
    """
    from msparallel.cli.columns import terminal_width
    from msparallel.cli.queue_simulate_text import replays_text
    from msparallel.schedule.queue.job import Cluster
    from msparallel.schedule.queue.measure import measure

    if (trace is None) == (seed is None):
        raise click.UsageError("Give TRACE.csv, or --synthetic SEED.")
    if seed is None and (load, standby_load, days) != (None, None, None):
        raise click.UsageError("--load, --standby-load and --days make a synthetic trace: give --synthetic SEED.")
    if plot is not None:
        from msparallel.report.scatter import check_picture

        check_picture(plot)
    cluster = Cluster(nodes=nodes, devices_per_node=devices_per_node)
    rules = dict(map(_queue_rule, queues))
    jobs, source = _jobs(trace, seed, load, standby_load, days, cluster)
    if only is not None:
        jobs, source = [job for job in jobs if job.kind == only], f"{source}, only {only}"
        if not jobs:
            raise UserError(f"{source}: no job is of this class.")
    if interval_s is not None:
        jobs = [job if job.kind == "inference" else replace(job, checkpoint_interval_s=interval_s) for job in jobs]
        source += f", a checkpoint every {interval_s:g} s"
    unknown = sorted(set(rules) - {job.queue for job in jobs})
    if unknown:
        raise UserError(f"--queue {short(unknown[0], 64)}: no job of the trace is in this queue. Its queues are "
                        f"{short(', '.join(sorted({job.queue for job in jobs})))}.")  # fmt: skip
    if save_trace is not None:
        from msparallel.cli.output_file import write_output
        from msparallel.schedule.queue.write_trace import trace_text

        write_output(save_trace, trace_text(jobs, source), force)
    names = [name for name in POLICY_NAMES if not policies or name in policies or "all" in policies]
    found = [(replayed, measure(replayed)) for replayed in _replays(jobs, cluster, names, rules)]
    if plot is not None:
        from msparallel.schedule.queue.draw import draw_replays

        draw_replays(plot, found, f"{source}, {cluster}")
    if as_json:
        click.echo(json.dumps(_document(source, cluster, jobs, found), indent=2))
        return
    click.echo(replays_text(source, cluster, jobs, [measures for _, measures in found], terminal_width()))
    for word, file in (("Picture", plot), ("Trace", save_trace)):
        if file is not None:
            click.echo(f"{word}  {file}")


def _queue_rule(text: str) -> tuple[str, QueueRule]:
    from msparallel.schedule.queue.shares import QueueRule

    told = _QUEUE.fullmatch(text)
    if told is None or int(told["weight"]) < 1:
        raise click.UsageError(f"--queue {short(text, 80)}: a queue is NAME=WEIGHT or NAME=WEIGHT,keep with a weight "
                               "from 1 to 9999, for example train=4.")  # fmt: skip
    return told["name"], QueueRule(weight=int(told["weight"]), reclaimable=not told["keep"])


def _jobs(
    trace: str | None, seed: int | None, load: float | None, standby_load: float | None, days: int | None,
    cluster: Cluster,
) -> tuple[list[Job], str]:  # fmt: skip
    """The jobs, and in words where they are from."""
    from msparallel.schedule.queue import synthetic
    from msparallel.schedule.queue.trace import read_trace

    if trace is not None:
        return read_trace(trace, cluster), short(trace, 200)
    assert seed is not None
    days = synthetic.DAYS if days is None else days
    load = synthetic.LOAD if load is None else load
    standby_load = synthetic.STANDBY_LOAD if standby_load is None else standby_load
    jobs = synthetic.synthetic_trace(seed, cluster, load=load, standby_load=standby_load, days=days)
    return jobs, (f"synthetic trace, seed {seed}, {days} day{'s' * (days > 1)}, load {load:g}, stand-by load "
                  f"{standby_load:g}")  # fmt: skip


def _replays(jobs: list[Job], cluster: Cluster, names: list[str], rules: dict[str, QueueRule]) -> list[Replay]:
    from tqdm import tqdm

    from msparallel.schedule.queue.policies import POLICIES
    from msparallel.schedule.queue.replay import replay

    tqdm.monitor_interval = 0  # no thread
    with tqdm(total=len(jobs) * len(names), unit="job", delay=2, leave=False, desc="replaying", disable=None) as bar:
        step: Callable[[], None] = lambda: bar.update()  # noqa: E731
        return [replay(jobs, cluster, POLICIES[name], queues=rules, progress=step) for name in names]


def _document(source: str, cluster: Cluster, jobs: list[Job], found: list[tuple[Replay, Measures]]) -> dict:
    return {
        "simulation": True, "source": source, "nodes": cluster.nodes, "devices_per_node": cluster.devices_per_node,
        "jobs": len(jobs), "policies": [measures.to_json() for _, measures in found],
    }  # fmt: skip
