"""Whole folders: the first failing rank, the cause, what followed, and folders in which nothing is wrong."""

import gzip
import os
import resource
import subprocess
import sys
import time

import job_logs as logs
import pytest

from msparallel.diagnose import read_all
from msparallel.diagnose.diagnose import diagnose
from msparallel.errors import UserError

pytestmark = pytest.mark.pure
RANKS = 32


def ids(found):
    """(rule, rule that explains it) of all findings."""
    return [(finding.rule.id, finding.explained_by) for finding in found.findings]


def survivors(dead, at_s=1910, remote="unknown"):
    return {rank: logs.notify_timeout(rank, at_s + rank / 100, remote) for rank in range(RANKS) if rank != dead}


def test_a_job_that_ended_well(tmp_path):
    found = diagnose(logs.write_job(tmp_path, RANKS, 60, {}))
    assert not found.findings and not found.failed and (found.files, found.ranks) == (RANKS + 1, RANKS)


def test_one_rank_out_of_memory_and_31_that_waited(tmp_path):
    tails = survivors(17) | {17: logs.out_of_memory(17, 75)}
    found = diagnose(logs.write_job(tmp_path, RANKS, 60, tails))
    first, second = found.findings
    assert (first.rule.id, first.rank, first.ranks) == ("device_out_of_memory", 17, (17,))
    assert first.evidence[0].file == "worker_17.log" and first.evidence[0].line == 64
    assert "Memory not enough" in first.evidence[0].text
    assert (second.rule.id, second.explained_by, second.severity) == ("notify_timeout", first.rule.id, "info")
    assert len(second.ranks) == 31


def test_a_rank_that_died_without_a_word(tmp_path):
    found = diagnose(logs.write_job(tmp_path, RANKS, 60, survivors(5), ends={5: 20}))
    assert ids(found) == [("rank_went_silent", None), ("notify_timeout", "rank_went_silent")]
    assert found.findings[0].rank == 5 and found.findings[0].evidence[0].line == 23
    assert "10:00:29" in found.findings[0].root_cause and found.failed


def test_a_rank_that_is_named_and_has_no_log(tmp_path):
    folder = logs.write_job(tmp_path, RANKS, 60, survivors(5, remote=5))
    (folder / "worker_5.log").unlink()
    found = diagnose(folder)
    assert found.findings[0].rule.id == "rank_went_silent" and found.findings[0].rank == 5
    assert "no log of it" in found.findings[0].root_cause


def test_the_oom_killer_of_another_clock_explains_its_rank(tmp_path):
    folder = logs.write_job(tmp_path, RANKS, 60, survivors(5), ends={5: 20})
    (folder / "node0").mkdir()
    (folder / "node0" / "dmesg.txt").write_text(
        "Mar  1 10:02:11 host-1 kernel: [16794.247724] Out of memory: Killed process 5005 (python) total-vm:9kB\n"
    )
    found = diagnose(folder)
    assert ids(found) == [("host_out_of_memory", None), ("notify_timeout", "host_out_of_memory")]
    assert found.findings[0].rank == 5, "the process id leads to the rank"


def test_an_exception_of_one_rank_goes_before_the_exceptions_that_end_the_others(tmp_path):
    tail = f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n{"ValueError: bad sample 7"}\n'
    found = diagnose(logs.write_job(tmp_path, RANKS, 60, survivors(9) | {9: tail}))
    assert ids(found) == [("python_exception", None), ("notify_timeout", "python_exception")]
    assert found.findings[0].rank == 9 and "bad sample 7" in found.findings[0].root_cause


def test_a_fault_long_after_the_time_out_does_not_explain_it(tmp_path):
    tails = survivors(None) | {0: logs.notify_timeout(0, 1910, 3) + logs.out_of_memory(0, 9000)}
    found = diagnose(logs.write_job(tmp_path, RANKS, 60, tails))
    assert ids(found) == [("notify_timeout", None), ("device_out_of_memory", None)]


def test_the_scheduler_names_the_node_that_fell_silent(tmp_path):
    line = (f"[ERROR] DISTRIBUTED(4999,ffff80,python):{logs.stamp(200)} [meta_server_node.cc:401] UpdateTopoState] "
            "The node: 11 is timed out. It may exit with exception, please check this node's log.\n")  # fmt: skip
    found = diagnose(logs.write_job(tmp_path, RANKS, 250, {}, ends={11: 100}, scheduler=line))
    assert ids(found) == [("rank_went_silent", None), ("node_timed_out", "rank_went_silent")]
    assert found.findings[0].rank == 11


