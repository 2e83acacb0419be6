"""A Snapshot as tables, for a terminal of any width and height, as plain text, or as one line.

In: Snapshot. Out: Screen, which rich draws; plain text without colours or control characters.

>>> print(plain(snapshot, width=80))  # doctest: +SKIP
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import RenderResult as Rendered
from rich.table import Table
from rich.text import Text

from msparallel.cli.columns import terminal_width
from msparallel.cli.monitor_devices_text import device_lines, device_table
from msparallel.errors import printable, short
from msparallel.monitor.job import Job, Rank
from msparallel.monitor.snapshot import Snapshot
from msparallel.monitor.words import ASCII, BLOCKS, bar, duration, sparkline

MOST_RANKS = 8
MOST_TROUBLES = 8
PLAIN_ROWS = 1_000_000
STYLES = {"running": "green", "done": "green", "silent": "yellow", "failed": "bold red", "not started": "dim"}


class Screen:
    """Cut to the height that there is: devices and ranks with something wrong come first."""

    def __init__(self, snapshot: Snapshot, *, rows: int | None = None, unicode: bool | None = None):
        self._snapshot, self._rows, self._unicode = snapshot, rows, unicode

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Rendered:
        width = options.max_width
        unicode = "utf" in options.encoding.lower() if self._unicode is None else self._unicode
        height = self._rows or max(12, options.size.height - 1)
        job = list(_job(self._snapshot.job, width, unicode)) if self._snapshot.job else []
        troubles = list(_troubles(self._snapshot, width))
        ranks = self._snapshot.job.ranks if self._snapshot.job else ()
        taken = len(job) + len(troubles) + (min(len(ranks), MOST_RANKS) + 3 if ranks else 0)
        yield from device_table(self._snapshot, width, max(4, height - taken - 3))
        if job:
            if self._snapshot.machines:
                yield Text("")
            yield from job
        if ranks:
            assert self._snapshot.job is not None
            yield from _ranks(self._snapshot.job, MOST_RANKS)
        if troubles:
            yield Text("")
            yield from troubles


def plain(snapshot: Snapshot, width: int | None = None) -> str:
    """Everything, once."""
    file = io.StringIO()
    console = Console(file=file, width=terminal_width(width), color_system=None, force_terminal=False, highlight=False,
                      markup=False, emoji=False, legacy_windows=False)  # fmt: skip
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    unicode = "utf" in encoding.lower()
    console.print(Screen(snapshot, rows=PLAIN_ROWS, unicode=unicode))
    text = file.getvalue() if unicode else file.getvalue().replace("\u2026", ".")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def line_of(snapshot: Snapshot) -> str:
    """One look in one line."""
    parts = []
    if job := snapshot.job:
        words = [job.state]
        if job.step is not None:
            words.append(f"step {job.step:,}" + (f"/{job.steps:,}" if job.steps else ""))
        if job.losses:
            words.append(f"loss {job.losses[-1][1]:.4f}")
        if job.live and job.tokens_per_s is not None:
            words.append(f"{job.tokens_per_s:,.0f} tokens/s")
        if job.left_s is not None:
            words.append(f"{duration(job.left_s)} left")
        parts.append(f"{job.recipe}: {', '.join(words)}")
    parts += device_lines(snapshot)
    troubles = snapshot.troubles
    if troubles:
        more = f" and {len(troubles) - 1} more" if len(troubles) > 1 else ""
        parts.append(f"! {troubles[0].where}: {short(troubles[0].text, 120)}{more}")
    return printable("; ".join(parts)).replace("\n", " ")


def _job(job: Job, width: int, unicode: bool) -> Iterator[RenderableType]:
    head = Text.assemble((printable(job.recipe), "bold"), "  ", job.mesh, "  " if job.mesh else "",
                         (job.state, STYLES[job.state]), no_wrap=True, overflow="ellipsis")  # fmt: skip
    if job.sign_age_s is not None and job.state != "done":
        head.append(f", last sign {duration(job.sign_age_s)} ago", "dim")
    yield head
    if job.state == "not started":
        yield _line(f"Nothing is in {job.folder} yet.")
        return
    if job.step is not None:
        yield _line(_progress(job))
    if job.losses:
        step, loss = job.losses[-1]
        words = f"loss {loss:.4f} at step {step:,}"
        rest = [f"gradient norm {job.grad_norm:.3g}"] if job.grad_norm is not None else []
        rest += [f"learning rate {job.learning_rate:.3g}"] if job.learning_rate is not None else []
        tail = "".join(f", {word}" for word in rest) if width >= 100 else ""
        room = max(0, min(40, width - len(words) - len(tail) - 6))
        curve = sparkline([value for _, value in job.losses], room, BLOCKS if unicode else ASCII)
        yield Text.assemble(f"  {words}  ", (curve, "cyan"), tail, no_wrap=True, overflow="ellipsis")
    speed = [f"{job.tokens_per_s:,.0f} tokens/s"] if job.live and job.tokens_per_s is not None else []
    speed += [f"{job.step_s:.3g} s a step"] if job.live and job.step_s is not None else []
    if speed:
        yield _line(", ".join(speed))
    if job.evaluations:
        shown = job.evaluations[-4 if width < 100 else -6 :]
        told = ", ".join(f"{loss:.4f} ({step:,})" for step, loss in shown)
        yield _line(f"evaluation loss (step): {'... ' if len(shown) < len(job.evaluations) else ''}{told}")
    if job.checkpoint_step is not None:
        yield _line(f"checkpoint of step {job.checkpoint_step:,}, {duration(job.checkpoint_age_s)} ago")
    if job.restarts:
        yield _line(f"started again {job.restarts} time{'s' * (job.restarts > 1)}")
    if job.incidents.count:
        last = job.incidents
        rank = f", rank {last.rank}" if last.rank is not None else ""
        step = f" at step {last.step:,}" if last.step is not None else ""
        told = f"{last.kind or 'not told yet'}{rank}{step}"
        yield _line(f"{last.count} incident{'s' * (last.count > 1)}, the last: {told} (incidents/{last.last})")


def _progress(job: Job) -> str:
    if not job.steps:
        return f"step {job.step:,}"
    done = min(1.0, (job.step or 0) / job.steps)
    left = f"  {duration(job.left_s)} left" if job.left_s is not None and job.step != job.steps else ""
    return f"step {job.step:,} of {job.steps:,}  [{bar(done, 20)}] {done:.1%}{left}"


def _ranks(job: Job, most: int) -> Iterator[RenderableType]:
    told = f"{len(job.ranks)} of {job.world_size} ranks" if job.world_size else f"{len(job.ranks)} ranks"
    if job.slowest is not None:
        told += f", rank {job.slowest} is the slowest"
    elif job.spread_s is not None:
        told += f", all at step {job.step:,}, the last {duration(job.spread_s)} after the first"
    yield _line(told)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("  rank", "state", "phase", "step", "step takes", "loss", "heartbeat"):
        table.add_column(title, justify="left" if title in ("state", "phase") else "right", no_wrap=True)
    for rank in sorted(job.ranks, key=_worst_first)[:most]:
        table.add_row(*_rank_cells(rank), style=None if rank_is_fine(rank) else "yellow")
    yield table
    if len(job.ranks) > most:
        yield _line(f"and {len(job.ranks) - most:,} more ranks that are further")


def rank_is_fine(rank: Rank) -> bool:
    """Neither failed nor silent."""
    return not (rank.failed or rank.silent)


def _worst_first(rank: Rank) -> tuple[bool, int, float, int]:
    step = rank.file.step if rank.file.step is not None else -1
    return rank_is_fine(rank), step, -(rank.age_s or 0.0), rank.file.rank


def _rank_cells(rank: Rank) -> tuple[str, ...]:
    file = rank.file
    state = "silent" if rank.silent else file.status or "running"
    return (
        f"{'' if rank_is_fine(rank) else '!'}{file.rank}",
        state,
        file.phase or "",
        "" if file.step is None else f"{file.step:,}",
        "" if file.step_s is None else f"{file.step_s:.3g} s",
        "" if file.loss is None else f"{file.loss:.4f}",
        "" if file.beat_s is None else f"{duration(rank.age_s)} ago",
    )


def _troubles(snapshot: Snapshot, width: int) -> Iterator[RenderableType]:
    troubles = snapshot.troubles
    for trouble in troubles[:MOST_TROUBLES]:
        style = "bold red" if trouble.severity == "error" else "yellow"
        text = short(printable(trouble.text), 400)
        yield Text(f"! {printable(trouble.where)}: {text}", style=style)
    if len(troubles) > MOST_TROUBLES:
        yield Text(f"! and {len(troubles) - MOST_TROUBLES:,} more", style="yellow")


def _line(text: str) -> Text:
    return Text(f"  {printable(text)}", no_wrap=True, overflow="ellipsis")
