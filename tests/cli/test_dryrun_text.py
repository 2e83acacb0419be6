"""The dry run's text: what it says, that it fits the terminal, and that it stays short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.searched_job import searched_job
from report.small_job import held, small_job

from msparallel.cli.dryrun_text import job_text
from msparallel.hardware import load_hardware

pytestmark = pytest.mark.pure


def lines_of(text: str) -> list[list[str]]:
    """Lines without the spaces between columns."""
    return [line.split() for line in text.splitlines()]


def test_head_and_memory():
    text = job_text(small_job(notes=("Two layers were compiled.",)), load_hardware("atlas_800t_a2"), "2.9.0", 100)
    assert text.splitlines()[:3] == [
        "small.yaml",
        "pp2 x dp2 x tp2 (8) on 2 nodes x 4 (Ascend 910B); MindSpore 2.9.0 compiled ranks 0, 4",
        "Two layers were compiled.",
    ]
    rows = lines_of(text)
    assert ["rank", "stage", "layers", "weights", "gradients", "optimizer", "live", "total", "compile"] in rows
    assert [row[:7] for row in rows if row[-1:] and row[-1].endswith("|") and row[0] == "4"] == [
        ["4", "1", "1", "0.00", "0.00", "0.00", "2.00"]
    ]


def test_a_device_that_is_too_small_is_named():
    job = small_job()
    first = job.ranks[0]
    heavy = replace(first, peak=replace(first.peak, bytes=70 * 2**30))
    text = job_text(replace(job, ranks=(heavy, job.ranks[1])), load_hardware("atlas_800t_a2"), width=100)
    assert "Too much for 64 GiB: rank 0 with 70.00 GiB." in text
    bar = next(line for line in text.splitlines() if line.split()[:2] == ["0", "0"])
    assert bar.split()[-1].partition("|")[2].startswith("l"), "the bar goes on behind the mark"
    assert "Too much" not in job_text(job, load_hardware("atlas_800t_a2"), width=100)


def test_parameters_are_told_once_with_their_cut():
    rows = lines_of(job_text(small_job(), width=140))
    up = next(row for row in rows if row[:1] == ["model.layers.0-1.up_proj.weight"])
    assert " ".join(up[1:]) == "16 x 8 -> 4 x 8 0-1 dim 0 by tp and optimizer shard (2)"
    norm = next(row for row in rows if row[:1] == ["model.layers.0-1.norm.weight"])
    assert norm[1:] == ["8", "0-1", "whole"]


def test_gradients_that_are_not_cut_like_their_weight_are_shown():
    text = job_text(small_job(), width=140)
    assert "Accumulated gradients: 1 of 1 kinds are not cut like their weight:" in text
    assert "Optimizer state: cut like the weights." in text


def test_collectives_by_traffic():
    text = job_text(small_job(), width=120)
    rows = [row for row in lines_of(text) if row[:1] in (["AllReduce"], ["Send"])]
    assert [(row[0], row[1]) for row in rows] == [
        ("AllReduce", "forward"), ("AllReduce", "gradient"), ("Send", "pipeline"),
    ]  # fmt: skip
    assert " ".join(rows[2]) == "Send pipeline pp 0 -> 4 between servers 1 MiB 2 x 2 MiB 0"


def test_operators_that_are_whole_are_counted_only():
    text = job_text(small_job(), width=140)
    assert "up_proj: every device computes a part of the output" in text
    assert "3 more are whole on every device." in text


@pytest.mark.parametrize("width", [60, 72, 80, 100, 160])
def test_it_fits_the_terminal_and_has_no_colours(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = job_text(small_job(scope="a\x1b[31m.cell"), load_hardware("atlas_800t_a2"))
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text and "a\\x1b[31m.cell" in text


def test_many_ranks_and_many_parameters_stay_short():
    job = small_job()
    many = tuple(held(f"table_{place}", (8,), ((0, 8),), ((),)) for place in range(90))
    ranks = [
        replace(job.ranks[stage], rank=64 * stage + rank, parameters=many) for stage in (0, 1) for rank in range(64)
    ]
    mesh = replace(job.mesh, dp=32)
    text = job_text(replace(job, mesh=mesh, ranks=tuple(ranks)), width=100)
    assert "0-63" in text and "64-127" in text and "compiled every rank" in text
    assert "... 50 more: --json has them all" in text
    assert len(text.splitlines()) < 90


def test_a_job_without_optimizer_and_collectives():
    """A recipe that serves has weights only."""
    job = small_job()
    bare = replace(job.ranks[0], parameters=job.ranks[0].parameters[:1], collectives=(), cuts=(),
                   peak=replace(job.ranks[0].peak, tensors=()))  # fmt: skip
    text = job_text(replace(job, ranks=(bare,)), width=100)
    assert "Collectives: none" in text and "Accumulated" not in text and "Largest tensors" not in text


def test_what_a_search_chose_stands_beside_the_strategies_by_hand():
    text = job_text(searched_job(), width=120)
    assert "Strategies searched by recursive_programming, beside those by hand" in text
    told = [" ".join(row) for row in lines_of(text)]
    assert "chosen 13 MiB 672 B 256 B 1 GiB" in told and "by hand 0 B 672 B 256 B 1 GiB" in told
    product = told.index("0-1 MatMul up_proj, gate_proj")
    assert told[product + 1 : product + 3] == [
        "chosen input 4 x 1, weight 1 x 1: every device has the whole weight and a part of the rows",
        "by hand input 2 x 1, weight 2 x 1: every device computes a part of the output",
    ]
    assert "2 operators of a layer or of the model are cut the same in both." in text
    assert "Only by hand: Exp in head." in text


def test_a_search_that_found_what_stands_there_by_hand():
    text = job_text(searched_job(same=True), width=120)
    assert "All operators are cut as by hand." in text and "    chosen " not in text


def test_a_search_whose_form_by_hand_does_not_compile():
    text = job_text(searched_job(refused="my.yaml:3  parallel.model_parallel: 3\n  Heads cannot be cut."), width=100)
    assert "The form by hand does not compile:" in text and "parallel.model_parallel: 3" in text
    assert "Only by the search" not in text and "chosen" not in text
