"""Alike things told once, and texts of sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.small_job import small_job, use

from msparallel.report.alike import (
    alike_ranks,
    bytes_text,
    collective_kinds,
    cut_kinds,
    cut_words,
    parameter_kinds,
    peak_kinds,
    ranks_text,
)

pytestmark = pytest.mark.pure


def test_layers_are_told_once_over_stages():
    kinds = {kind.name: kind for kind in parameter_kinds(small_job().ranks) if kind.role == "weight"}
    assert list(kinds) == [
        "model.embed_tokens.weight", "model.layers.0-1.norm.weight", "model.layers.0-1.up_proj.weight",
        "model.layers.0-1.down_proj.weight",
    ]  # fmt: skip
    up = kinds["model.layers.0-1.up_proj.weight"]
    assert (up.count, up.stages) == (2, (0, 1)) and kinds["model.embed_tokens.weight"].stages == (0,)
    assert cut_words(up.example) == "dim 0 by tp and optimizer shard (2)"
    assert cut_words(kinds["model.layers.0-1.down_proj.weight"].example) == "dim 1 by tp"
    assert cut_words(kinds["model.layers.0-1.norm.weight"].example) == "whole"


def test_layers_that_are_cut_otherwise_are_a_kind_of_their_own():
    job = small_job()
    first, second = job.ranks
    up = next(held for held in second.parameters if held.name.endswith("1.up_proj.weight") and held.role == "weight")
    other = replace(up, part=replace(up.part, bounds=((0, 8), (0, 8)), cut_by=(("tp",), ())), optimizer_shard=1)
    names = [kind.name for kind in parameter_kinds([first, replace(second, parameters=(other,))])]
    assert "model.layers.0.up_proj.weight" in names and "model.layers.1.up_proj.weight" in names


def test_ranks_with_the_same_bytes_stand_together():
    first, second = small_job().ranks
    groups = alike_ranks([first, replace(first, rank=1, compile_s=9.0), second])
    assert [(group.ranks, group.compile_s) for group in groups] == [((0, 1), 9.0), ((4,), 3.5)]
    weights = 4 * (8 * 8 + 8 + 4 * 8 + 8 * 8)
    assert groups[0].total_bytes == weights + 4 * 64 + 4 * 64 + 2**30


def test_collectives_of_stages_stand_together_largest_first():
    kinds = collective_kinds(small_job().ranks)
    told = [(kind.use.op, kind.use.purpose, kind.stages) for kind in kinds]
    assert told == [
        ("AllReduce", "forward", (0, 1)), ("AllReduce", "gradient", (0, 1)), ("Send", "pipeline", (0,)),
    ]  # fmt: skip


def test_a_middle_stage_keeps_both_of_its_borders():
    report = small_job().ranks[0]
    both = (use("Receive", (0, 4), ("pp",), 8, 2, "pipeline"), use("Receive", (8, 4), ("pp",), 8, 2, "pipeline"))
    kinds = collective_kinds([replace(report, collectives=both)])
    assert [ranks_text(kind.use) for kind in kinds] == ["0 -> 4", "8 -> 4"]


@pytest.mark.parametrize(
    ("ranks", "told"),
    [((0, 1, 2, 3), "0-3"), ((5, 7), "5, 7"), (tuple(range(0, 64, 8)), "0, 8 ... 56 (8)")],
)
def test_ranks_are_short(ranks, told):
    assert ranks_text(use("AllReduce", ranks, ("dp",), 8, 1, "gradient")) == told


def test_operators_of_a_cell():
    kinds = cut_kinds(small_job().ranks)
    assert [(kind.ops, kind.words, kind.is_cut) for kind in kinds] == [
        (("MatMul",), "input 2 x 1, weight 2 x 1: every device computes a part of the output", True),
        (("Add",), "each input 2 x 1", True),
        (("Exp",), "whole on every device", False),
    ]


def test_tensors_of_the_peak_are_counted_over_layers():
    kinds = peak_kinds(small_job().ranks[0].peak)
    assert [(kind.tensor.op, kind.cell, kind.count) for kind in kinds] == [
        ("MatMul", "layers.0.up_proj", 2),
        ("Exp", "head", 1),
    ]
    peak = small_job().ranks[0].peak
    scopes = [f"gradient of network.network.transformer.model.layers.{layer}.mlp" for layer in (0, 1, 2, 5)]
    tensors = tuple(replace(peak.tensors[0], scope=scope) for scope in scopes)
    (kind,) = peak_kinds(replace(peak, tensors=tensors))
    assert (kind.cell, kind.count) == ("gradient of model.layers.0-2, 5.mlp", 4)
    assert kind.bytes == 4 * 512 * 1024 * 4


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (32 * 2**20, "32 MiB"), (90177536, "86 MiB"),
     (int(1.5 * 2**30), "1.50 GiB"), (2**36, "64 GiB"), (2**41, "2 TiB")],
)  # fmt: skip
def test_bytes(count, told):
    assert bytes_text(count) == told
