"""Snapshots in a terminal, in place.

In: snapshots, one each interval. Out: the screen, redrawn at each of them and where the terminal changes its size;
cursor and terminal are as before when it ends, also by an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO

from msparallel.monitor.snapshot import Snapshot


def is_live(stream: IO[str]) -> bool:
    """Whether tables can stay in place there: a terminal that moves its cursor, and nobody who asked for plain text."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown") and (
        not os.environ.get("NO_COLOR")
    )  # fmt: skip


def live(snapshots: Iterable[Snapshot]) -> None:
    """Show each in the place of the one before. The last one stays."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from msparallel.cli.monitor_text import Screen

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(Text("asking ..."), console=console, refresh_per_second=4, auto_refresh=True,
              vertical_overflow="crop", redirect_stdout=False, redirect_stderr=False) as shown:  # fmt: skip
        for snapshot in snapshots:
            shown.update(Screen(snapshot), refresh=True)