def test_packed_and_rotated_logs_are_read_and_others_named(tmp_path):
    folder = logs.write_job(tmp_path, 2, 5, {1: logs.out_of_memory(1, 20)})
    (folder / "worker_1.log.gz").write_bytes(gzip.compress((folder / "worker_1.log").read_bytes()))
    (folder / "worker_1.log").unlink()
    (folder / "worker_0.log").rename(folder / "worker_0.log.1")
    (folder / "cut.log.gz").write_bytes(gzip.compress(b"x\n" * 9000)[:30])
    (folder / "weights.ckpt").write_bytes(b"\0" * 64)
    (folder / "binary.log").write_bytes(b"ab\0cd")
    os.symlink("/etc/passwd", folder / "link.log")
    os.mkfifo(folder / "pipe.log")
    found = diagnose(folder)
    assert found.findings[0].rule.id == "device_out_of_memory" and found.findings[0].rank == 1
    assert found.ranks == 2
    assert {name for name, _ in found.left_out} == {"cut.log.gz", "weights.ckpt", "binary.log", "link.log", "pipe.log"}


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        diagnose(tmp_path / "nothing")


def test_plog_tells_its_rank(tmp_path):
    path = tmp_path / "plog-7_20260301100000.log"
    line = f"[ERROR] HCCL(7,python):{logs.stamp(90)} [heartbeat.cc:551]cqe err status[12]\n"
    path.write_text(logs.head(76, 128) + line)
    assert diagnose(tmp_path).findings[0].rank == 76


def test_memory_does_not_grow_with_a_line(tmp_path):
    (tmp_path / "worker_0.log").write_bytes(b"x" * (40 << 20) + b"EI0002" + b"\nEI0005: at the end\n")
    found = diagnose(tmp_path)
    assert {finding.rule.id for finding in found.findings} == {"notify_timeout", "collective_arguments_differ"}


def test_several_processes_find_the_same(tmp_path, monkeypatch):
    folder = logs.write_job(tmp_path, RANKS, 60, survivors(17) | {17: logs.out_of_memory(17, 75)})
    (folder / "cut.log.gz").write_bytes(gzip.compress(os.urandom(9000).hex().encode())[:4000])
    alone, told = diagnose(folder), []
    monkeypatch.setattr(read_all, "SMALL_BYTES", 0)
    monkeypatch.setattr(read_all.os, "sched_getaffinity", lambda process: {0, 1, 2})
    together = diagnose(folder, told.append)
    assert [one.to_json() for one in together.findings] == [one.to_json() for one in alone.findings]
    assert (together.left_out, together.bytes_read) == (alone.left_out, alone.bytes_read)
    assert sum(told) == alone.bytes_read


MEASURED = """
import resource, sys
from pathlib import Path
from msparallel.diagnose.diagnose import diagnose
first = diagnose(Path(sys.argv[1])).findings[0]
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(first.rule.id, first.rank, *peaks)
"""


@pytest.mark.slow
def test_256_ranks_of_2_gb_in_a_minute(tmp_path):
    tails = {rank: logs.notify_timeout(rank, 60_000, "unknown") for rank in range(256)}
    tails[200] = logs.out_of_memory(200, 40_000)
    body = "".join(logs.step_line(0, step, step) for step in range(34_000))
    folder = logs.write_job(tmp_path, 256, 0, {})
    for rank in range(256):
        with (folder / f"worker_{rank}.log").open("a", encoding="utf-8") as file:
            file.write(body + tails[rank])
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size > 2e9
    begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", MEASURED, str(folder)], capture_output=True, text=True, check=True)
    wall_s = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    rule, rank, own_kib, child_kib = done.stdout.split()
    peak_mib = (int(own_kib) + read_all.MOST_PROCESSES * int(child_kib)) / 1024
    print(f"{size / 1e9:.2f} GB: {wall_s:.1f} s wall, {cpu_s:.1f} s of processor, at most {peak_mib:.0f} MiB")
    assert (rule, rank) == ("device_out_of_memory", "200")
    assert cpu_s < 60, "of all processes together, so that a busy machine does not decide"
    assert peak_mib < 500
