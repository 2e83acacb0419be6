"""Jobs as a trace file.

In: Jobs. Out: the CSV that `trace.py` reads as the same jobs.

>>> print(trace_text([Job(name="a", submit_s=0.0, nodes=2, devices_per_node=8, duration_s=60.0)], "example"), end="")
# example
job,submit_s,nodes,devices_per_node,duration_s,class,priority,queue,gang,checkpoint_interval_s,restart_s,estimate_s
a,0,2,8,60,training,0,default,yes,,0,
"""

from __future__ import annotations

from collections.abc import Iterable

from msparallel.errors import printable, short
from msparallel.schedule.queue.job import Job

_COLUMNS = ("job", "submit_s", "nodes", "devices_per_node", "duration_s", "class", "priority", "queue", "gang",
            "checkpoint_interval_s", "restart_s", "estimate_s")  # fmt: skip


def trace_text(jobs: Iterable[Job], remark: str) -> str:
    """Names of a trace need no quotes (`cells.py`)."""
    lines = [f"# {printable(short(remark, 500))}", ",".join(_COLUMNS)]
    for job in jobs:
        cells = (
            job.name, _number(job.submit_s), str(job.nodes), str(job.devices_per_node), _number(job.duration_s),
            job.kind, str(job.priority), job.queue, "yes" if job.gang else "no", _number(job.checkpoint_interval_s),
            _number(job.restart_s), _number(job.estimate_s),
        )  # fmt: skip
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    """Plain decimal, without an exponent; a trace has at most nine places."""
    return "" if value is None else f"{value:.9f}".rstrip("0").rstrip(".")
