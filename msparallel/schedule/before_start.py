"""What a pod waits for before its job starts: `python -m msparallel.schedule.before_start --host NAME --wait 1800`.

In: a host name, and/or where a rank table will stand and where to put it. Out: exit code 0 once the name resolves and
the table is whole and copied; 1 after so many seconds, saying what is still missing; 2 for a table that is wrong.

A name is asked for again and again: the record of a pod appears when the pod has an address, and a resolver may
remember for half a minute that there was none. A rank table that ascend-operator still writes has the status
`initializing`.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from msparallel.errors import RecipeError, RunError, UserError, printable

POLL_S = 2.0


def main(arguments: list[str]) -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(prog="python -m msparallel.schedule.before_start")
    parser.add_argument("--host", help="must resolve to an address")
    parser.add_argument("--table", help="rank table that is being written")
    parser.add_argument("--copy", help="regular file that it becomes")
    parser.add_argument("--wait", type=float, default=1800.0, metavar="SECONDS")
    given = parser.parse_args(arguments)
    if bool(given.table) != bool(given.copy):
        parser.error("--table and --copy go together")
    until = time.monotonic() + given.wait
    try:
        if given.host:
            print(f"{given.host} is {wait_for_host(given.host, until)}", flush=True)
        if given.table:
            copy_table(given.table, given.copy, until)
            print(f"{given.table} -> {given.copy}", flush=True)
    except UserError as error:
        print(printable(str(error)), file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def wait_for_host(name: str, until: float) -> str:
    """Its first address. Raises RunError where there is none at `until` (time.monotonic)."""
    while True:
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= until:
                raise RunError(
                    f"{name} does not resolve to an address: {error}. Is the pod of this name scheduled, and does "
                    f"its Service exist? `kubectl get pods,services -o wide` shows both."
                ) from None
        time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))


def copy_table(source: str, target: str, until: float) -> None:
    """Wait for a whole rank table and make a file of it.

    The copy is what is checked: the source, in a ConfigMap's volume, is a symbolic link, which is no rank table.
    Raises RunError where it is not whole in time, RecipeError for one that breaks a rule.
    """
    from msparallel.cluster.check_table import check
    from msparallel.cluster.read_table import read_rank_table
    from msparallel.cluster.wait_table import wait_for_table

    try:
        wait_for_table(source, max(0.0, until - time.monotonic()))
    except RecipeError as error:
        raise RunError(f"{source}: ascend-operator has not written a rank table here.\n{error.problems[0]}") from None
    partial = Path(f"{target}.partial")
    try:
        partial.write_bytes(Path(source).read_bytes())
        if found := check(read_rank_table(partial), None).problems:
            partial.unlink()
            raise RecipeError([replace(problem, file=source) for problem in found])
        os.replace(partial, target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written: {error.strerror}.") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
