"""Folders of logs of a job, written in the forms of msrun, MindSpore and CANN."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

START = datetime(2026, 3, 1, 10, 0, 0)


def stamp(at_s: float) -> str:
    """A time of the job as MindSpore writes it."""
    return (START + timedelta(seconds=at_s)).strftime("%Y-%m-%d-%H:%M:%S.%f")[:-3] + ".000"


def python_stamp(at_s: float) -> str:
    """The same as Python's logging writes it."""
    return (START + timedelta(seconds=at_s)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def step_line(rank: int, step: int, at_s: float) -> str:
    """A line of a step, as MindFormers writes it."""
    return (f"{python_stamp(at_s)} - mindformers[callback.py:519] - INFO - {{ Epoch:[  1/  1], "
            f"step:[{step:5d}/100000], loss: {9.5 - step % 700 / 100:.3f}, per_step_time: {800 + rank}ms, "
            f"lr: 1.0e-05, overflow cond: False, loss_scale: 1.0, global_norm: [0.{step % 97:02d}], "
            f"train_throughput_per_npu: 171.4T }}\n")  # fmt: skip


def head(rank: int, ranks: int) -> str:
    """What a worker writes when it starts."""
    pid = 5000 + rank
    return (
        f"[WARNING] ME({pid}:281473,MainProcess):{stamp(1)} [mindspore/context.py:1302] Environment variable "
        f"HCCL_CONNECT_TIMEOUT is 600, HCCL_EXEC_TIMEOUT is 1800.\n"
        f"[WARNING] DISTRIBUTED({pid},ffff80,python):{stamp(2)} [cluster_context.cc:98] BuildCluster] Waiting for all "
        f"nodes to register, heartbeat is on, retry number: 3\n"
        f"[TRACE] HCCL({pid},python):{stamp(9)} [status:init] [hcom.cc:194]hcom init success, take time [24811]us, "
        f"rankNum[{ranks}], rank[{rank}],server[192.0.2.{rank // 8}], device[{rank % 8}]\n"
    )


def notify_timeout(rank: int, at_s: float, remote: int | str) -> str:
    """A survivor that waited for the remote rank in vain."""
    pid = 5000 + rank
    return (
        f"[CRITICAL] DEVICE({pid},fffd6c,python):{stamp(at_s)} [ascend_graph_executor.cc:240] RunGraph] Run task for "
        f"graph:kernel_graph_1 error!\n"
        f"EI0002: The wait execution of the Notify register times out. Reason: The Notify register has not received "
        f"the Notify record from remote rank [{remote}].\n"
        "        Solution: 1. Check whether any NPU in the cluster is abnormal.\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 31, in <module>\n'
        "RuntimeError: Run task for graph:kernel_graph_1 error!\n"
    )


def out_of_memory(rank: int, at_s: float) -> str:
    """A rank whose device is full."""
    pid = 5000 + rank
    return (
        f"[ERROR] DEVICE({pid},ffff80,python):{stamp(at_s)} [ascend_memory_adapter.cc:210] Malloc] Memory not enough: "
        f"current free memory size[1048576] is smaller than required size[33554432].\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 31, in <module>\n'
        "RuntimeError: Allocate memory failed\n"
    )


def write_job(folder: Path, ranks: int, steps: int, tails: dict[int, str], ends: dict[int, int] | None = None,
              scheduler: str = "") -> Path:  # fmt: skip
    """worker_<rank>.log with `steps` lines (or `ends[rank]`), then the rank's tail; and scheduler.log."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        count = (ends or {}).get(rank, steps)
        with (folder / f"worker_{rank}.log").open("w", encoding="utf-8") as file:
            file.write(head(rank, ranks))
            for step in range(count):
                file.write(step_line(rank, step, 10 + step))
            file.write(tails.get(rank, ""))
    (folder / "scheduler.log").write_text(
        f"[WARNING] DISTRIBUTED(4999,ffff80,python):{stamp(2)} [meta_server_node.cc:99] All nodes are registered.\n"
        + scheduler,
        encoding="utf-8",
    )
    return folder
