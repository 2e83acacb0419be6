"""Training speed on the CPU: this project's train step in graph mode beside eager PyTorch, same model, same machine.

    python tests/benchmarks/train_cpu.py                  # both, in turns; tokens/s and their ratio

In: nothing. Out: a table on stdout. One process each for MindSpore and PyTorch, with as many threads; while one
trains, the other waits. They take turns (A B A B ...), so that a machine that slows down slows both. The step is
complete: forward, cross entropy, backward, clipping of the global norm, AdamW. It needs torch beside mindspore; no
test asserts a time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

REPO = Path(__file__).resolve().parents[2]
LAYERS, HIDDEN, HEADS, FFN, VOCAB, SEQ, BATCH = 4, 256, 8, 688, 4096, 256, 8
RATE, DECAY, BETAS, EPS, CLIP, NORM_EPS, THETA = 3e-4, 0.1, (0.9, 0.95), 1e-8, 1.0, 1e-6, 10000.0
WARM_UP_STEPS = 3

Step = Callable[[], float]
"""Runs one train step, returns its loss."""


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Token ids and the next tokens, int32 [BATCH, SEQ] each; the same for both frameworks."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def mindspore_step() -> Step:
    """A step of the project's own model and trainer."""
    import mindspore as ms

    from msparallel.model.shape import ModelShape
    from msparallel.model.transformer import build_model
    from msparallel.parallel_config import OpParallelConfig
    from msparallel.recipe.schema import Optimizer
    from msparallel.train.optimizer import AdamW
    from msparallel.train.step import LocalStep

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    shape = ModelShape(num_layers=LAYERS, hidden_size=HIDDEN, num_heads=HEADS, ffn_size=FFN, vocab_size=VOCAB,
                       rope_theta=THETA, norm_eps=NORM_EPS)  # fmt: skip
    model = build_model(shape, OpParallelConfig(sharded=False), seq_length=SEQ)
    section = Optimizer(learning_rate=RATE, schedule="constant", weight_decay=DECAY, beta1=BETAS[0], beta2=BETAS[1],
                        eps=EPS, clip_norm=CLIP)  # fmt: skip
    step = LocalStep(model, AdamW(model.trainable_params(), section, steps=10**6), clip_norm=CLIP)
    ids, labels = batch()
    weights = np.full((BATCH, SEQ), 1 / (BATCH * SEQ), np.float32)
    positions = np.tile(np.arange(SEQ, dtype=np.int32), (BATCH, 1))
    inputs = tuple(ms.Tensor(array) for array in (ids, labels, weights, positions, np.zeros((BATCH, SEQ), np.int32)))
    return lambda: step([inputs]).loss


def torch_step() -> Step:
    """The same shape and step as plain, eager PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    frequencies = THETA ** (-torch.arange(0, HIDDEN // HEADS, 2).float() / (HIDDEN // HEADS))
    angles = torch.arange(SEQ).float()[:, None] * torch.cat([frequencies, frequencies])
    cosine, sine = angles.cos(), angles.sin()

    def rotate(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
            self.gate, self.up = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False)
            self.down = nn.Linear(FFN, HIDDEN, bias=False)
            self.first, self.second = nn.RMSNorm(HIDDEN, NORM_EPS), nn.RMSNorm(HIDDEN, NORM_EPS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            q, k, v = (w(y).view(BATCH, SEQ, HEADS, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
            y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(BATCH, SEQ, HIDDEN))
            y = self.second(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    model = nn.Sequential(nn.Embedding(VOCAB, HIDDEN), *(Layer() for _ in range(LAYERS)),
                          nn.RMSNorm(HIDDEN, NORM_EPS), nn.Linear(HIDDEN, VOCAB, bias=False))  # fmt: skip
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)
    ids, labels = (torch.from_numpy(array.astype(np.int64)) for array in batch())

    def step() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(ids).view(-1, VOCAB), labels.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    return step


STEPS = {"mindspore": mindspore_step, "torch": torch_step}


def work(name: str) -> None:
    """The worker: for every number of steps read from stdin, write their seconds and the last loss to stdout."""
    step = STEPS[name]()
    for _ in range(WARM_UP_STEPS):
        loss = step()
    print(json.dumps({"loss": loss}), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            loss = step()
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


class Worker:
    """A worker process that trains when asked."""

    def __init__(self, name: str, threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(REPO)}
        self.name = name
        self.process = subprocess.Popen([sys.executable, __file__, "--worker", name], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip

    def receive(self) -> dict[str, float]:
        """The worker's next message; lines that are not JSON are a framework's own."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"The {self.name} worker ended without a result; its message is above.")

    def tokens_per_s(self, steps: int) -> float:
        """Train `steps` steps."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return steps * BATCH * SEQ / self.receive()["seconds"]


def compare(turns: int, steps: int, threads: int) -> None:
    """Print tokens/s of both, turn by turn, and the ratio of the medians."""
    print(f"{LAYERS} layers, hidden {HIDDEN}, {HEADS} heads, ffn {FFN}, vocab {VOCAB}; batch {BATCH} x {SEQ} tokens, "
          f"float32; {threads} threads; {steps} steps a turn")  # fmt: skip
    workers = [Worker(name, threads) for name in STEPS]
    for worker in workers:
        print(f"{worker.name} ready, loss {worker.receive()['loss']:.3f}", file=sys.stderr)
    speeds: dict[str, list[float]] = {worker.name: [] for worker in workers}
    print(f"{'turn':>6} {'MindSpore':>12} {'PyTorch':>12}  tokens/s")
    for turn in range(turns):
        for worker in workers:
            speeds[worker.name].append(worker.tokens_per_s(steps))
        print(f"{turn + 1:>6} {speeds['mindspore'][-1]:>12.0f} {speeds['torch'][-1]:>12.0f}", flush=True)
    for worker in workers:
        worker.process.stdin.close()
        worker.process.wait()
    ours, theirs = (statistics.median(speeds[name]) for name in STEPS)
    print(f"median {ours:>12.0f} {theirs:>12.0f}")
    print(f"ratio MindSpore / PyTorch: {ours / theirs:.2f}")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in STEPS)
    print(f"{versions}; Python {platform.python_version()}; {platform.machine()}, {os.cpu_count()} CPUs; "
          f"{time.strftime('%Y-%m-%d')}")  # fmt: skip
    print("Again: python tests/benchmarks/train_cpu.py " + " ".join(sys.argv[1:]))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=5, help="turns of each framework")
    parser.add_argument("--steps", type=int, default=4, help="train steps of a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each framework")
    parser.add_argument("--worker", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker)
        return
    missing = [name for name in STEPS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"Skipped: this benchmark needs {' and '.join(missing)} in the Python that runs it ({sys.executable}).")
        return
    compare(arguments.turns, arguments.steps, arguments.threads)


if __name__ == "__main__":
    main()
