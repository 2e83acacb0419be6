"""`msparallel monitor`: devices and job while they run: in the terminal, as JSON, for Prometheus."""

from __future__ import annotations

import click

from msparallel.cli.numbers import Number


@click.command(epilog="""\b
Examples:
  $ msparallel monitor quickstart                      the run of a recipe, and this machine's devices
  $ msparallel monitor output/quickstart --once
  $ msparallel monitor --from captures --interval 1    outputs of npu-smi that were saved
  $ msparallel monitor quickstart --prometheus 9115    metrics at http://127.0.0.1:9115/metrics
""")  # fmt: skip
@click.argument("run", metavar="[RUN_DIR_OR_RECIPE]", required=False)
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--from", "recorded", metavar="FILE|DIR", help="Saved outputs of npu-smi info instead of this machine.")
@click.option("--hosts", "hosts_file", metavar="FILE", help="Ask npu-smi of these hosts by ssh instead.")
@click.option("--remote-shell", metavar="TEXT", help="Program that reaches a host, for example 'ssh -p 2222'.")
@click.option("--interval", type=Number(0.1, 86_400), help="Seconds between two looks. [2]")
@click.option("--once", is_flag=True, help="One look.")
@click.option("--temperature-limit", type=Number(1, 200), default=85.0, show_default=True,
              help="Celsius; devices are marked from 5 below it.")  # fmt: skip
@click.option("--prometheus", metavar="[HOST:]PORT", help="Serve metrics; HOST is 127.0.0.1 unless given.")
@click.option("--textfile", metavar="FILE.prom", help="Write metrics for node_exporter's textfile collector.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout: one look.")
def command(
    run: str | None,
    overrides: tuple[str, ...],
    recorded: str | None,
    hosts_file: str | None,
    remote_shell: str | None,
    interval: float | None,
    once: bool,
    temperature_limit: float,
    prometheus: str | None,
    textfile: str | None,
    as_json: bool,
) -> int:
    """Watch devices and a run; a table that stays in place, Ctrl-C ends it.

    Where the output is no terminal (a pipe, TERM=dumb) or NO_COLOR is set: plain text, once, or with --interval a line
    for each look.
    """
    from msparallel.cli.monitor_run import Asked, monitor

    return monitor(Asked(
        run=run, overrides=overrides, recorded=recorded, hosts_file=hosts_file, remote_shell=remote_shell,
        interval_s=interval, once=once, temperature_limit_c=temperature_limit, prometheus=prometheus,
        textfile=textfile, as_json=as_json,
    ))  # fmt: skip
