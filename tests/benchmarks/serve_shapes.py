"""What shapes cost on the CPU: a step of decoding and a piece of a prompt, in graph mode and operator by operator.

    python tests/benchmarks/serve_shapes.py            # milliseconds and tokens/s of each shape

In: nothing. Out: a table on stdout. Qwen3's shape with 34 million parameters, random weights, float32 (the model of
tests/benchmarks/serve_cpu.py). Every figure is the median of repeated steps once everything is compiled and settled.
No test asserts a time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import time

from tqdm import tqdm

SLOTS, LENGTH = 64, 2048
SEEN = (128, 512, 2048)
"""Tokens that every request sees, its own new ones among them."""
SETTLE_S = 15.0
"""After compiling, until memory and threads have found their places."""
ROWS, CHUNKS = (1, 2, 4, 8, 16, 64), (16, 32, 64, 128, 512)


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
    steps = {f"step of {rows:2}, {seen:4} seen": (rows, rows, seen) for seen in SEEN for rows in ROWS}
    pieces = {f"piece of {chunk:3}, {seen:4} seen": (chunk, 0, seen) for seen in SEEN for chunk in CHUNKS
              if chunk <= seen}  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in (*steps, *pieces)}
    for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
        ms.set_context(mode=mode)
        engine = Engine(shape, slots=SLOTS, length=LENGTH, sizes=Buckets(ROWS, CHUNKS))
        engine.load(RandomWeights(shape))
        if mode == ms.PYNATIVE_MODE:
            engine._step = engine._model  # not the compiled function: the cell itself, operator by operator
        began = time.perf_counter()
        engine.warm_up()
        if mode == ms.GRAPH_MODE:
            print(f"{len(ROWS) + len(CHUNKS)} graphs compiled in {time.perf_counter() - began:.1f} s", flush=True)
        while time.perf_counter() < began + SETTLE_S:
            engine.decode([Row(0, 0, 7)])
        for name, (new, rows, seen) in tqdm((steps | pieces).items(), disable=None):
            batch = [Row(slot, seen - 1, 7) for slot in range(rows)]
            took = []
            for _ in range(2 + chosen.repeats):
                began = time.perf_counter()
                if rows:
                    engine.decode(batch)
                else:
                    engine.prefill(slot=0, start=seen - new, tokens=list(range(new)))
                took.append(time.perf_counter() - began)
            found[name].append(statistics.median(took[2:]))
    print(f"{'':28}{'graph mode':>20}{'by operator':>20}{'ratio':>7}\n{'':28}" + f"{'ms':>10}{'tokens/s':>10}" * 2)
    for name, (new, _, _) in (steps | pieces).items():
        graph, operators = found[name]
        figures = "".join(f"{one * 1e3:>10.1f}{new / one:>10,.0f}" for one in (graph, operators))
        print(f"{name:28}{figures}{operators / graph:>7.1f}")


if __name__ == "__main__":
    main()
