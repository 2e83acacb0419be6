"""Metrics for Prometheus: served, written to a file, or both.

In: a function that makes a Snapshot, `[HOST:]PORT`, a file. Out: HTTP on 127.0.0.1 unless another host is asked for; a
file for node_exporter. Ends with KeyboardInterrupt.

>>> address_of("9115"), address_of("0.0.0.0:9115"), address_of("[::1]:9115")
(('127.0.0.1', 9115), ('0.0.0.0', 9115), ('::1', 9115))
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import click

from msparallel.errors import RunError, UserError, short
from msparallel.monitor.snapshot import Snapshot

LOOPBACK = "127.0.0.1"


def address_of(text: str) -> tuple[str, int]:
    """(host, port) of `[HOST:]PORT`. Raises UserError."""
    from msparallel.launch.connect import check_host

    found = re.fullmatch(r"(?:(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]+)):)?(?P<port>\d{1,5})", text)
    if not found or not 1 <= int(found["port"]) <= 65_535:
        raise UserError(f"--prometheus {short(text)}\n  It is PORT or HOST:PORT with a port from 1 to 65535, for "
                        "example 9115, 0.0.0.0:9115 or [::1]:9115.")  # fmt: skip
    host = found["six"] or found["host"] or LOOPBACK
    check_host(host)
    return host, int(found["port"])


def serve(
    take: Callable[[], Snapshot],
    bound: tuple[str, int] | None,
    textfile: Path | None,
    *,
    once: bool,
    interval_s: float,
) -> None:
    """Until KeyboardInterrupt; with `once` and a file only, one file.

    Raises:
        RunError: the port is taken, the file cannot be written.
    """
    from prometheus_client import start_http_server

    from msparallel.monitor.metrics import registry_of, write_textfile

    registry = registry_of(take)
    if textfile:
        write_textfile(textfile, registry)
        if once and bound is None:
            return
    server = None
    if bound:
        host, port = bound
        try:
            server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            why = error.strerror or str(error)
            raise RunError(f"--prometheus {host}:{port}\n  Nothing can be served there: {why}.") from None
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"Metrics at http://{shown}:{port}/metrics; Ctrl-C ends it.", err=True)
    try:
        while True:
            time.sleep(interval_s)
            if textfile:
                write_textfile(textfile, registry)
    finally:
        if server:
            server.shutdown()
            server.server_close()
