"""Quoted output of `msparallel simulate`, and of dry runs beside it, run again with the MindSpore that is installed.

Of a simulation everything must be what the command prints now, but for rounding: losses within 1e-5, and differences
between one device and the cluster, which the verdict judges. Timelines and dry runs must be equal to the digit. The
tables of docs/10 are held by every collective of small graphs, none left out. The Chinese pages quote the same
(tests/test_docs.py holds that).
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from compiled import dried
from handmade import tensor
from handmade_ranks import RankLines, cluster_of, run
from test_docs import REPO, Shell, as_pattern, blocks, name, quoted
from test_docs_dryrun import settled
from tiny_recipe import arguments, environment

from msparallel.simulate.cluster import Deadlock

VERBS = ("simulate", "dryrun")
PAGES = [
    REPO / "README.md",
    *(page for page in sorted((REPO / "docs").glob("*.md"))
      if not page.name.endswith(".zh-CN.md") and page.name != "08_dry_run.md"
      and any(f"$ msparallel {verb} " in page.read_text(encoding="utf-8") for verb in VERBS)),
]  # fmt: skip
"""Pages that quote a simulation or a dry run; 08 and the README's dry runs are tests/test_docs_dryrun.py's."""
LOSS = re.compile(r"^( +\d+ +)(\d+\.\d{6})( +)(\d+\.\d{6})( +)\d\.\de[-+]\d\d$", re.M)
ROUNDED = (
    (r"\b\d\.\de[-+]\d\d\b", "0.0e+00"),  # differences
    (r"(0\.0e\+00 of a (?:tensor|value)) \(\S+\)", r"\1"),  # the worst tensor
)


def judged(text: str) -> tuple[str, list[float]]:
    """A simulation's text without what rounding decides, and its losses."""
    losses = [float(value) for match in LOSS.finditer(text) for value in match.group(2, 4)]
    text = LOSS.sub(r"\1loss\3loss", text)
    for pattern, replacement in ROUNDED:
        text = re.sub(pattern, replacement, text)
    return settled(text), losses


def printed(words: list[str], folder: Path) -> str:
    """What `msparallel WORDS` prints, both streams; the repository's own path is cut off."""
    done = subprocess.run(
        arguments(*words),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=850,
    )
    return done.stdout.replace(f"{os.fspath(REPO)}/", "")


@pytest.mark.pure
def test_there_are_pages():
    assert {"09_simulate.md", "10_what_is_sent.md", "README.md"} <= {page.name for page in PAGES}


def commands() -> list:
    """Every quoted command once, with all outputs that pages show for it; those of one page must not need a file."""
    shown: dict[str, list[tuple[str, list[str]]]] = {}
    for page in PAGES:
        for item in quoted(page):
            verb = item.command.split()[1] if item.command.startswith("msparallel ") else ""
            if verb in VERBS and item.output and (page.name, verb) != ("README.md", "dryrun"):
                shown.setdefault(" ".join(item.command.split()), []).append((name(page), item.output))
    return [pytest.param(command, outputs, id=command[11:]) for command, outputs in shown.items()]


@pytest.mark.cpu
@pytest.mark.slow
@pytest.mark.parametrize(("command", "outputs"), commands())
def test_a_command_prints_what_the_pages_show(command, outputs, tmp_path):
    Shell(tmp_path)
    text, losses = judged(printed(shlex.split(command)[1:], tmp_path))
    for page, output in outputs:
        shown, quoted_losses = judged("\n".join(output))
        assert re.fullmatch(as_pattern(shown.split("\n")), text), f"{page}: $ {command}\nprints\n{text}"
        assert quoted_losses == pytest.approx(losses[: len(quoted_losses)], rel=1e-5)


def circle(lines: RankLines, one: list[int], other: list[int]) -> int:
    return lines.collective("AllReduce", lines.collective("AllReduce", lines.x, one), other)


def swapped(lines: RankLines, first: str) -> int:
    if first == "AllReduce":
        return lines.collective("AllGather", lines.collective("AllReduce", lines.x, [0, 1]), [0, 1], type=tensor(8))
    return lines.collective("AllReduce", lines.collective("AllGather", lines.x, [0, 1], type=tensor(8)), [0, 1],
                            type=tensor(8))  # fmt: skip


