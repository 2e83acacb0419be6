"""The decoder-only Transformer as it serves: new tokens in, logits of the next one out, the rest remembered.

In: R rows of S new tokens, the slot and the positions of each. Out: logits float32 [R, padded_vocab_size] behind each
row's last token. Blocks, names and layouts of weights are those of training (`transformer.py`); attention has a cache.
One cell serves prefill (few rows, many tokens) and decoding (many rows, one token): MindSpore compiles it once for
every pair of shapes.

>>> model = ServedTransformer(shape, parallel, ms.float32, slots=8, length=1024)  # doctest: +SKIP
>>> logits = model(input_ids, positions, slots, last, window)  # doctest: +SKIP
"""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from msparallel.model.cached_attention import CachedAttention, CachePlaces
from msparallel.model.embedding import Embedding, Head
from msparallel.model.feed_forward import FeedForward
from msparallel.model.linear import Linear
from msparallel.model.moe import MixtureOfExperts
from msparallel.model.norm import block_norm
from msparallel.model.rotary import RotaryTable
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class ServedLayer(nn.Cell):
    """x [T, H] -> x + attention(norm(x)), then + feed_forward(norm(x))."""

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, *, slots: int, length: int
    ) -> None:
        super().__init__()
        self.input_layernorm = block_norm(shape, parallel, fused=False)
        self.self_attn = CachedAttention(shape, parallel, compute_dtype, slots=slots, length=length)
        self.post_attention_layernorm = block_norm(shape, parallel, fused=False)
        self.has_experts = shape.num_experts > 0
        mlp = MixtureOfExperts if self.has_experts else FeedForward
        self.mlp = mlp(shape, parallel, compute_dtype)

    def construct(self, x, rows, places, *rotary):
        x = x + self.self_attn(self.input_layernorm(x), places, *rotary)
        y = self.post_attention_layernorm(x)
        if self.has_experts:
            # Every token is a sequence of its own: with several, an expert's room would depend on who else is there.
            y, _ = self.mlp(y, y.shape[0], 1)
            return x + y
        return x + self.mlp(y)


class ServedDecoder(nn.Cell):
    """Tokens [R, S] -> hidden states [T, H] before the final norm."""

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, *, slots: int, length: int
    ) -> None:
        super().__init__()
        rows, h = shape.padded_vocab_size, shape.hidden_size
        self.embed_tokens = Embedding(rows, h, parallel, compute_dtype, rows_cut=parallel.vocab_degree)
        self.has_position_table = shape.position == "learned"
        if self.has_position_table:
            self.embed_positions = Embedding(shape.max_positions, h, parallel, compute_dtype, rows_cut=1)
        else:
            self.rotary = RotaryTable(length, shape.head_dim, shape.rope_theta, parallel)
        self.places = CachePlaces(shape.num_kv_heads, slots, length)
        self.layers = nn.CellList(
            [ServedLayer(shape, parallel, compute_dtype, slots=slots, length=length) for _ in range(shape.num_layers)]
        )
        self.norm = block_norm(shape, parallel, fused=False)

    def construct(self, input_ids, positions, slots, window):
        rows, new = input_ids.shape
        x = self.embed_tokens(ops.reshape(input_ids, (rows * new,)))
        rotary = ()
        if self.has_position_table:
            x = x + self.embed_positions(ops.reshape(positions, (rows * new,)))
        else:
            rotary = self.rotary(positions)
        places = self.places(slots, positions, window)
        for layer in self.layers:
            x = layer(x, rows, places, *rotary)
        return x


class ServedTransformer(nn.Cell):
    """New tokens -> logits float32 [R, padded_vocab_size] of the token behind `last`.

    Inputs, all int32: input_ids and positions [R, S]; slots [R]; last [R], the place in 0 .. S - 1 of a row's last real
    token (rows are filled up to S, and what is behind `last` is overwritten before anybody sees it); window [W],
    0 .. W - 1, at least as long as the longest row.
    """

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, *, slots: int, length: int
    ) -> None:
        super().__init__()
        self.model = ServedDecoder(shape, parallel, compute_dtype, slots=slots, length=length)
        self.lm_head = Head(shape, parallel, compute_dtype)
        self.tied = shape.tie_embeddings
        self._transposed: set[str] = set()

    def construct(self, input_ids, positions, slots, last, window):
        rows, new = input_ids.shape
        x = self.model(input_ids, positions, slots, window)
        if new > 1:
            x = ops.gather(x, ops.arange(0, rows * new, new) + last, 0)
        x = self.model.norm(x)
        return self.lm_head(x, self.model.embed_tokens.weight if self.tied else self.lm_head.weight)

    def hold_weights_transposed(self) -> None:
        """Before weights are loaded: matrices become [in, out], which the CPU multiplies two to three times as fast
        for 16 rows and more (MatMul with transpose_b packs the whole matrix anew at every call). A tied head becomes
        a matrix of its own."""
        for _, cell in self.cells_and_names():
            if isinstance(cell, (Linear, Head)):
                cell.transpose()
                self._transposed.add(cell.weight.name)
        self.tied = False

    def transposed_weights(self) -> frozenset[str]:
        """Names of the matrices that are held as [in, out]."""
        return frozenset(self._transposed)
