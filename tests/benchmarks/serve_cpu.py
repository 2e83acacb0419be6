"""Serving speed on the CPU: this project's engine and scheduler beside transformers, same model, same machine.

    python tests/benchmarks/serve_cpu.py --torch-python /path/to/python    # tokens/s of both, and their ratios

In: a Python that has torch and transformers (by default this one). Out: a table on stdout. Qwen3's shape, 34 million
parameters, random weights, float32, greedy, as many threads each; one works while the other waits, and they take turns.

- one: a request after the other, 64 tokens in, 128 out; `generate` of one sequence.
- sixteen: 16 requests of equal length at once; `generate` of a static batch of 16.
- ragged: 64 requests of 16 to 128 tokens in and out that arrive at random moments; `generate` of one after the other,
  as they come. Counted from the first arrival to the last answer.

No test asserts a time.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 8, 512, 8, 4, 64, 1536, 8192
PROMPT, ANSWER, BATCH, RAGGED, RATE = 64, 128, 16, 64, 8.0
SLOTS, LENGTH = 16, 512


def ragged() -> list[tuple[float, list[int], int]]:
    """(arrival in seconds, prompt, tokens to answer) of each request; the same for both."""
    rng, now, found = random.Random(7), 0.0, []
    for _ in range(RAGGED):
        now += rng.expovariate(RATE)
        found.append((now, [rng.randrange(VOCAB) for _ in range(rng.randint(16, 128))], rng.randint(16, 128)))
    return found


def prompt(number: int) -> list[int]:
    """Of equal length; no two begin alike, so that nothing is reused."""
    rng = random.Random(1000 + number)
    return [rng.randrange(VOCAB) for _ in range(PROMPT)]


async def ours() -> None:
    """Answers to scenario names on stdin: seconds and tokens."""
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.serve.engine_client import EngineClient
    from msparallel.serve.sampling import Sampling
    from msparallel.serve.scheduler import Request, Scheduler

    folder = Path(tempfile.mkdtemp())
    recipe = folder / "benchmark.yaml"
    recipe.write_text(
        f"model: {{num_layers: {LAYERS}, hidden_size: {HIDDEN}, num_heads: {HEADS}, num_kv_heads: {KV_HEADS}, "
        f"head_dim: {HEAD_DIM}, ffn_size: {FFN}, vocab_size: {VOCAB}, qk_norm: true, max_positions: 2048}}\n"
        f"serve: {{weights: random, max_concurrency: {SLOTS}, max_length: {LENGTH}}}\n"
    )
    engine = EngineClient(resolve(load_recipe(str(recipe))), folder / "engine.log")
    began = time.perf_counter()
    await engine.start(lambda loading: None)
    print(json.dumps({"ready_s": time.perf_counter() - began}), flush=True)
    scheduler = Scheduler(engine, slots=SLOTS, length=LENGTH, chunk=128, most_waiting=1000)
    loop = asyncio.create_task(scheduler.run())
    offset = 0

    async def ask(tokens: list[int], count: int) -> int:
        request = Request(prompt=tokens, max_tokens=count, sampling=Sampling(temperature=0))
        return len([choice async for choice in scheduler.submit(request)])

    async def late(began: float, at: float, tokens: list[int], count: int) -> int:
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - began)))
        return await ask(tokens, count)

    for line in iter(sys.stdin.readline, ""):
        began = time.perf_counter()
        offset += 100
        if line.strip() == "one":
            tokens = await ask(prompt(offset), ANSWER)
        elif line.strip() == "sixteen":
            tokens = sum(await asyncio.gather(*(ask(prompt(offset + n), ANSWER) for n in range(BATCH))))
        else:
            tokens = sum(await asyncio.gather(*(late(began, *one) for one in ragged())))
        print(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}), flush=True)
    loop.cancel()
    await engine.close()


def theirs() -> None:
    """The same through `generate`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=2048,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=0)).eval()  # fmt: skip

    @torch.no_grad()
    def generate(rows: list[list[int]], count: int) -> int:
        ids = torch.tensor(rows)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count,
                             do_sample=False)  # fmt: skip
        return (out.shape[1] - ids.shape[1]) * ids.shape[0]

    generate([prompt(0)], 4)
    print(json.dumps({"versions": f"torch {torch.__version__}, transformers "
                                  f"{importlib.metadata.version('transformers')}"}), flush=True)  # fmt: skip
    for line in iter(sys.stdin.readline, ""):
        began = time.perf_counter()
        if line.strip() == "one":
            tokens = generate([prompt(1)], ANSWER)
        elif line.strip() == "sixteen":
            tokens = generate([prompt(n) for n in range(BATCH)], ANSWER)
        else:
            tokens = 0
            for at, ids, count in ragged():
                time.sleep(max(0.0, at - (time.perf_counter() - began)))
                tokens += generate([ids], count)
        print(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}), flush=True)


def _start(python: str, side: str, threads: int) -> tuple[subprocess.Popen[str], dict]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(REPO), "GLOG_v": "3"}
    process = subprocess.Popen([python, __file__, "--side", side], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env=environment)  # fmt: skip
    return process, json.loads(_line(process))


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    while True:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"a side ended with code {process.wait()}")
        if line.startswith("{"):
            return line


def _ask(process: subprocess.Popen[str], scenario: str) -> float:
    """Tokens a second."""
    assert process.stdin is not None
    process.stdin.write(f"{scenario}\n")
    process.stdin.flush()
    told = json.loads(_line(process))
    return told["tokens"] / told["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.side == "ours":
        return asyncio.run(ours())
    if chosen.side == "theirs":
        return theirs()
    threads = len(os.sched_getaffinity(0))
    mine, ready = _start(sys.executable, "ours", threads)
    other, told = _start(chosen.torch_python, "theirs", threads)
    print(f"{platform.machine()}, {threads} threads each; MindSpore {importlib.metadata.version('mindspore')}, "
          f"{told['versions']}. Ready in {ready['ready_s']:.1f} s.")  # fmt: skip
    for scenario, rounds in (("one", chosen.rounds), ("sixteen", chosen.rounds), ("ragged", 1)):
        pairs = [(_ask(mine, scenario), _ask(other, scenario)) for _ in range(rounds)]
        ours_, theirs_ = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(first / second for first, second in pairs)
        print(f"{scenario:8} {ours_:8,.1f} tokens/s   transformers {theirs_:8,.1f}   ratio {ratio:.2f}", flush=True)
    for process in (mine, other):
        process.communicate()
    return None


if __name__ == "__main__":
    main()
