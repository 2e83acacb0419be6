"""How a matrix product, a norm and an attention head are cut: tuples for `Primitive.shard`, one per operand.

In: an OpParallelConfig. Out: strategies, one number per dimension of each operand: into how many pieces it is cut.
Activations are [tokens, features]; weights are [out, in], as Hugging Face stores them.

>>> column_parallel(OpParallelConfig(data_parallel=2, model_parallel=4))
((2, 1), (4, 1))
"""

from __future__ import annotations

from mindspore.parallel import Layout

from msparallel.parallel_config import OpParallelConfig

Strategy = tuple[tuple[int, ...], ...]


def gathered_tokens(parallel: OpParallelConfig) -> int:
    """Pieces of the token dimension between a column-parallel and a row-parallel matrix."""
    return parallel.data_parallel * parallel.context_parallel


def column_parallel(parallel: OpParallelConfig) -> Strategy:
    """x [T, in] times weight [out, in]: every device of tp keeps its own output features; no sum is needed."""
    return (gathered_tokens(parallel), 1), (parallel.model_parallel, 1)


def row_parallel(parallel: OpParallelConfig) -> Strategy:
    """x [T, in] times weight [out, in], both cut along `in`: the partial results are summed over tp."""
    return (gathered_tokens(parallel), parallel.model_parallel), (1, parallel.model_parallel)


def replicated(parallel: OpParallelConfig) -> Strategy:
    """x [T, in] times a weight that every device keeps whole."""
    return (parallel.token_parallel, 1), (1, 1)


def residual(parallel: OpParallelConfig) -> tuple[int, int]:
    """The residual stream [T, H]: cut over tokens, over tp as well with sequence parallel."""
    return parallel.token_parallel, 1


def features(parallel: OpParallelConfig) -> tuple[int, int]:
    """The activation [T, features] behind a column-parallel matrix."""
    return gathered_tokens(parallel), parallel.model_parallel


def logits(parallel: OpParallelConfig) -> tuple[int, int]:
    """Logits [T, V]: along the vocabulary over tp, or, where every device keeps the whole head, along the tokens."""
    tokens = gathered_tokens(parallel) if parallel.vocab_parallel else parallel.token_parallel
    return tokens, parallel.vocab_degree


def axes(parallel: OpParallelConfig) -> Layout:
    """The devices of a stage with their axes' names, to be called with an axis (or "None") per dimension.

    Numbers alone say only into how many pieces a dimension is cut, and MindSpore takes the first dimension's axis for
    the outermost. Where the order of the dimensions is not dp, cp, tp, the axes must be named.
    """
    return Layout((parallel.data_parallel, parallel.context_parallel, parallel.model_parallel), ("dp", "cp", "tp"))


def attention_axes(parallel: OpParallelConfig) -> tuple[str, str | tuple[str, str]]:
    """Axes that cut queries along the sequence, and heads, inside attention."""
    if parallel.context_parallel_algo == "ulysses_cp":
        return "None", ("tp", "cp")
    return "cp", "tp"
