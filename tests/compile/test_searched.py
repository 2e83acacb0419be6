"""What MindSpore's search chose beside the strategies by hand, and strategies that go through a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import plan_of
from hypothesis import given
from hypothesis import strategies as st

from msparallel.compile.dryrun import DryRun, dry_run, recipe_job
from msparallel.compile.searched import SearchedOperator, compare_cuts
from msparallel.compile.strategies import OperatorCut, layout_strategy, numbers, operator_cuts, ranges
from msparallel.errors import UserError

ROWS, COLUMNS, BOTH = ((8, 1), (1, 1)), ((1, 1), (8, 1)), ((2, 1), (4, 1))


def cut(layers: str, cell: str, op: str, strategy: tuple[tuple[int, ...], ...], count: int = 1) -> OperatorCut:
    return OperatorCut(layers=layers, cell=cell, op=op, strategy=strategy, count=count)


def row(layers: str, cell: str, op: str, chosen: object, by_hand: object, count: int = 1) -> SearchedOperator:
    return SearchedOperator(layers=layers, cell=cell, op=op, count=count, chosen=chosen, by_hand=by_hand)


@pytest.mark.pure
def test_operators_are_matched_by_layer_cell_and_primitive():
    chosen = [
        cut("0-3", "up", "MatMul", ROWS),
        cut("0-3", "up", "Add", ((8, 1), (1,))),
        cut("", "head", "MatMul", ROWS),
    ]
    by_hand = [
        cut("", "head", "MatMul", ROWS),
        cut("0-3", "up", "MatMul", BOTH),
        cut("0-3", "up", "Add", ((2, 4), (4,))),
    ]
    assert compare_cuts(chosen, by_hand) == [
        row("0-3", "up", "MatMul", ROWS, BOTH),
        row("0-3", "up", "Add", ((8, 1), (1,)), ((2, 4), (4,))),
        row("", "head", "MatMul", ROWS, ROWS),
    ]


@pytest.mark.pure
def test_layers_that_the_search_treats_differently_are_told_apart():
    chosen = [cut("0, 3", "up", "MatMul", ROWS), cut("1-2", "up", "MatMul", BOTH)]
    compared = compare_cuts(chosen, [cut("0-3", "up", "MatMul", BOTH)])
    assert compared == [row("0, 3", "up", "MatMul", ROWS, BOTH), row("1-2", "up", "MatMul", BOTH, BOTH)]
    assert [operator.same for operator in compared] == [False, True]


@pytest.mark.pure
def test_several_operators_of_a_cell_are_matched_where_they_are_alike_then_in_order():
    chosen = [cut("", "core", "MatMul", ROWS, 2), cut("", "core", "MatMul", BOTH)]
    by_hand = [cut("", "core", "MatMul", BOTH), cut("", "core", "MatMul", COLUMNS), cut("", "core", "MatMul", ROWS)]
    assert compare_cuts(chosen, by_hand) == [
        row("", "core", "MatMul", ROWS, ROWS),
        row("", "core", "MatMul", BOTH, BOTH),
        row("", "core", "MatMul", ROWS, COLUMNS),
    ]


@pytest.mark.pure
def test_operators_of_one_form_only():
    flash, plain = cut("0", "core", "FlashAttentionScore", ROWS), cut("0", "core", "Softmax", ((8, 1),))
    compared = compare_cuts([flash], [plain])
    assert compared == [
        row("0", "core", "FlashAttentionScore", ROWS, None),
        row("0", "core", "Softmax", None, ((8, 1),)),
    ]
    assert not any(operator.same for operator in compared)
    assert compared[0].to_json() == {
        "layers": "0", "cell": "core", "op": "FlashAttentionScore", "count": 1, "same": False,
        "chosen": [[8, 1], [1, 1]], "chosen_words": "8 x 1, 1 x 1", "by_hand": None, "by_hand_words": None,
    }  # fmt: skip


CUTS = st.lists(
    st.builds(
        cut,
        st.sampled_from(["", "0", "0-2", "1, 3"]),
        st.sampled_from(["a", "b"]),
        st.just("MatMul"),
        st.sampled_from([ROWS, COLUMNS, BOTH]),
        st.integers(1, 3),
    ),
    max_size=6,
)


def counted(cuts: list[OperatorCut]) -> int:
    return sum(c.count * max(1, len(numbers(c.layers))) for c in cuts)


@pytest.mark.pure
@given(CUTS, CUTS)
def test_no_operator_is_lost_or_made(chosen, by_hand):
    compared = compare_cuts(chosen, by_hand)
    for name, cuts in (("chosen", chosen), ("by_hand", by_hand)):
        there = [operator for operator in compared if getattr(operator, name) is not None]
        assert sum(operator.count * max(1, len(numbers(operator.layers))) for operator in there) == counted(cuts)
    assert all(operator.same for operator in compare_cuts(chosen, chosen))


@pytest.mark.pure
@given(st.sets(st.integers(0, 200)))
def test_layers_as_text_and_back(layers):
    assert numbers(ranges(sorted(layers))) == sorted(layers)


@pytest.mark.pure
def test_a_cut_says_exactly_which_layers_have_how_many():
    strategies = {f"Default/layers-CellList/{layer}-Layer/Add-op{number}": [[2, 1], [2, 1]]
                  for layer, count in ((0, 1), (1, 2), (2, 2)) for number in range(count)}  # fmt: skip
    assert [(c.layers, c.count) for c in operator_cuts(strategies)] == [("0", 1), ("1-2", 2)]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("matrix", "tensor_map", "pieces"),
    [([2, 1, 4], [2, 0, 1, -1], (2, 4, 1, 1)), ([2, 3, 4], [[0, 1], -1, 2], (12, 1, 2)), ([8], [], ())],
)
def test_a_layout_as_pieces_of_each_dim(matrix, tensor_map, pieces):
    assert layout_strategy([{"device_matrix": matrix, "tensor_map": tensor_map}]) == (pieces,)


GPT2 = ("gpt2_124m_auto_parallel", "model.num_layers=2", "train.global_batch_size=8")


def whole_model(recipe: str, *words: str, save: Path | None = None) -> DryRun:
    job = recipe_job(plan_of(recipe, *words), "full")
    done = dry_run(job, [0], progress=False, save_strategy=save is not None)
    if save is not None:
        save.write_text(done.strategies)
    return done


@pytest.mark.cpu
def test_a_search_is_compared_with_the_strategies_by_hand():
    """With model_parallel 4 the blocks cut their matrices; recursive_programming cuts this small model's batch only."""
    degrees = ("parallel.data_parallel=2", "parallel.model_parallel=4", "train.micro_batch_size=4")
    done = whole_model(*GPT2, *degrees)
    search = done.search
    assert search and search.by_hand and search.how == "searched by recursive_programming"
    found = {(row.layers, row.cell, row.op): row for row in search.operators}
    up = found["0-1", "mlp.up_proj", "MatMul"]
    assert (up.chosen, up.by_hand, up.same) == (((8, 1), (1, 1)), ((2, 1), (4, 1)), False)
    attend = found["0-1", "self_attn.core", "FlashAttentionScore"]
    assert attend.by_hand == ((2, 4, 1, 1),) * 3 + ((2, 1, 1, 1),), "operators that got layouts are among them"
    assert search.by_hand.weights_bytes < search.chosen.weights_bytes
    assert done.to_json()["search"]["by_hand"]["collective_bytes"] > 0
    assert {row["same"] for row in done.to_json()["searched"]} == {True, False}


