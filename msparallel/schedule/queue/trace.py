"""A trace of jobs, read from a CSV file.

In: a file with a header, a job a row; lines that begin with # and empty lines are remarks. Out: Jobs, each of which the
empty cluster has room for; or every problem with file and line. Nothing is guessed: a column that is not known is a
problem, not ignored.

    job                    its name, unique
    submit_s               when it is submitted, seconds from any origin
    duration_s             how long it computes with all its devices
    devices                as many as it needs: within one node, or whole nodes
    nodes,                 the other way to say it: so many different nodes,
      devices_per_node       so many devices on each
    class                  training (by default), inference, evaluation, interactive
    priority               a whole number, the higher first; 0 by default
    queue                  its queue; `default` by default
    gang                   yes (by default): all devices at once. no: replicas that start and give way one by one
    min_devices            devices of one replica (1 by default), where gang is no; they are on one node
    checkpoint_interval_s  seconds of work between checkpoints; empty: there is none
    restart_s              what a start after an eviction costs before work goes on; 0 by default
    estimate_s             what its user says that it takes; the duration by default

>>> jobs = parse_trace("job,submit_s,devices,duration_s\\npretrain,0,16,3600\\n", "t.csv", Cluster(nodes=4,
...                    devices_per_node=8))
>>> jobs[0].nodes, jobs[0].devices_per_node
(2, 8)
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from msparallel.cluster.json_lines import decode, read_bytes
from msparallel.errors import Problem, RecipeError, short
from msparallel.schedule.queue.cells import Cells
from msparallel.schedule.queue.job import KINDS, Cluster, Job

REQUIRED = ("job", "submit_s", "duration_s")
COLUMNS = (
    *REQUIRED, "devices", "nodes", "devices_per_node", "class", "priority", "queue", "gang", "min_devices",
    "checkpoint_interval_s", "restart_s", "estimate_s",
)  # fmt: skip
MOST_BYTES = 64 << 20
MOST_JOBS = 200_000
MOST_PIECES = 500_000
"""Gangs and replicas together."""
MOST_QUEUES = 64
MOST_SECONDS = 10**10
"""Of a moment or a duration; 1.7e9 is a moment since 1970."""
MOST_PROBLEMS = 20


class _Problems(list[Problem]):
    """Those that are told; the others are counted."""

    left_out = 0

    def note(self, file: str, line: int | None, key: str, value: object, message: str, suggestion: str = "") -> None:
        if len(self) >= MOST_PROBLEMS:
            self.left_out += 1
            return
        written = None if value is None else short(value, 60)
        self.append(Problem(key=key, value=written, rule="job_trace", message=message, suggestion=suggestion,
                            file=file, line=line))  # fmt: skip

    def stop(self, file: str) -> None:
        """Raises RecipeError where there is one."""
        if self.left_out:
            self.append(Problem(key="trace", value=None, rule="job_trace", file=file,
                                message=f"{self.left_out:,} more problems like these are not shown."))  # fmt: skip
        if self:
            raise RecipeError(list(self))


def read_trace(path: str | Path, cluster: Cluster) -> list[Job]:
    """Jobs in the order of the file. Raises RecipeError with every problem."""
    return parse_trace(decode(read_bytes(path, MOST_BYTES), str(path)), str(path), cluster)


def parse_trace(text: str, file: str, cluster: Cluster) -> list[Job]:
    """Raises RecipeError with every problem."""
    problems = _Problems()
    rows = _rows(text.removeprefix("\ufeff"), file, problems)
    header_line, header = next(rows, (1, []))
    columns = [name.strip() for name in header]
    _check_header(columns, header_line, file, problems)
    problems.stop(file)
    jobs: list[Job] = []
    lines: dict[str, int] = {}
    pieces = 0
    for number, row in rows:
        if len(row) != len(columns):
            problems.note(file, number, "row", ",".join(row), f"{len(row)} cells; the header has {len(columns)} "
                          "columns.")  # fmt: skip
            continue
        if len(jobs) >= MOST_JOBS:
            problems.note(file, number, "trace", None, f"More than {MOST_JOBS:,} jobs. Replay a part of the trace.")
            break
        cells = Cells(dict(zip(columns, map(str.strip, row), strict=True)))
        job = _job(cells, number, cluster)
        for key, value, message, suggestion in cells.problems:
            problems.note(file, number, key, value, message, suggestion)
        name = cells.text("job")
        if name in lines:
            problems.note(file, number, "job", name, f"Line {lines[name]} has this name already; names are unique.")
        lines.setdefault(name, number)
        if job is None:
            continue
        pieces += 1 if job.gang else job.nodes
        jobs.append(job)
    if pieces > MOST_PIECES:
        problems.note(file, None, "trace", None, f"{pieces:,} gangs and replicas; at most {MOST_PIECES:,} are "
                      "replayed.")  # fmt: skip
    queues = Counter(job.queue for job in jobs)
    if len(queues) > MOST_QUEUES:
        problems.note(file, None, "queue", None, f"{len(queues):,} queues; at most {MOST_QUEUES} are told apart.")
    if not jobs and not problems:
        problems.note(file, header_line, "trace", None, "No job below the header.")
    problems.stop(file)
    return jobs


def _rows(text: str, file: str, problems: _Problems) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells; a row is one line, so that a quote left open breaks one row only."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            yield number, next(csv.reader([line], strict=True))
        except (csv.Error, StopIteration) as error:
            problems.note(file, number, "row", line, f"This is no row of a CSV file: {error}.")


def _check_header(columns: list[str], line: int, file: str, problems: _Problems) -> None:
    if not columns:
        if not problems:
            problems.note(file, None, "trace", None, "The file is empty. It begins with a header: "
                          "job,submit_s,devices,duration_s")  # fmt: skip
        return
    for name, count in Counter(columns).items():
        if name not in COLUMNS:
            close = get_close_matches(name, COLUMNS, n=1)
            known = f"Is {close[0]} meant?" if close else f"The columns are {', '.join(COLUMNS)}."
            problems.note(file, line, "column", name, f"There is no such column, and none is ignored. {known}")
        elif count > 1:
            problems.note(file, line, "column", name, f"It stands in the header {count} times.")
    missing = [name for name in REQUIRED if name not in columns]
    if "devices" not in columns and not {"nodes", "devices_per_node"} <= set(columns):
        missing.append("devices (or nodes and devices_per_node)")
    if missing:
        problems.note(file, line, "column", None, f"The header lacks {', '.join(missing)}.")


def _job(cells: Cells, line: int, cluster: Cluster) -> Job | None:
    """The row's job; None where the row has a problem, which `cells` keeps."""
    name = cells.word("job", None, length=128)
    submit_s = cells.seconds("submit_s", 0.0, most=MOST_SECONDS, needed=True)
    duration_s = cells.seconds("duration_s", 1.0, most=MOST_SECONDS, needed=True, least=0.001)
    gang = cells.choice("gang", ("yes", "no"), "yes") == "yes"
    shape = _shape(cells, gang, cluster)
    interval_s = cells.seconds("checkpoint_interval_s", None, most=MOST_SECONDS, least=0.001)
    estimate_s = cells.seconds("estimate_s", None, most=MOST_SECONDS, least=0.001)
    if estimate_s is not None and duration_s is not None and estimate_s < duration_s:
        cells.note("estimate_s", f"The job takes {duration_s:g} s. A scheduler that knows a limit ends a job at it, so "
                   "an estimate is not below duration_s; leave it empty, or cut the duration.")  # fmt: skip
    kind, queue = cells.choice("class", KINDS, "training"), cells.word("queue", "default", length=64)
    priority = cells.whole("priority", 0, least=-(10**9), most=10**9)
    restart_s = cells.seconds("restart_s", 0.0, most=MOST_SECONDS)
    if cells.problems or shape is None:
        return None
    assert name is not None and submit_s is not None and duration_s is not None and kind is not None
    assert queue is not None and priority is not None and restart_s is not None
    return Job(
        name=name, submit_s=submit_s, nodes=shape[0], devices_per_node=shape[1], duration_s=duration_s, kind=kind,
        priority=priority, queue=queue, gang=gang, checkpoint_interval_s=interval_s, restart_s=restart_s,
        estimate_s=estimate_s, line=line,
    )  # fmt: skip


