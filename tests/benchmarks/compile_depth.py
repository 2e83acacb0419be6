"""What a dry run takes as a model gets deeper: seconds and memory of compiling one rank, by number of layers.

    python tests/benchmarks/compile_depth.py                  # about three minutes on two cores, up to 4 GiB

In: nothing. Out: a table on stdout; one row for each depth with every layer compiled, and one with all layers inferred
from few. Each row is a `msparallel dryrun` of its own, one after the other. Seconds are those of MindSpore's engine
without import and model building; memory is the largest resident size of the compiling process. It needs mindspore and
a C++ compiler; no test asserts a time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
RECIPE, LAYERS = "llama2_13b_dp4_tp4_pp2", (4, 8, 16, 24, 40)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One dry run.

    Attributes:
        layers: of the model; depth: as `--depth` takes it.
        compile_s: MindSpore's work; whole_s: of the command, from start to end.
        process_gib: largest resident memory of the process that compiled.
        live_gib: peak of live memory, in the report.
    """

    layers: int
    depth: str
    compile_s: float
    whole_s: float
    process_gib: float
    live_gib: float


def measure(recipe: str, layers: int, depth: str, rank: int) -> Row:
    """Compile one rank. Ends the benchmark with the command's own words where it fails."""
    words = ["dryrun", recipe, f"model.num_layers={layers}", "--rank", str(rank), "--depth", depth, "--json"]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "msparallel", *words], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(REPO)})  # fmt: skip
    whole_s = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"msparallel {' '.join(words)}\n{done.stdout}{done.stderr}")
    report = json.loads(done.stdout)["ranks"][0]
    return Row(layers=layers, depth=depth, compile_s=report["compile_s"], whole_s=whole_s,
               process_gib=report["process_peak_bytes"] / 2**30,
               live_gib=report["peak_live_bytes"] / 2**30)  # fmt: skip


def revision() -> str:
    """The commit that is measured, and whether files differ from it."""
    try:
        told = [subprocess.run(["git", "-C", str(REPO), *words], capture_output=True, text=True).stdout.strip()
                for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "msparallel"))]  # fmt: skip
    except OSError:
        return "not a git repository"
    return f"revision {told[0]}{' with changes' if told[1] else ''}" if told[0] else "not a git repository"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, help="depths that are compiled whole")
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{arguments.recipe}, rank {arguments.rank}")
    print(f"{'layers':>6}  {'depth':<14}  {'compile s':>9}  {'ratio':>5}  {'GiB':>5}  {'ratio':>5}  {'whole s':>7}  "
          f"{'live GiB':>8}")  # fmt: skip
    first = None
    tasks = [(layers, "full") for layers in arguments.layers] + [(max(arguments.layers), "representative")]
    for layers, depth in tasks:
        row = measure(arguments.recipe, layers, depth, arguments.rank)
        first = first or row
        print(f"{row.layers:>6}  {row.depth:<14}  {row.compile_s:>9.1f}  {row.compile_s / first.compile_s:>5.1f}  "
              f"{row.process_gib:>5.2f}  {row.process_gib / first.process_gib:>5.1f}  {row.whole_s:>7.1f}  "
              f"{row.live_gib:>8.2f}", flush=True)  # fmt: skip
    print(f"MindSpore {importlib.metadata.version('mindspore')}, Python {platform.python_version()}; "
          f"{platform.machine()}, {os.cpu_count()} CPUs; {revision()}; {time.strftime('%Y-%m-%d')}")  # fmt: skip
    print(" ".join(["Again: python tests/benchmarks/compile_depth.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
