"""A graph of float16 in float32: nothing is rounded to 16 bits, caches keep their place, ranks still meet."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Lines, tensor

from msparallel.compile.expand import expand
from msparallel.simulate.cluster import Cluster
from msparallel.simulate.program import RankProgram, program_graph
from msparallel.simulate.widen import widened

pytestmark = pytest.mark.pure
F16 = "Float16"
TINY = 2.0**-13
"""Beside 1 float16 has no room for it."""


def program(folder, rank) -> RankProgram:
    """cast(x, float16) + [1, 1] from the file, summed over two ranks, written into a cache's row 2 and returned."""
    lines, kind = Lines(), tensor(1, 2, dtype=F16)
    lines.function(0, "step")
    x, rows = lines.parameter(0, "x", 1, 2), lines.parameter(0, "rows", 1, dtype="Int32")
    keys, values = (lines.parameter(0, name, 2, 2, 1, 2, weight=True, dtype=F16) for name in ("keys", "values"))
    narrow = lines.node(0, "Cast", [x, {"constant": 42}], kind)
    ones = {"tensor": [F16, [1, 2], 0, 4]}
    total = lines.node(0, "Add", [narrow, ones], kind)
    ranks = {"group_rank_ids": [0, 1], "op": "sum"}
    total = lines.node(0, "AllReduce", [total], kind, attributes=ranks)
    kept = lines.node(0, "ReshapeAndCache", [total, total, keys, values, rows, {"constant": None}], kind)
    lines.returns(0, kept)
    folder.mkdir()
    graph = lines.read(folder, np.ones(2, np.float16).tobytes())
    return RankProgram(rank=rank, graphs=(program_graph(graph, expand(graph)),))


def ran(programs):
    dtypes = {name: one.type.dtype.lower() for name, one in programs[0].kept().items()}
    values = {rank: {name: np.zeros((2, 2, 1, 2), dtype) for name, dtype in dtypes.items()} for rank in (0, 1)}
    cluster = Cluster(programs, values)
    fed = {rank: [np.full((1, 2), TINY, np.float32), np.array([2], np.int32)] for rank in (0, 1)}
    return cluster, cluster.run(0, fed)


def test_what_float16_rounds_away_stays(tmp_path):
    narrow = [program(tmp_path / str(rank), rank) for rank in (0, 1)]
    _, rounded = ran(narrow)
    assert rounded[0].dtype == np.float16 and rounded[0].tolist() == [[2.0, 2.0]]
    cluster, exact = ran([widened(one) for one in narrow])
    assert exact[1].dtype == np.float32 and exact[1].tolist() == [[2 + 2 * TINY] * 2]
    for held in cluster.values.values():
        for cache in held.values():
            assert cache.dtype == np.float32 and cache.reshape(4, 2)[2].tolist() == [2 + 2 * TINY] * 2
            assert not cache.reshape(4, 2)[[0, 1, 3]].any()


def test_the_graph_that_was_compiled_is_left_as_it_is(tmp_path):
    narrow = program(tmp_path / "0", 0)
    before = [(one.op, one.type, one.inputs) for one in narrow.graphs[0].execution.operators]
    wide = widened(narrow).graphs[0].execution.operators
    assert before == [(one.op, one.type, one.inputs) for one in narrow.graphs[0].execution.operators]
    assert [one.op for one in wide] == [op for op, _, _ in before]
    assert {one.type.dtype for one in wide} == {"Float32"} and wide[0].inputs[1].value == 43