def _shape(cells: Cells, gang: bool, cluster: Cluster) -> tuple[int, int] | None:
    """Nodes and devices of each; of a job of replicas how many, and the devices of one."""
    size, count = cluster.devices_per_node, cluster.nodes
    both = cells.has("devices") and (cells.has("nodes") or cells.has("devices_per_node"))
    if both:
        cells.note("devices", "Say devices, or nodes and devices_per_node, not both.")
        return None
    if gang and cells.has("min_devices"):
        cells.note("min_devices", "A gang has no fewer than all its devices. With gang=no it is the size of a replica.")
        return None
    if not (cells.has("devices") or cells.has("nodes") or cells.has("devices_per_node")):
        cells.note("devices", "It is missing: say devices, or nodes and devices_per_node.")
        return None
    if not cells.has("devices"):
        nodes = cells.whole("nodes", None, least=1, most=10**6, needed=True)
        share = cells.whole("devices_per_node", None, least=1, most=10**6, needed=True)
        if cells.has("min_devices"):
            cells.note("min_devices", "With nodes and devices_per_node a replica is one node's share; leave it empty.")
            return None
        if nodes is None or share is None:
            return None
        if share > size:
            cells.note("devices_per_node", f"A node of this cluster has {size} devices, so the job can never start.",
                       f"--devices-per-node {share}")  # fmt: skip
            return None
        if gang and nodes > count:
            cells.note("nodes", f"The cluster has {count}, so the job can never start.", f"--nodes {nodes}")
            return None
        return nodes, share
    devices = cells.whole("devices", None, least=1, most=10**6, needed=True)
    if devices is None:
        return None
    if not gang:
        share = cells.whole("min_devices", 1, least=1, most=10**6)
        if share is None:
            return None
        if share > size:
            cells.note("min_devices", f"A replica is on one node, and a node has {size} devices; it can never start.")
        elif devices % share:
            cells.note("devices", f"{devices} devices are no whole number of replicas of {share}.",
                       f"devices={share * -(-devices // share)}")  # fmt: skip
        else:
            return devices // share, share
        return None
    if devices <= size:
        return 1, devices
    if devices > cluster.devices:
        cells.note("devices", f"The cluster has {cluster} = {cluster.devices}, so the job can never start.",
                   f"--nodes {-(-devices // size)}")  # fmt: skip
        return None
    if devices % size:
        cells.note("devices", f"More than a node's {size}, and no whole nodes ({devices} = {devices // size} x {size} "
                   f"+ {devices % size}). Ask for {size * -(-devices // size)}, or say nodes and devices_per_node.",
                   f"devices={size * -(-devices // size)}")  # fmt: skip
        return None
    return devices // size, size
