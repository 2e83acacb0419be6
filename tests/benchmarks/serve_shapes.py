"""What shapes cost on the CPU: a step of decoding and a piece of a prompt, in graph mode and operator by operator.

    python tests/benchmarks/serve_shapes.py            # milliseconds and tokens/s of each shape

In: nothing. Out: a table on stdout. Qwen3's shape with 34 million parameters, random weights, float32 (the model of
tests/benchmarks/serve_cpu.py). Every figure is the median of repeated steps after the first, which compiles. No test
asserts a time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import time

import numpy as np

SLOTS, LENGTH = 64, 2048
DECODE = [(rows, window) for window in (128, 512, 2048) for rows in (1, 4, 16, 64)]
PREFILL = [(chunk, window) for window in (128, 512, 2048) for chunk in (32, 128, 512) if chunk <= window]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    chosen = parser.parse_args()
    os.environ.setdefault("GLOG_v", "3")
    import mindspore as ms

    from msparallel.model.shape import ModelShape
    from msparallel.serve.buckets import Buckets
    from msparallel.serve.engine import Engine
    from msparallel.serve.row import Row
    from msparallel.weights.source import RandomWeights

    ms.set_device("CPU")
    shape = ModelShape(num_layers=8, hidden_size=512, num_heads=8, num_kv_heads=4, head_dim=64, ffn_size=1536,
                       vocab_size=8192, qk_norm=True)  # fmt: skip
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} threads, MindSpore "
          f"{importlib.metadata.version('mindspore')}")  # fmt: skip
    print(f"{'':24}{'graph mode':>32}{'by operator':>24}\n{'':24}{'compile s':>12}{'ms':>10}{'tokens/s':>10}{'ms':>14}"
          f"{'tokens/s':>10}")  # fmt: skip

    def timed(step, repeats: int) -> tuple[float, float]:
        """Seconds of the first step, and the median of the others."""
        took = []
        for _ in range(1 + repeats):
            began = time.perf_counter()
            step()
            took.append(time.perf_counter() - began)
        return took[0], statistics.median(took[1:])

    def measure(name: str, sizes: Buckets, new_tokens: int, call) -> None:
        found = []
        for mode, repeats in ((ms.GRAPH_MODE, chosen.repeats), (ms.PYNATIVE_MODE, 3)):
            ms.set_context(mode=mode)
            engine = Engine(shape, slots=SLOTS, length=LENGTH, sizes=sizes)
            engine.load(RandomWeights(shape))
            found.append(timed(lambda engine=engine: call(engine), repeats))
        (first, graph), (_, operators) = found
        print(f"{name:24}{first - graph:>12.1f}{graph * 1e3:>10.1f}{new_tokens / graph:>10,.0f}{operators * 1e3:>14.1f}"
              f"{new_tokens / operators:>10,.0f}", flush=True)  # fmt: skip

    for rows, window in DECODE:
        batch = [Row(slot, window - 1, 7) for slot in range(rows)]
        measure(f"decode {rows:2} rows, {window:4}", Buckets((rows,), (32,), (window,)), rows,
                lambda engine, batch=batch: engine.decode(batch))  # fmt: skip
    for chunk, window in PREFILL:
        tokens = np.arange(chunk).tolist()
        measure(f"prompt of {chunk:3}, {window:4}", Buckets((1,), (chunk,), (window,)), chunk,
                lambda engine, tokens=tokens, start=window - chunk: engine.prefill(slot=0, start=start, tokens=tokens))


if __name__ == "__main__":
    main()
