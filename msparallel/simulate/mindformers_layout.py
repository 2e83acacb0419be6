"""Fused weights whose rows MindFormers' tensor-parallel ranks read in another order than one process.

With `use_contiguous_weight_layout_attention` true a linear_qkv holds all queries, then all keys, then all values; with
`use_interleaved_weight_layout_mlp` false a linear_fc1 holds all gates, then all ups. MindSpore's engine cuts such a
weight into consecutive rows, and each rank splits what it holds as if it were the whole (MindFormers 1.9.0,
`SelfAttentionContiguous`, `MLP`: `skip_redistribution`). So the same whole weight is another model on more ranks.

In: a MindFormersConfig, whole weights as one process reads them. Out: the whole weights that ranks read the same way.
Pure.

>>> as_ranks_read({"w": np.array([[10], [11], [20], [21]])}, {"w": (2, 2)}, ranks=2)["w"].ravel().tolist()
[10, 20, 11, 21]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from msparallel.interop.mindformers import MindFormersConfig

Parts = Mapping[str, tuple[int, ...]]
"""Weight -> rows of each of its parts, in the order in which one process reads them."""
QKV, GATE_UP = "self_attention.linear_qkv.", "mlp.linear_fc1."


def parts_in_a_row(config: MindFormersConfig, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The weights that ranks read otherwise; none where one rank holds them whole, or parts are interleaved."""
    if config.model_parallel == 1:
        return {}
    model, found = config.model, {}
    heads, keys = model.get("num_attention_heads"), model.get("num_key_value_heads", model.get("num_query_groups"))
    width = model.get("head_dim", model.get("kv_channels"))
    hidden = model.get("intermediate_size", model.get("ffn_hidden_size"))
    for name in names:
        if QKV in name and model.get("use_contiguous_weight_layout_attention") is True and heads and width:
            found[name] = (heads * width, *((keys or heads) * width,) * 2)
        elif GATE_UP in name and model.get("use_interleaved_weight_layout_mlp") is False and hidden:
            found[name] = (hidden, hidden)
    return found


def as_ranks_read(arrays: Mapping[str, np.ndarray], parts: Parts, ranks: int) -> dict[str, np.ndarray]:
    """The arrays with every rank's share of each part put together.

    Args:
        arrays: whole, rows first.
        ranks: that a weight is cut over.
    """
    return {name: _rows_of_ranks(v, parts[name], ranks) if name in parts else v for name, v in arrays.items()}


def _rows_of_ranks(whole: np.ndarray, lengths: tuple[int, ...], ranks: int) -> np.ndarray:
    pieces = [np.split(part, ranks) for part in np.split(whole, np.cumsum(lengths)[:-1])]
    return np.concatenate([piece[rank] for rank in range(ranks) for piece in pieces])
