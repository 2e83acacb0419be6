"""What admission control does to latency: the same server and clients, three ways to let requests in.

    python tests/benchmarks/serve_admission.py                       # a table of each way
    python tests/benchmarks/serve_admission.py --plot admission.png  # the same as a picture

In: nothing. Out: a table on stdout: closed loops of 1 to 32 clients against `msparallel serve` over HTTP. Qwen3's shape
with 34 million parameters (the model of tests/benchmarks/serve_cpu.py), random weights; prompts of 100 to 500 tokens,
answers of 32 to 96.

- everything: up to 32 requests in one batch, nobody waits or is refused. What a server without admission control does.
- queue: 8 in a batch, all others wait.
- bounded: 8 in a batch, 8 wait, others are told 429 and when to come again.

No test asserts a time.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msparallel.serve.load import Load, Summary, closed_loop, summary

REPO = Path(__file__).resolve().parents[2]
CLIENTS = (1, 4, 8, 16, 32)
WAYS = {
    "everything": {"max_concurrency": 32, "max_waiting": 1000},
    "queue": {"max_concurrency": 8, "max_waiting": 1000},
    "bounded": {"max_concurrency": 8, "max_waiting": 8},
}
MODEL = ("num_layers: 8, hidden_size: 512, num_heads: 8, num_kv_heads: 4, head_dim: 64, ffn_size: 1536, "
         "vocab_size: 8192, qk_norm: true, max_positions: 2048")  # fmt: skip


@contextmanager
def served(limits: dict[str, int]) -> Iterator[str]:
    """The address of a server that takes requests."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "benchmark.yaml"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ", ".join(f"{key}: {value}" for key, value in limits.items())
        recipe.write_text(f"model: {{{MODEL}}}\nserve: {{weights: random, port: {port}, max_length: 1024, "
                          f"wait_s: 600, {words}}}\n")  # fmt: skip
        process = subprocess.Popen([sys.executable, "-m", "msparallel", "serve", str(recipe), "--json"],
                                   stdout=subprocess.PIPE, text=True, cwd=folder,
                                   env={**os.environ, "PYTHONPATH": str(REPO), "GLOG_v": "3"})  # fmt: skip
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait()


def measure(url: str, clients: int) -> Summary:
    # Random weights read a word as a token a byte; 16 to 80 words are 100 to 500 of them.
    load = Load(url=url, model="benchmark", prompt_words=(16, 80), answer_tokens=(32, 96), seed=clients)
    return summary(asyncio.run(closed_loop(load, clients=clients, requests=max(16, 3 * clients))))


def plot(found: dict[str, list[Summary]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    for name, results in found.items():
        (line,) = axes[0].plot(CLIENTS, [one.first_token_s["p99"] for one in results], "o-", label=name)
        axes[1].plot(CLIENTS, [one.between_s["p50"] * 1e3 for one in results], "o-", color=line.get_color(),
                     label=f"{name}, p50")  # fmt: skip
        axes[1].plot(CLIENTS, [one.between_s["p99"] * 1e3 for one in results], "o--", color=line.get_color(),
                     label=f"{name}, p99")  # fmt: skip
        axes[2].plot(CLIENTS, [one.tokens_per_s for one in results], "o-", color=line.get_color(), label=name)
    for axis, title in zip(axes, ("to the first token, p99, s", "between pieces, ms", "tokens/s of all answers"),
                           strict=True):  # fmt: skip
        axis.set_title(title)
        axis.set_xscale("log", base=2)
        axis.set_xticks(CLIENTS, [str(count) for count in CLIENTS])
        axis.set_xlabel("clients at once")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", metavar="FILE.png")
    chosen = parser.parse_args()
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} threads shared with the clients; MindSpore "
          f"{importlib.metadata.version('mindspore')}")  # fmt: skip
    print(f"{'':12}{'clients':>8}{'whole':>7}{'429':>6}{'tokens/s':>10}{'first p50':>11}{'p99, s':>8}"
          f"{'between p50':>13}{'p99, ms':>9}")  # fmt: skip
    found: dict[str, list[Summary]] = {}
    for name, limits in WAYS.items():
        with served(limits) as url:
            measure(url, 4)  # not counted: a new server's first seconds
            for clients in CLIENTS:
                one = measure(url, clients)
                found.setdefault(name, []).append(one)
                print(f"{name:12}{clients:8}{one.whole:7}{one.refused:6}{one.tokens_per_s:10,.0f}"
                      f"{one.first_token_s['p50']:11.2f}{one.first_token_s['p99']:8.2f}"
                      f"{one.between_s['p50'] * 1e3:13.1f}{one.between_s['p99'] * 1e3:9.1f}", flush=True)  # fmt: skip
    if chosen.plot:
        plot(found, chosen.plot)


if __name__ == "__main__":
    main()
