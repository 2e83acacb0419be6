"""MindSpore's threads, one to a processor.

In: nothing; MindSpore's thread pool, once it has worked. Out: its threads bound to processors of this process, in turn.

Its kernels share their work evenly between the threads of the pool while the thread that started them spins. Linux then
often leaves two of the pool on one processor, and a step takes as long as with one thread: on two processors a step of
one request took 10 ms instead of 7.5, of sixteen 32 ms instead of 26.

>>> bind_threads()  # doctest: +SKIP
2
"""

from __future__ import annotations

import os
from pathlib import Path

POOL = ("ActorThread", "KernelThread")
"""How MindSpore's thread pool names its threads (mindrt/src/thread)."""
_TASKS = Path("/proc/self/task")


def bind_threads() -> int:
    """How many threads were bound; none where the system does not say which there are."""
    if not _TASKS.is_dir():
        return 0
    processors, bound = sorted(os.sched_getaffinity(0)), 0
    for task in sorted(_TASKS.iterdir(), key=lambda task: int(task.name)):
        try:
            if (task / "comm").read_text().startswith(POOL):
                os.sched_setaffinity(int(task.name), {processors[bound % len(processors)]})
                bound += 1
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return bound
