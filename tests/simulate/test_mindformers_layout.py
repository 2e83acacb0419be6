"""Fused weights whose rows ranks read in another order."""

from __future__ import annotations

import numpy as np
import pytest
from interop.mindformers_files import write

from msparallel.interop.mindformers import read_mindformers
from msparallel.simulate.mindformers_layout import as_ranks_read, parts_in_a_row

pytestmark = pytest.mark.pure
QKV, FC1 = "decoder.layers.1.self_attention.linear_qkv.weight", "decoder.layers.0.mlp.linear_fc1.weight"
NAMES = (QKV, FC1, "decoder.layers.0.self_attention.linear_proj.weight")
CONTIGUOUS = {"model.model_config.use_contiguous_weight_layout_attention": True}
NOT_INTERLEAVED = {"model.model_config.use_interleaved_weight_layout_mlp": False}


@pytest.mark.parametrize(("changes", "parts"), [
    ({}, {}),
    (CONTIGUOUS, {QKV: (512, 256, 256)}),
    (NOT_INTERLEAVED, {FC1: (1536, 1536)}),
    (CONTIGUOUS | NOT_INTERLEAVED, {QKV: (512, 256, 256), FC1: (1536, 1536)}),
    (CONTIGUOUS | NOT_INTERLEAVED | {"parallel_config.model_parallel": 1}, {}),
])  # fmt: skip
def test_which_weights_have_their_parts_in_a_row(tmp_path, changes, parts):
    assert parts_in_a_row(read_mindformers(write(tmp_path, changes)), NAMES) == parts


def test_a_rank_holds_its_share_of_every_part():
    queries, keys, values = np.arange(8.0), np.arange(100.0, 104), np.arange(200.0, 204)
    whole = np.concatenate([queries, keys, values])[:, None] * np.ones(3)
    read = as_ranks_read({"qkv": whole, "other": whole}, {"qkv": (8, 4, 4)}, ranks=4)
    assert np.array_equal(read["other"], whole)
    for rank, rows in enumerate(np.split(read["qkv"][:, 0], 4)):
        mine = slice(2 * rank, 2 * rank + 2)
        assert rows.tolist() == [*queries[mine], keys[rank], values[rank]]