@pytest.mark.cpu
def test_strategies_go_through_a_file(tmp_path):
    """What one dry run saved another one takes: changed in the file, changed in the operators."""
    path = tmp_path / "strategy.json"
    saved = whole_model(*GPT2, save=path)
    found = json.loads(path.read_text())
    products = [name for name in found["parallel_strategy_item"] if name.startswith("MatMul") and "up_proj" in name]
    assert len(products) == 2
    for name in products:
        found["parallel_strategy_item"][name]["parallel_strategy"] = [[1, 1], [8, 1]]
    path.write_text(json.dumps(found))
    loaded = whole_model("gpt2_124m_auto_load", *GPT2[1:], f"parallel.strategy_load_file={path}")
    own = [c for c in loaded.ranks[0].cuts if c.op == "MatMul"]
    assert [c.strategy for c in own if c.cell == "mlp.up_proj"] == [((1, 1), (8, 1))]
    assert [c for c in own if c.cell != "mlp.up_proj"] == [
        c for c in saved.ranks[0].cuts if c.op == "MatMul" and c.cell != "mlp.up_proj"
    ]


@pytest.mark.cpu
def test_a_form_by_hand_that_does_not_compile_is_told():
    job = recipe_job(plan_of(*GPT2), "full")
    done = dry_run(replace(job, by_hand=UserError("No such cut.")), [0], progress=False)
    assert done.search and done.search.by_hand is None and done.search.refused == "No such cut."
    assert done.search.operators and not any(row.same for row in done.search.operators)
