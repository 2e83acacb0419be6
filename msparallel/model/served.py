"""The decoder-only Transformer as it serves: new tokens in, logits of the next one out, the rest remembered.

In: R rows of S new tokens, where each of them stands. Out: logits float32 [R, padded_vocab_size] behind each row's last
token. Weights are those of training (`transformer.py`); attention has a cache.
One cell serves prefill (few rows, many tokens) and decoding (many rows, one token): MindSpore compiles it once for
every pair of shapes.

`ServedTransformer` is for a processor: few operators, most of them ours (`packed.py`). `PagedTransformer` is for
Ascend: a cache of blocks, fused kernels, weights in 16 bits, everything cut over tp; a token costs two all-reduces a
layer, one for the embedding where its vocabulary is cut, and an all-gather of the logits.

>>> model = ServedTransformer(shape, slots=8, length=1024)  # doctest: +SKIP
>>> logits = model(input_ids, positions, slots, last)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model import strategies
from msparallel.model.attention_mask import HIDDEN
from msparallel.model.cache_blocks import Blocks
from msparallel.model.embedding import Embedding, Head
from msparallel.model.feed_forward import FeedForward
from msparallel.model.moe import MixtureOfExperts
from msparallel.model.norm import LayerNorm, RMSNorm, block_norm
from msparallel.model.packed import PackedAttention, PackedFeedForward
from msparallel.model.paged_attention import CachedAttention, PagedCore, PagedPlaces
from msparallel.model.rotary import RotaryTable
from msparallel.model.routing import Router
from msparallel.model.served_kernels import KernelLinear, KernelRMSNorm
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


def _norm(shape: ModelShape, parallel: OpParallelConfig, *, fused: bool) -> nn.Cell:
    """The norm of the residual stream, for Ascend or for a processor."""
    if fused or shape.norm == "layer":
        return block_norm(shape, parallel, fused=fused)
    return KernelRMSNorm(shape.hidden_size, shape.norm_eps)


class ServedLayer(nn.Cell):
    """x [T, H] -> x + attention(norm(x)), then + feed_forward(norm(x)).

    Args:
        fused: of Ascend's kernels; else for a processor.
    """

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, attention: nn.Cell, *, fused: bool
    ) -> None:
        super().__init__()
        self.input_layernorm = _norm(shape, parallel, fused=fused)
        self.self_attn = attention
        self.post_attention_layernorm = _norm(shape, parallel, fused=fused)
        self.has_experts = shape.num_experts > 0
        if self.has_experts:
            self.mlp = MixtureOfExperts(shape, parallel, compute_dtype)
        elif fused:
            self.mlp = FeedForward(shape, parallel, compute_dtype, fused=True)
        else:
            self.mlp = PackedFeedForward(shape)
        self.add_attention, self.add_mlp = ops.Add(), ops.Add()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x, rows, places, *rotary):
        x = self.add_attention(x, self.self_attn(self.input_layernorm(x), rows, places, *rotary))
        y = self.post_attention_layernorm(x)
        if self.has_experts:
            # Every token is a sequence of its own: with several, an expert's room would depend on who else is there.
            y, _ = self.mlp(y, y.shape[0], 1)
            return self.add_mlp(x, y)
        return self.add_mlp(x, self.mlp(y))

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        stream = strategies.residual(parallel)
        self.add_attention.shard((stream, stream))
        self.add_mlp.shard((stream, stream))


class ServedDecoder(nn.Cell):
    """Tokens [R, S] -> hidden states [T, H] before the final norm.

    Args:
        places: from positions and what else says where tokens stand, to what attention needs; none: these themselves.
        make_attention: that of one layer.
        length: positions that there are.
    """

    def __init__(
        self,
        shape: ModelShape,
        parallel: OpParallelConfig,
        compute_dtype: ms.Type,
        places: nn.Cell | None,
        make_attention: Callable[[], nn.Cell],
        *,
        length: int,
        fused: bool,
    ) -> None:
        super().__init__()
        rows, h = shape.padded_vocab_size, shape.hidden_size
        self.embed_tokens = Embedding(rows, h, parallel, compute_dtype, rows_cut=parallel.vocab_degree)
        self.has_position_table = shape.position == "learned"
        if self.has_position_table:
            self.embed_positions = Embedding(shape.max_positions, h, parallel, compute_dtype, rows_cut=1)
            self.last_position = None if fused else shape.max_positions - 1
            self.add_positions = ops.Add()
            if parallel.sharded:
                stream = strategies.residual(parallel)
                self.add_positions.shard((stream, stream))
        else:
            self.rotary = RotaryTable(length, shape.head_dim, shape.rope_theta, parallel)
        self.has_places = places is not None
        if places is not None:
            self.places = places
        self.layers = nn.CellList(
            [
                ServedLayer(shape, parallel, compute_dtype, make_attention(), fused=fused)
                for _ in range(shape.num_layers)
            ]
        )
        self.norm = _norm(shape, parallel, fused=fused)

    def construct(self, input_ids, positions, *where):
        rows, new = input_ids.shape
        x = self.embed_tokens(ops.reshape(input_ids, (rows * new,)))
        rotary = ()
        if self.has_position_table:
            flat = ops.reshape(positions, (rows * new,))
            if self.last_position is not None:  # a filler stands behind all positions
                flat = ops.minimum(flat, self.last_position)
            x = self.add_positions(x, self.embed_positions(flat))
        else:
            rotary = self.rotary(positions)
        places = self.places(positions, *where) if self.has_places else (positions, *where)
        for layer in self.layers:
            x = layer(x, rows, places, *rotary)
        return x


class ServedTransformer(nn.Cell):
    """New tokens -> logits float32 [R, padded_vocab_size] of the token behind `last`.

    Inputs, all int32: input_ids and positions [R, S]; slots [R]; last [R], the place in 0 .. S - 1 of a row's last real
    token. Rows are filled up to S by tokens at position `length`.
    """

    def __init__(self, shape: ModelShape, *, slots: int, length: int) -> None:
        super().__init__()
        parallel = OpParallelConfig(sharded=False)
        self.model = ServedDecoder(
            shape,
            parallel,
            ms.float32,
            None,
            lambda: PackedAttention(shape, slots=slots, length=length),
            length=length + 1,
            fused=False,
        )
        self.lm_head = KernelLinear(shape.hidden_size, shape.padded_vocab_size)

    def construct(self, input_ids, positions, slots, last):
        rows, new = input_ids.shape
        x = self.model(input_ids, positions, slots)
        if new > 1:
            x = ops.gather(x, ops.arange(0, rows * new, new) + last, 0)
        return self.lm_head(self.model.norm(x))


class PagedHead(Head):
    """Hidden states [R, H] and a table [V, H] -> logits float32 [R, V], whole on every device.

    They are gathered in 16 bits, before the padding of the vocabulary is hidden. MindSpore leaves a graph's result cut,
    and takes a cast's strategy from what stands before it; so it is the addition that asks for whole logits.
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type) -> None:
        super().__init__(shape, parallel, compute_dtype)
        hidden = -65504.0 if compute_dtype == ms.float16 else HIDDEN  # the least float16
        values = np.where(np.arange(self.rows) < shape.vocab_size, 0.0, hidden)
        self.padding = Tensor(values, compute_dtype)
        if parallel.sharded:
            self.hide_padding.shard(((1, 1), (1,)))
            self.cast_out.shard(((1, 1),))

    def construct(self, x, table):
        return self.cast_out(self.hide_padding(self.matmul(x, self.cast(table, self.dtype)), self.padding), ms.float32)


