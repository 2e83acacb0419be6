"""How long `plan` and `plan --search` take on this machine, and how much memory.

    python tests/benchmarks/plan_search.py

Out: for each command the seconds until it ends (the smallest of three runs), its processor seconds, the most memory it
held, and how many strategies it counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = 3
COMMANDS = [
    ["llama2_13b_dp4_tp4_pp2"],
    ["llama2_70b_dp2_tp8_pp4", "--search"],
    ["llama2_70b_dp2_tp8_pp4", "--search", "--devices", "1024"],
    ["llama2_70b_dp2_tp8_pp4", "--search", "--devices", "1024", "--global-batch", "1024"],
    ["llama2_70b_dp2_tp8_pp4", "--search", "--devices", "1000", "--global-batch", "125"],
    ["qwen3_30b_a3b_dp8_pp2_ep8", "--search"],
    ["qwen3_30b_a3b_dp8_pp2_ep8", "--search", "--devices", "128", "--global-batch", "1024"],
]


def measure(words: list[str]) -> tuple[float, float, float, int]:
    """Seconds, processor seconds, MiB, legal strategies of one run."""
    command = [sys.executable, "-m", "msparallel", "plan", *words, "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    wall = time.perf_counter() - start
    legal = json.loads(text).get("search", {}).get("legal", 1)
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, legal


def main() -> None:
    print(f"{'wall s':>7}  {'cpu s':>6}  {'MiB':>5}  {'legal':>8}  command")
    for words in COMMANDS:
        runs = [measure(words) for _ in range(RUNS)]
        wall, cpu = min(run[0] for run in runs), min(run[1] for run in runs)
        mib, legal = max(run[2] for run in runs), runs[0][3]
        print(f"{wall:7.2f}  {cpu:6.2f}  {mib:5.0f}  {legal:8,}  msparallel plan {' '.join(words)}")


if __name__ == "__main__":
    main()