@pytest.mark.pure
@pytest.mark.parametrize("page", ["09_simulate.md", "09_simulate.zh-CN.md"])
@pytest.mark.parametrize(
    "builds",
    [
        [lambda lines, groups=groups: circle(lines, *groups)
         for groups in (([0, 1], [0, 2]), ([1, 2], [0, 1]), ([0, 2], [1, 2]))],
        [lambda lines: swapped(lines, "AllReduce"), lambda lines: swapped(lines, "AllGather")],
    ],
    ids=["circle", "swapped"],
)  # fmt: skip
def test_deadlocks_are_told_as_the_page_shows(page, builds, tmp_path):
    with pytest.raises(Deadlock) as caught:
        run(cluster_of(tmp_path, *builds))
    assert f"```\n{caught.value}\n```" in (REPO / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.cpu
def test_mindspores_own_cell_divides_by_the_micro_batches():
    from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

    assert "self.sens = 1 / micro_size" in inspect.getsource(_TrainGradAccuStepCell)
    for page in ("10_what_is_sent.md", "10_what_is_sent.zh-CN.md"):
        assert "`self.sens = 1 / micro_size`" in (REPO / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.cpu
@pytest.mark.slow
def test_the_division_put_back_is_seen(tmp_path):
    """The change that docs/10 shows, made in a copy: the verdict, and what the page says about it."""
    page = REPO / "docs" / "10_what_is_sent.md"
    (change,) = blocks(page, "diff")
    for folder in ("msparallel", "recipes"):
        shutil.copytree(REPO / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "msparallel" / "train" / "sharded_step.py"
    text, lines = file.read_text(encoding="utf-8"), change.splitlines()
    for old, new in zip(lines[::2], lines[1::2], strict=True):
        assert (old[0], new[0], text.count(f"{old[1:]}\n")) == ("-", "+", 1)
        text = text.replace(f"{old[1:]}\n", f"{new[1:]}\n")
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "msparallel", "simulate", "llama2_7b_dp2_tp2_pp2", "optimizer.clip_norm=0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    body = page.read_text(encoding="utf-8").partition("```diff")[2].partition("```\n\n```\n")[2].partition("\n```")[0]
    shown, losses = judged(body)
    found, seen = judged(done.stdout)
    assert re.fullmatch(as_pattern(shown.split("\n")), found), done.stdout
    assert losses == pytest.approx(seen, rel=1e-5)
    assert "7.5e-01 of a tensor" in body and "7.5e-01 of a tensor" in done.stdout


L, M, N = 2, 2, 2
"""Layers, micro-batches, ranks of the group in the cases below."""
H, A, K, D, F, V, T = 64, 8, 4, 16, 128, 512, 32
"""Hidden width, heads, key heads, width of a head, feed-forward width, vocabulary, tokens: docs/10's letters."""
E = 2
"""Bytes of an activation in bfloat16."""
DENSE = (
    *("llama2_7b_dp2_tp2_pp2", f"model.num_layers={L}", f"model.num_kv_heads={K}", "parallel.recompute=none"),
    "cluster.devices_per_node=null",
)
ONE = {f"parallel.{key}": 1 for key in ("data_parallel", "model_parallel", "pipeline_stages")}
LAYER = (A * D * H, K * D * H, K * D * H, H * A * D, F * H, F * H, F * H)
"""Elements of a layer's matrices."""
NORMS = [H] * (2 * L + 1)
Uses = Counter[tuple[str, str, int]]
"""(primitive, purpose, bytes) -> messages a step."""


def dense(**changes: object) -> list[str]:
    """Words for a dense model with one strategy; changes are keys of `parallel`."""
    keys = {**ONE, **{f"parallel.{key}": value for key, value in changes.items()}}
    batch = int(str(changes.get("data_parallel", 1))) * M
    return [*DENSE, *(f"{key}={value}" for key, value in keys.items()), f"train.global_batch_size={batch}"]


def each(op: str, purpose: str, sizes: Iterable[int], times: int = 1) -> Uses:
    found: Uses = Counter()
    for size in sizes:
        found[op, purpose, size] += times
    return found


MATRICES = [*LAYER * L, V * H, V * H]
GRADIENTS = each("AllReduce", "gradient", [4 * n for n in [*MATRICES, *NORMS]])
INPUTS = each("AllGather", "input", [4 * M * N * T] * 5)


def sharded(*, gathers: int, embedding: int, scatters: int) -> Uses:
    """Messages of the optimizer shard above its threshold; norms are below it."""
    return (
        each("AllGather", "weight", [E * n for n in [*LAYER * L, V * H]], gathers)
        + each("AllGather", "weight", [4 * V * H], embedding)
        + each("ReduceScatter", "gradient", [4 * n for n in MATRICES], scatters)
        + each("AllReduce", "gradient", [4 * n for n in NORMS])
        + INPUTS
    )


def over_tp(rows: str, *, vocabulary: bool = True) -> Uses:
    """Activations, and the norms' gradients. `rows`: AllReduce, or "both" with sequence parallel."""
    found = each("AllReduce", "gradient", [4 * n for n in NORMS])
    if vocabulary:
        found += each("AllReduce", "forward", [4 * T], 3 * M) + each("AllReduce", "backward", [4 * T], 2 * M)
    else:
        found += each("AllReduce", "gradient", [4 * V * H] * 2)
    if rows == "AllReduce":
        for purpose in ("forward", "backward"):
            found += each("AllReduce", purpose, [E * T * H], 2 * L * M)
            found += each("AllReduce", purpose, [4 * T * H], M if vocabulary else 0)
    else:
        for one, other in (("AllGather", "ReduceScatter"), ("ReduceScatter", "AllGather")):
            purpose = "forward" if one == "AllGather" else "backward"
            found += each(one, purpose, [E * T * H], (2 * L + 1) * M)
            found += each(other, purpose, [E * T * H], 2 * L * M) + each(other, purpose, [4 * T * H], M)
    return found


CONTEXT = ["qwen3_8b_cp4_tp2", *dense(context_parallel=N, optimizer_shard="false")[1:]]
QK_NORMS = each("AllReduce", "gradient", [4 * D] * 2 * L)
EXPERTS, CHOSEN, EXPERT_WIDTH, CAPACITY = 8, 2, 32, 12
"""Capacity: ceil(1.5 x 32 x 2 / 8)."""
MIXTURE = [
    *("qwen3_30b_a3b_dp8_pp2_ep8", *dense(data_parallel=N, optimizer_shard="false")[1:], "cluster.nodes=1"),
    *(f"model.num_experts={EXPERTS}", f"model.experts_per_token={CHOSEN}", f"model.expert_ffn_size={EXPERT_WIDTH}"),
]
ATTENTION = LAYER[:4]
MIXED = each("AllReduce", "gradient", [4 * n for n in [*ATTENTION * L, *[EXPERTS * H] * L, V * H, V * H, *NORMS]])
SLOTS = sum(
    (each("AlltoAll", way, [E * EXPERTS * CAPACITY * H], 2 * L * M) for way in ("forward", "backward")), Counter()
)
SHARD = {"data_parallel": N, "optimizer_shard_threshold_kib": 8}
CASES = {
    "data parallel": (dense(data_parallel=N), GRADIENTS + INPUTS),
    "level1": (dense(**SHARD, optimizer_shard="level1"), sharded(gathers=1, embedding=1, scatters=1)),
    "level2": (dense(**SHARD, optimizer_shard="level2"), sharded(gathers=1, embedding=1, scatters=M)),
    "level3": (dense(**SHARD, optimizer_shard="level3"), sharded(gathers=2 * M, embedding=M, scatters=M)),
    "tensor parallel": (dense(model_parallel=N), over_tp("AllReduce")),
    "whole vocabulary": (
        dense(model_parallel=N, vocab_parallel="false"), over_tp("AllReduce", vocabulary=False)),
    "sequence parallel": (dense(model_parallel=N, sequence_parallel="true"), over_tp("both")),
    "recompute": (
        [word for word in dense(model_parallel=N) if "recompute" not in word] + ["parallel.recompute=full"],
        over_tp("AllReduce") + each("AllReduce", "recompute", [E * T * H], L * M),
    ),
    "recompute with sequence parallel": (
        [word for word in dense(model_parallel=N, sequence_parallel="true") if "recompute" not in word]
        + ["parallel.recompute=full"],
        over_tp("both") + each("AllGather", "recompute", [E * T * H], 2 * L * M)
        + each("ReduceScatter", "recompute", [E * T * H], L * M),
    ),
    "all_gather": (
        [*CONTEXT, "parallel.context_parallel_algo=all_gather"],
        GRADIENTS + QK_NORMS + each("AllGather", "forward", [E * T * K * D], 2 * L * M)
        + each("ReduceScatter", "backward", [E * T * K * D], 2 * L * M),
    ),
    "ulysses": (
        CONTEXT,
        GRADIENTS + QK_NORMS + sum(
            (each("AlltoAll", way, [E * T * heads * D // N], 2 * L * M)
             for way in ("forward", "backward") for heads in (A, K)), Counter()),
    ),
    "experts": ([*MIXTURE, f"parallel.expert_parallel={N}"], MIXED + QK_NORMS + INPUTS + SLOTS),
    "pipeline": (
        dense(pipeline_stages=N),
        each("Send", "pipeline", [E * T * H], M) + each("Receive", "pipeline", [E * T * H], M)),
    "interleaved": (
        [word for word in dense(pipeline_stages=N, virtual_stages=2) if "num_layers" not in word]
        + [f"model.num_layers={2 * L}"],
        each("Send", "pipeline", [E * T * H], 3 * M) + each("Receive", "pipeline", [E * T * H], 3 * M)),
}  # fmt: skip
"""Strategy -> recipe with overrides, and what docs/10 says that a rank sends."""


@pytest.mark.cpu
@pytest.mark.slow
@pytest.mark.parametrize("strategy", CASES)
def test_a_strategy_sends_what_the_page_says(strategy):
    (recipe, *words), expected = CASES[strategy]
    report = dried(recipe, *words).ranks[0]
    found: Uses = Counter()
    for use in report.collectives:
        if use.purpose != "scalar":
            found[use.op, use.purpose, use.bytes] += use.count
    assert found == +expected
    scalars = [use for use in report.collectives if use.purpose == "scalar" and len(use.ranks) > 1]
    assert all(use.bytes <= 8 for use in scalars)
    if strategy == "data parallel":
        assert sum(use.count for use in scalars) == 2 * M + 1