class PagedTransformer(nn.Cell):
    """The same for Ascend: new tokens -> logits float32 [R, padded_vocab_size] of the token behind `last`.

    Inputs, all int32: input_ids and positions [R, S]; last [R], the number among all R * S of each row's last real
    token; slot_mapping [R * S], the row of the cache that each token is written to; block_tables [R, blocks of a
    slot]; batch_valid_length [R], tokens of each request in the cache, the new ones among them; q_seq_lens [R], new
    tokens of each. The two last names are read by Ascend's kernel; see `paged_attention.py`.

    Matrices, tables and biases are held in the compute dtype, which halves them; norms and the router of experts
    compute in float32 and stay.
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, blocks: Blocks) -> None:
        super().__init__()
        self.model = ServedDecoder(
            shape,
            parallel,
            compute_dtype,
            PagedPlaces(parallel, compute_dtype, blocks),
            lambda: CachedAttention(shape, parallel, compute_dtype, PagedCore(shape, parallel, compute_dtype, blocks)),
            length=blocks.window,
            fused=True,
        )
        self.lm_head = PagedHead(shape, parallel, compute_dtype)
        self.tied = shape.tie_embeddings
        self.take_last = ops.Gather()
        if parallel.sharded:
            self.take_last.shard(((1, 1), (1,)))
        self._hold_weights_in(compute_dtype)

    def construct(
        self, input_ids, positions, last, slot_mapping, block_tables, batch_valid_length, q_seq_lens
    ):  # fmt: skip
        x = self.model(input_ids, positions, slot_mapping, block_tables, batch_valid_length, q_seq_lens)
        if input_ids.shape[1] > 1:
            x = self.take_last(x, last, 0)
        x = self.model.norm(x)
        return self.lm_head(x, self.model.embed_tokens.weight if self.tied else self.lm_head.weight)

    def _hold_weights_in(self, dtype: ms.Type) -> None:
        for _, cell in self.cells_and_names():
            if isinstance(cell, (RMSNorm, LayerNorm, Router)):
                continue
            for name, parameter in list(cell._params.items()):
                if parameter is not None and not name.endswith("_cache"):
                    setattr(cell, name, Parameter(initializer("zeros", parameter.shape, dtype), name=parameter.name,
                                                  requires_grad=False))  # fmt: skip
