"""`msparallel diagnose`: logs of a job that failed, and what went wrong first."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(epilog="""\b
Examples:
  $ msparallel diagnose output/msrun_log
  $ msparallel diagnose collected_logs --json
""")  # fmt: skip
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(folder: Path, as_json: bool) -> int:
    """Find the root cause in DIR: worker logs, scheduler.log, plog, dmesg and npu-smi output, plain or gzip.

    Exit code 1 where an error was found, 0 where none was, 2 where there is no log.
    """
    from msparallel.cli.columns import terminal_width
    from msparallel.cli.diagnose_text import diagnosis_text
    from msparallel.cli.reading_bar import reading_bar
    from msparallel.diagnose.diagnose import diagnose
    from msparallel.errors import UserError, short

    with reading_bar() as read:
        found = diagnose(folder, read)
    if not found.files:
        left_out = "".join(f"\n  {short(name, 100)}: {reason}" for name, reason in found.left_out[:5])
        raise UserError(
            f"{folder}\n  There is no log here. Logs are worker_N.log and scheduler.log of msrun, plog-* of CANN, "
            "dmesg, messages, the output of npu-smi: text in files that end in .log, .txt, .out, .err or have no "
            f"ending, also as .gz, in this folder and below it.{left_out}"
        )
    if as_json:
        skipped = [{"file": name, "reason": reason} for name, reason in found.left_out]
        click.echo(json.dumps({"findings": [finding.to_json() for finding in found.findings], "files": found.files,
                               "ranks": found.ranks, "bytes_read": found.bytes_read, "left_out": skipped},
                              indent=2))  # fmt: skip
    else:
        click.echo(diagnosis_text(found, width=terminal_width()))
    return 1 if found.failed else 0
